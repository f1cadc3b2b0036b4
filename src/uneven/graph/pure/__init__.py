"""Cuts of graphs, and their costs."""
