"""Starts processes for people who have no launcher.

Start with spawn.py; parent.py and child.py are the two sides of the pipe. May import
rendezvous, detect and mapping; a session finds what it needs in the environment.
"""
