"""Helpers for training loops: weighted losses, means over all workers, and shared evaluations."""
