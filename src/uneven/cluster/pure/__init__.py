"""Descriptions of clusters, and what is computed from them alone."""
