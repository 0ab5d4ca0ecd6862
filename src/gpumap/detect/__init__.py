"""Reads the outside world once and turns it into mapping's values."""
