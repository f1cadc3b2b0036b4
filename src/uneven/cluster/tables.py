"""Reads plain values out of TOML tables: the right type, or an error that says where and what. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from uneven.errors import ConfigError, UnknownNameError

Table = Mapping[str, Any]


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put ``where`` in front of the message of a ConfigError, which stays of its class."""
    try:
        yield
    except ConfigError as error:
        error.args = (f"{where}: {error}",)
        raise


def known(table: Table, names: Iterable[str]) -> None:
    """Refuse keys that do not exist, offering the nearest one that does."""
    names = list(names)
    for key in table:
        if key not in names:
            raise UnknownNameError("key", key, names)


def required(table: Table, key: str) -> Any:
    """The value of a key that must be there."""
    if key not in table:
        raise ConfigError(f"the key {key!r} is missing")
    return table[key]


def number(value: Any) -> float:
    """A number; whole ones become floats."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _type_error(value, "a number")
    if math.isnan(value):
        raise ConfigError(f"{value!r} is not a number: give one")
    return float(value)


def integer(value: Any) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _type_error(value, "a whole number")
    return value


def text(value: Any) -> str:
    """A text in quotation marks."""
    if not isinstance(value, str):
        raise _type_error(value, "a text in quotation marks")
    return value


def table(value: Any) -> Table:
    """A table."""
    if not isinstance(value, dict):
        raise _type_error(value, "a table, as { key = value }")
    return value


def items(value: Any, each: Callable[[Any], Any] = lambda one: one) -> tuple[Any, ...]:
    """A list, each of whose items ``each`` accepts; the place of a wrong one is named."""
    if not isinstance(value, list):
        raise _type_error(value, "a list in square brackets")
    found = []
    for place, one in enumerate(value):
        with located(f"item {place}"):
            found.append(each(one))
    return tuple(found)


def _type_error(value: Any, want: str) -> ConfigError:
    kind = {dict: "a table", list: "a list", str: "a text", bool: "true or false"}.get(type(value), "")
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    return ConfigError(f"{shown} is {kind or 'of type ' + type(value).__name__}; it must be {want}")
