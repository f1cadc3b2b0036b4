"""Names for plug-ins: ``"static:shares=0.6/0.4"`` becomes ``Static(shares=(0.6, 0.4))``.

A specification is a name, then optionally a colon and ``key=value`` pairs separated by commas. A value is
a number, ``true``/``false``, a word, or a list of these separated by slashes. An object in place of a name
is passed through, so every place that takes a name takes an object too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from uneven.errors import ConfigError, UnknownNameError

T = TypeVar("T")
Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]


class Registry(Mapping[str, Callable[..., T]]):
    """The names of one kind of plug-in.

    Args:
        kind: the kind in the user's words, used in messages ("balancer").
        base: the class that an object must be an instance of.
    """

    def __init__(self, kind: str, base: type[T]) -> None:
        self.kind = kind
        self.base = base
        self._makers: dict[str, Callable[..., T]] = {}

    def register(self, name: str, maker: Callable[..., T]) -> None:
        """Let ``name`` stand for ``maker``; outside plug-ins call this too.

        Raises:
            ConfigError: the name is taken.
        """
        if name in self._makers:
            raise ConfigError(f"{self.kind} {name!r} is registered already, as {self._makers[name]!r}")
        self._makers[name] = maker

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name not in self._makers:
            raise UnknownNameError(self.kind, name, self._makers)
        return self._makers[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def resolve(self, spec: str | T) -> T:
        """The object that ``spec`` stands for.

        Raises:
            UnknownNameError: no such name, or no such key for this name.
            ConfigError: the specification cannot be read, or is of another kind.
        """
        if isinstance(spec, self.base):
            return spec
        if not isinstance(spec, str):
            raise ConfigError(
                f"a {self.kind} is a name ({', '.join(self._makers)}) or an instance of "
                f"{self.base.__name__}, not {type(spec).__name__}"
            )
        name, keywords = parse_spec(spec)
        maker = self[name]
        known = set(inspect.signature(maker).parameters)
        for key in keywords:
            if key not in known:
                raise UnknownNameError(f"key for {self.kind} {name!r}:", key, known)
        try:
            return maker(**keywords)
        except TypeError as error:
            raise ConfigError(f"{self.kind} {spec!r}: {error}") from error


def parse_spec(spec: str) -> tuple[str, dict[str, Value]]:
    """Split ``"name:key=value,key=value"``.

    Raises:
        ConfigError: a pair has no equals sign or an empty side.
    """
    name, _, rest = spec.strip().partition(":")
    keywords: dict[str, Value] = {}
    for pair in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not (key and equals and text):
            raise ConfigError(f"{spec!r}: expected key=value after the colon, found {pair!r}")
        keywords[key.replace("-", "_")] = _value(text)
    return name.strip(), keywords


def _value(text: str) -> Value:
    if "/" in text:
        return tuple(_scalar(part.strip()) for part in text.split("/"))
    return _scalar(text)


def _scalar(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def describe(plugin: object) -> str:
    """An object in words, for messages, the journal and the comparison of the ranks."""
    text = repr(plugin)
    return type(plugin).__name__ if " at 0x" in text else text
