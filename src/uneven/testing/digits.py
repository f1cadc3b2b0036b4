"""Handwritten digits for examples and tests, without a download."""

from uneven.cluster.virtual.datasets import load_digits

__all__ = ["load_digits"]
