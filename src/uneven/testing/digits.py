"""Handwritten digits for examples and tests, without a download."""

from uneven.data.datasets import load_digits

__all__ = ["load_digits"]
