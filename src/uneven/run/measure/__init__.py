"""Measurements: the parts of a step's time, and the machine's load."""
