"""The loader that follows a moving split, and real data sets. A name is imported when it is first touched."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uneven.data.datasets import ImageData, digits, fashion_mnist
    from uneven.data.loader import BalancedLoader
    from uneven.data.order import Portion

__all__ = ["BalancedLoader", "ImageData", "Portion", "digits", "fashion_mnist"]

# `order` is pure, so importing it must not import torch through this file.
_HOME = {"BalancedLoader": "loader", "Part": "order", "ImageData": "datasets", "digits": "datasets",
         "fashion_mnist": "datasets"}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'uneven.data' has no attribute {name!r}", name=name)
    return getattr(importlib.import_module(f"uneven.data.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
