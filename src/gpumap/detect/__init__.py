"""Reads the environment and the hardware into mapping's values.

Start with launchers.py (the environment) and hardware.py (the devices). May import
mapping.
"""
