"""Decide which settings are tried next."""

from uneven.search.pure.searchers.base import NoneNow, Searcher, searchers
from uneven.search.pure.searchers.own import ConcurrencyLimit, GridSearch, RandomSearch

searchers.register("random", RandomSearch)
searchers.register("grid", GridSearch)
searchers.register("limit", ConcurrencyLimit)

__all__ = ["ConcurrencyLimit", "GridSearch", "NoneNow", "RandomSearch", "Searcher", "searchers"]
