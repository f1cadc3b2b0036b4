"""Decide which settings are tried next."""

from uneven.search.pure.searchers.searcher import (
    ConcurrencyLimit,
    GridSearch,
    NoneNow,
    RandomSearch,
    Searcher,
    searchers,
)

searchers.register("random", RandomSearch)
searchers.register("grid", GridSearch)
searchers.register("limit", ConcurrencyLimit)

__all__ = ["ConcurrencyLimit", "GridSearch", "NoneNow", "RandomSearch", "Searcher", "searchers"]
