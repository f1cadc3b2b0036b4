"""Decide which settings are tried next. Pure."""

from uneven.search.searchers.base import NoneNow, Searcher, searchers
from uneven.search.searchers.own import ConcurrencyLimit, GridSearch, RandomSearch

searchers.register("random", RandomSearch)
searchers.register("grid", GridSearch)
searchers.register("limit", ConcurrencyLimit)

__all__ = ["ConcurrencyLimit", "GridSearch", "NoneNow", "RandomSearch", "Searcher", "searchers"]
