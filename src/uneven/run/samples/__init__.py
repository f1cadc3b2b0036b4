"""Loaders, and the batches that are in flight."""
