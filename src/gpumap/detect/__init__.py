"""Reads the outside world once and turns it into mapping's values.

Start with launchers.py (the environment) and hardware.py (the devices). May import
mapping.
"""
