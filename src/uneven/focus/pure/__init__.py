"""Arithmetic on cameras, clusters and times."""
