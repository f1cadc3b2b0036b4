"""A reader of plain data from outside (JSON, a checkpoint) that checks it against type hints.

A shape is a type hint: ``int``, ``float``, ``str``, ``bool``, ``X | None``, ``list[X]``, ``tuple[X, ...]``, ``tuple[X,
Y]``, ``dict[str, X]``, ``Literal[...]``, ``Any``, a dataclass or a ``TypedDict`` of these. Each may be ``Annotated``
with a :class:`Range` or, inside a dataclass or ``TypedDict``, with :class:`Along`.

A bool is not a number. A whole number must be within ±2⁵³, the range of exact floats, and is accepted as a float.
Non-finite floats may be strings, because JSON has no numbers for them.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from uneven.errors import CheckpointError

T = TypeVar("T")
Reader = Callable[[Any], Any]

_MOST = 2**53
_LARGEST = 1e30
_NON_FINITE = frozenset(("nan", "inf", "-inf"))
_SHOWN = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The bounds of a number, both included; they exclude NaN."""

    least: float = float("-inf")
    most: float = _MOST
    words: str = ""  # the bounds in a message; made from the numbers if empty

    def allows(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return self.words or (f"from {self.least} to {self.most}" if self.most < _MOST else f"{self.least} or more")


@dataclasses.dataclass(frozen=True, slots=True)
class Along:
    """A constraint: a list has one entry for each entry of another field."""

    field: str


Count = Annotated[int, Range(0)]
Several = Annotated[int, Range(1)]
Amount = Annotated[float, Range(0.0)]  # a finite number, 0 or more

Positive = Annotated[float, Range(1e-300)]
PerMember = Annotated[list[float], Along("members")]  # One number for each entry of the state's field ``members``


class Misfit(ValueError):
    """Data does not have the expected shape. The message names the field, its value and the expectation."""

    def __init__(self, value: Any, expected: str, path: str = "") -> None:
        self.value = value
        self.expected = expected
        self.path = path
        super().__init__()

    def within(self, step: str) -> "Misfit":
        """Prefix the path with ``step``, the position in the container."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        self.path = f"{step}{joint}{self.path}"
        return self

    def __str__(self) -> str:
        said = repr(self.value) if len(repr(self.value)) <= _SHOWN else f"{repr(self.value)[:_SHOWN]}…"
        return f"{self.path or 'it'} is {said}, expected {self.expected}"


class Missing(Misfit):
    """A required field is missing."""

    def __str__(self) -> str:
        return f"{self.path} is missing, expected {self.expected}"


def whole_key(text: str, path: str) -> int:
    """Return a rank from a key of a JSON object. Raises Misfit if it is not a number."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 7):
        raise Misfit(text, "a rank", path)
    return int(text)


def as_many(values: list[float], count: int, path: str) -> list[float]:
    """Return ``values`` if there are ``count``. Raises Misfit if not, or if a number is too large for products."""
    if len(values) != count or not all(abs(one) <= _LARGEST for one in values):
        raise Misfit(values, f"{count} numbers within {_LARGEST:g} of 0", path)
    return values


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn any error of loading a state into a :class:`CheckpointError` that names the field."""
    try:
        yield
    except Misfit as error:
        raise CheckpointError(f"the state of {what} is damaged: {error}; resume from another checkpoint") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        cause = f"{type(error).__name__}: {error}"
        said = f"the state of {what} cannot be used ({cause}): resume from another checkpoint"
        raise CheckpointError(said) from error


@contextmanager
def inside(step: str) -> Iterator[None]:
    """Prefix the path of a :class:`Misfit` from inside the block with ``step``."""
    try:
        yield
    except Misfit as error:
        raise error.within(step) from None


def read(shape: type[T], value: Any) -> T:
    """Return ``value`` as ``shape``; lists become tuples and dicts dataclasses as needed. Raises Misfit if not."""
    return cast(T, reader(shape)(value))


def reader(shape: Any) -> Reader:
    """Return the function that :func:`read` calls, cached for each shape."""
    return _made(shape)


@cache
def _made(shape: Any) -> Reader:
    if (simple := _SIMPLE.get(shape)) is not None:
        return simple
    if get_origin(shape) is NotRequired:
        return reader(get_args(shape)[0])
    if get_origin(shape) is Annotated:
        return _annotated(*get_args(shape))
    if get_origin(shape) in (Union, UnionType):
        return _either(get_args(shape))
    if get_origin(shape) is Literal:
        return _one_of(get_args(shape))
    if dataclasses.is_dataclass(shape) or is_typeddict(shape):
        return _fields(shape)
    return _container(get_origin(shape), get_args(shape))


def _exactly(kind: type, expected: str) -> Reader:
    def take(value: Any) -> Any:
        if type(value) is not kind:
            raise Misfit(value, expected)
        return value

    return take


def _whole(value: Any) -> Any:
    found = int(value) if type(value) is float and value.is_integer() else value
    if type(found) is not int or not -_MOST <= found <= _MOST:
        raise Misfit(value, "a whole number")
    return found


def _real(value: Any) -> Any:
    if type(value) is float:
        return value
    if (type(value) is int and -_MOST <= value <= _MOST) or (isinstance(value, str) and value in _NON_FINITE):
        return float(value)
    raise Misfit(value, "a number")


_SIMPLE: dict[Any, Reader] = {
    Any: lambda value: value,
    int: _whole,
    float: _real,
    str: _exactly(str, "a text"),
    bool: _exactly(bool, "true or false"),
    NoneType: _exactly(NoneType, "nothing"),
}


def _annotated(shape: Any, *notes: Any) -> Reader:
    plain = reader(shape)
    bounds = [note for note in notes if isinstance(note, Range)]
    if not bounds:
        return plain
    (bound,) = bounds
    kind = "a whole number" if shape is int else "a number"

    def take(value: Any) -> Any:
        found = plain(value)
        if not bound.allows(found):
            raise Misfit(value, f"{kind}, {bound}")
        return found

    return take


def _either(shapes: tuple[Any, ...]) -> Reader:
    (shape,) = [one for one in shapes if one is not NoneType]
    inner = reader(shape)
    return lambda value: None if value is None else inner(value)


def _one_of(values: tuple[Any, ...]) -> Reader:
    def take(value: Any) -> Any:
        if not any(value is one or (type(value) is type(one) and value == one) for one in values):
            raise Misfit(value, f"one of {', '.join(map(repr, values))}")
        return value

    return take


def _container(kind: Any, inside: tuple[Any, ...]) -> Reader:
    if kind is dict:
        return _mapping(reader(inside[1]))
    if kind is tuple and inside[-1] is not Ellipsis:
        return _places(tuple(reader(one) for one in inside))
    if kind not in (list, tuple):
        raise TypeError(f"no plain data is of the shape {kind}{list(inside)}")
    of, made = reader(inside[0]), cast(type, kind)

    def take(value: Any) -> Any:
        found = _list(value)
        try:
            return made(map(of, found))
        except Misfit:  # the position is searched only after a failure
            raise _first_misfit(of, found) from None

    return take


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise Misfit(value, "a list")
    return value


def _first_misfit(of: Reader, values: Any) -> Misfit:
    for place, one in enumerate(values):
        try:
            of(one)
        except Misfit as error:
            return error.within(f"[{place}]")
    raise AssertionError("one of the readers has just raised")


def _places(readers: tuple[Reader, ...]) -> Reader:
    def take(value: Any) -> Any:
        if len(_list(value)) != len(readers):
            raise Misfit(value, f"a list of {len(readers)}")
        found = []
        for place, (of, one) in enumerate(zip(readers, value, strict=True)):
            try:
                found.append(of(one))
            except Misfit as error:
                raise error.within(f"[{place}]") from None
        return tuple(found)

    return take


def _mapping(of: Reader) -> Reader:
    def take(value: Any) -> Any:
        found = {}
        for key, one in _dict(value).items():
            try:
                found[key] = of(one)
            except Misfit as error:
                raise error.within(key) from None
        return found

    return take


def _dict(value: Any) -> Any:
    if type(value) is not dict or not all(isinstance(key, str) for key in value):
        raise Misfit(value, "fields with names")
    return value


def _fields(cls: Any) -> Reader:
    """Return the reader of a class. It skips unknown fields, so an older version can read a newer one's data."""
    # The hints decide which keys a TypedDict requires: its own __required_keys__ fails if annotations are strings.
    hints = get_type_hints(cls, include_extras=True)
    own = (
        {one.name: _optional(one) for one in dataclasses.fields(cls)}
        if dataclasses.is_dataclass(cls)
        else {name: get_origin(hint) is NotRequired for name, hint in hints.items()}
    )
    # What is exactly a float or a text needs no further look: most of a journal is read that way.
    plan = [(name, {float: float, str: str}.get(hints[name]), reader(hints[name]), own[name]) for name in own]
    along = {name: note.field for name in own for note in _notes(hints[name]) if isinstance(note, Along)}

    def take(value: Any) -> Any:
        given = _dict(value)
        found: dict[str, Any] = {}
        for name, exact, of, optional in plan:
            if name in given:
                one = given[name]
                try:
                    found[name] = one if type(one) is exact else of(one)
                except Misfit as error:
                    raise error.within(name) from None
            elif not optional:
                raise Missing(value, "as in every state or record of this kind", name)
        for name, other in along.items():
            if found.get(name) is not None and len(found[name]) != len(found[other]):
                raise Misfit(found[name], f"a list of {len(found[other])}, as many as {other}", name)
        return cls(**found)

    return take


def _optional(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _notes(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()
