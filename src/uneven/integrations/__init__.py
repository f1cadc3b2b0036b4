"""Adapters to libraries that wrap models; each needs the extra of its name, and is imported by its own name."""
