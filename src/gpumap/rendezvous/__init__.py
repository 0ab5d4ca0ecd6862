"""How the ranks of a job find each other, agree before training, and learn of failures.

Nothing here knows what a session is. Start with rendezvous.py (the store), then
roll_call.py. May import mapping.
"""
