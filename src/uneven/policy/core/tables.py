"""Readers of TOML documents and of typed values in their tables, with precise errors."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.plain import Range

Table = Mapping[str, Any]

_INTEGERS = 2**63  # TOML guarantees integers of 64 bits, and our readers support these only


def document(data: bytes | str, source: str) -> dict[str, Any]:
    """Return a TOML document, as UTF-8. Raises ConfigError with ``source``, its name, and the line if known."""
    try:
        return tomllib.loads((data if isinstance(data, str) else data.decode("utf-8")).removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = f"byte {error.object[error.start]:#x} in line {line} is not UTF-8: save the file as UTF-8"
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
    except RecursionError:
        problem = "its brackets are nested too deeply"
    except ValueError:
        problem = "a number in it has more than 4,300 digits"  # Python's limit
    raise ConfigError(f"{source} is not TOML: {problem}")


def quoted(value: str) -> str:
    # A JSON string is a TOML string too, except for the delete character, which TOML wants escaped.
    return json.dumps(_writable(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _writable(value: str) -> str:
    """Escape characters that UTF-8 cannot encode, such as those of a file name that is not UTF-8."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put ``where`` in front of the message of a ConfigError; its class stays."""
    try:
        yield
    except ConfigError as error:
        error.args = (f"{where}: {error}",)
        raise


def known(table: Table, names: Iterable[str], what: str = "key") -> None:
    """Raise an error for unknown keys, with the nearest known one."""
    names = list(names)
    for key in table:
        if key not in names:
            raise UnknownNameError(what, key, names)


def required(table: Table, key: str) -> Any:
    if key not in table:
        raise ConfigError(f"the key {key!r} is missing")
    return table[key]


def number(value: Any) -> float:
    # A bool is an int for Python, but not a number in a settings file.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _type_error(value, "a number")
    if math.isnan(_in_64_bits(value)):
        raise ConfigError(f"{value!r} is not a number: give one")
    return float(value)


def integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _type_error(value, "a whole number")
    return int(_in_64_bits(value))


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _type_error(value, "true or false")
    return value


def text(value: Any) -> str:
    """Return a text, which UTF-8 must be able to encode."""
    if not isinstance(value, str):
        raise _type_error(value, "a text in quotation marks")
    if value != _writable(value):
        raise ConfigError(f"{shown(value)} has a character that UTF-8 cannot encode: leave it out")
    return value


def table(value: Any) -> Table:
    if not isinstance(value, dict):
        raise _type_error(value, "a table, as { key = value }")
    return value


def items(value: Any, each: Callable[[Any], Any] = lambda one: one) -> tuple[Any, ...]:
    """Return a list after a check of each item with ``each``; errors give the position."""
    if not isinstance(value, list):
        raise _type_error(value, "a list in square brackets")
    found = []
    for place, one in enumerate(value):
        with located(f"item {place}"):
            found.append(each(one))
    return tuple(found)


_SIMPLE: dict[Any, Callable[[Any], Any]] = {
    float: number,
    int: integer,
    bool: boolean,
    str: text,
    Mapping[str, Any]: table,
}


def convert(hint: Any, value: Any, special: Mapping[Any, Callable[[Any], Any]] | None = None) -> Any:
    """Return ``value`` as a type hint. ``special`` has the conversions of the types that TOML lacks."""
    if special and hint in special:
        return special[hint](value)
    if hint in _SIMPLE:
        return _SIMPLE[hint](value)
    if get_origin(hint) is Literal:
        return text(value)
    inner = next(one for one in get_args(hint) if one is not NoneType)
    if get_origin(hint) in (tuple, Sequence):
        return items(value, lambda one: convert(inner, one, special))
    return convert(inner, value, special)  # of an optional or annotated type


def _hints(kind: Any) -> dict[str, Any]:
    found = get_type_hints(kind, include_extras=True)
    own = {one.name for one in dataclasses.fields(kind) if one.init} if dataclasses.is_dataclass(kind) else found
    return {name: hint for name, hint in found.items() if name in own}


hints: Callable[[Any], dict[str, Any]] = cache(_hints)
"""Returns the keys of a table, with their types: the fields of a dataclass or a TypedDict."""


def check(part: Any, where: str) -> None:
    """Raise ConfigError if a field of a dataclass is outside its declared :class:`Range`; ``where`` comes first."""
    for key, bound in _bounds(type(part)):
        if (value := getattr(part, key)) is not None and not bound.allows(value):
            raise ConfigError(f"{where}{key} = {shown(value)}: it must be {bound}")


def _bounds_of(kind: Any) -> list[tuple[str, Range]]:
    each = [(key, one) for key, hint in hints(kind).items() for one in (hint, *get_args(hint))]
    return [(key, note) for key, one in each for note in getattr(one, "__metadata__", ())]


_bounds: Callable[[Any], list[tuple[str, Range]]] = cache(_bounds_of)


def shown(value: Any) -> str:
    """Return a value for messages, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= _INTEGERS:
        return "a whole number of more than 64 bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _in_64_bits(value: Any) -> Any:
    if isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS:
        raise ConfigError("an integer of more than 64 bits: give a smaller one")
    return value


def _type_error(value: Any, want: str) -> ConfigError:
    kind = {dict: "a table", list: "a list", str: "a text", bool: "true or false"}.get(type(value), "")
    return ConfigError(f"{shown(value)} is {kind or 'of type ' + type(value).__name__}; it must be {want}")
