"""Starts processes for people who have no launcher.

Start with spawn.py; parent.py is one side of the pipe, child.py the other. May import
rendezvous, detect and mapping; a session finds what it needs in the environment.
"""
