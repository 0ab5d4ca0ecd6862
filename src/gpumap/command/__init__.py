"""The command `gpumap`: show, run, env and completion.

Start with main.py. arguments.py has the options of all four; each is imported when it
is asked for. May import all other rooms.
"""
