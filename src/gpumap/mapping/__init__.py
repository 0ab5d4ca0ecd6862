"""Pure functions from values to values: no torch, no environment, no files, no clock.

Start with placement.py (one rank) and plan.py (a cluster). Imports nothing but errors.
"""
