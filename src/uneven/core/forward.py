"""Attributes of a wrapper that are those of what it holds. Pure."""

from __future__ import annotations

from typing import Any


class _Forwarded:
    """Reads the attribute of its own name from ``inner``, each time anew, since it may change there."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        return self if wrapper is None else getattr(wrapper.inner, self._name)


def forwarded() -> Any:
    """For the body of a class whose objects have an attribute ``inner``: ``adapts: bool = forwarded()``."""
    return _Forwarded()
