"""Attributes of a wrapper that are read from the wrapped object."""

from typing import Any


class _Forwarded:
    """A descriptor that reads the same attribute from ``inner`` at each access, because it may change there."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        return self if wrapper is None else getattr(wrapper.inner, self._name)


def forwarded() -> Any:
    """Return a descriptor for classes whose objects have an ``inner``: ``adapts: bool = forwarded()``."""
    return _Forwarded()
