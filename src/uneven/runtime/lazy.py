"""Lazy imports of a package's names, so that its pure modules do not wait for torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a function for a package's ``__getattr__``; ``homes`` maps full names of modules to their names."""
    home = {name: module for module, names in homes.items() for name in names}

    def found(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        value = getattr(importlib.import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return found
