"""Descriptions of clusters, and computations on them."""
