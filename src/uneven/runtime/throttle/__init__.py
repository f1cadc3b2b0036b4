"""Limits on the processor time of processes."""
