"""Schedules, packing and sharing of a preconditioner's work."""
