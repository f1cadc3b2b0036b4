"""Decisions of a search: spaces, searchers, schedulers, placement."""
