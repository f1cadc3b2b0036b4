"""Names for plug-ins: ``"static:shares=0.6/0.4"`` becomes ``Static(shares=(0.6, 0.4))``.

A specification is a name, then optionally a colon and ``key=value`` pairs separated by commas. A value is
a number, ``true``/``false``, a word, or a list of these separated by slashes. An object in place of a name
is passed through, so every place that takes a name takes an object too.

A wrapper, that is a maker with a parameter named ``inner``, is followed by the specification of what it holds,
after its own options if it has any: ``"shadow:easgd:alpha=0.3"`` is ``Shadow("easgd:alpha=0.3")``, and
``"shuffle:groups=digits:ma"`` puts ``ma`` into ``shuffle``. Wrappers can hold wrappers.
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

    def resolve(self, spec: str | T, **presets: Value) -> T:
        """The object that ``spec`` stands for.

        Args:
            presets: options that count where the specification leaves them open and its name knows them.

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
        name, _, rest = (part.strip() for part in spec.partition(":"))
        known = set(inspect.signature(self[name]).parameters)
        inner = ""
        if "inner" in known:
            rest, inner = _split_inner(rest)
        elif rest.partition(":")[0].strip() in self._makers:
            raise ConfigError(f"{spec!r}: {name!r} holds no other {self.kind}; these do: {self._wrappers() or 'none'}")
        _, keywords = parse_spec(f"{name}:{rest}")
        if "inner" in keywords:
            raise ConfigError(f"{spec!r}: write what {name!r} holds after a colon, as in {name}:NAME:key=value")
        keywords = {**{key: value for key, value in presets.items() if key in known}, **keywords}
        if inner:
            keywords["inner"] = inner
        return self.make(name, keywords, spec)

    def make(self, name: str, keywords: Mapping[str, Value], spec: str | None = None) -> T:
        """What ``name`` stands for, made with ``keywords``; ``spec`` is how the user wrote it, for messages.

        Raises:
            UnknownNameError: no such name, or no such key for this name.
            ConfigError: the maker does not take them so.
        """
        maker = self[name]
        known = set(inspect.signature(maker).parameters)
        for key in keywords:
            if key not in known:
                hint = f" (options of what it holds follow the inner name, as in {name}:NAME:{key}=…)"
                what = f"key for {self.kind} {name!r}{hint if 'inner' in known else ''}:"
                raise UnknownNameError(what, key, known - {"inner"})
        try:
            return maker(**keywords)
        except TypeError as error:
            raise ConfigError(f"{self.kind} {spec or name!r}: {error}") from error

    def _wrappers(self) -> str:
        return ", ".join(name for name, maker in self._makers.items() if "inner" in inspect.signature(maker).parameters)


def _split_inner(rest: str) -> tuple[str, str]:
    """A wrapper's own options, and the specification of what it holds; either may be empty."""
    options, _, inner = rest.partition(":")
    return (options, inner.strip()) if "=" in options else ("", rest.strip())


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
