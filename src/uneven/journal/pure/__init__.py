"""Arithmetic on the records of a run."""
