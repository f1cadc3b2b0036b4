"""Cuts of graphs, and what they cost."""
