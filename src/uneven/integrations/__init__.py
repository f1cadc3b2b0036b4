"""Adapters to libraries that wrap models. Each needs the extra of its name, and has its own import."""
