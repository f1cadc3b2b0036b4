"""Names for plug-ins: ``"static:shares=0.6/0.4"`` becomes ``Static(shares=(0.6, 0.4))``.

A specification is a name, optionally followed by a colon and ``key=value`` pairs with commas between them. A value is a
number, ``true``/``false``, a word, or a list of these with slashes between them. Objects are accepted instead of names.

A wrapper, a maker with a parameter named ``inner``, is followed by its options, if any, and the specification of the
wrapped plug-in: ``"shadow:easgd:alpha=0.3"`` is ``Shadow("easgd:alpha=0.3")``, and ``"shuffle:groups=digits:ma"`` puts
``ma`` into ``shuffle``. Wrappers can be nested. An option at the end that the wrapped plug-in does not know is the
wrapper's: ``"geo:bsp:threshold=0.01"``.

Other distributions add plug-ins by entry points. The group of a registry is named after the last word of its kind:
``uneven.balancers``, ``uneven.policies``. Entry points are searched by ``uneven.runtime.plugins``, only for an
unregistered name or a list of all names.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from uneven.errors import ConfigError, UnknownNameError

T = TypeVar("T")
Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A plug-in of another distribution, found but not imported."""

    name: str  # for specifications
    distribution: str  # name and version of its package ("fast-shares 1.2")
    entry: str  # its entry point, as in its package ("mine = fast_shares:Mine")
    load: Callable[[], Any]  # imports it

    def __str__(self) -> str:
        return f"entry point {self.entry!r} of {self.distribution}"


def _nothing(group: str) -> Iterable[Outside]:
    return ()


find_outside: Callable[[str], Iterable[Outside]] = _nothing
"""The function that lists the plug-ins of a group. This file is pure, so ``uneven`` sets one that searches."""

_in_use: set[str] = set()


def in_use() -> tuple[str, ...]:
    """Return the distributions whose plug-ins this process has loaded, with versions, sorted."""
    return tuple(sorted(_in_use))


class Registry(Mapping[str, Callable[..., T]]):
    """The names of one kind of plug-in.

    As a mapping it also finds names of other distributions; iteration yields only registered ones.

    Args:
        kind: the kind in the user's words, for messages ("balancer").
        base: the class of the plug-ins.
    """

    def __init__(self, kind: str, base: type[T]) -> None:
        self.kind = kind
        self.base = base
        self._makers: dict[str, Callable[..., T]] = {}
        self._notes: dict[str, str] = {}
        self._loaded: dict[str, Callable[..., T]] = {}  # from other distributions

    @property
    def notes(self) -> Mapping[str, str]:
        """The notes of names, for lists; only for names that have one."""
        return self._notes

    def marked(self, spec: str) -> str:
        """Return a specification with the note of its name: ``"rnn:hidden=4 (costly)"``."""
        note = self._notes.get(spec.partition(":")[0].strip())
        return f"{spec} ({note})" if note else spec

    @property
    def group(self) -> str:
        """The entry-point group in which other distributions name plug-ins of this kind ("uneven.balancers")."""
        word = self.kind.split()[-1]
        return f"uneven.{word.removesuffix('y')}ies" if word.endswith("y") else f"uneven.{word}s"

    def register(self, name: str, maker: Callable[..., T], *, note: str = "") -> None:
        """Register ``maker`` under ``name`` in this process.

        Args:
            note: a word for lists, for instance "costly".

        Raises:
            ConfigError: the name is taken.
        """
        if name in self._makers:
            raise ConfigError(f"{self.kind} {name!r} is already registered as {self._makers[name]!r}: use another name")
        self._makers[name] = maker
        if note:
            self._notes[name] = note

    def __getitem__(self, name: str) -> Callable[..., T]:
        maker = self._makers.get(name) or self._loaded.get(name)
        if maker is not None:
            return maker
        outside = self._outside()
        if name not in outside:
            raise UnknownNameError(self.kind, name, [*self._makers, *outside], self._shown(outside))
        self._loaded[name] = self._load(outside[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers or name in self._outside()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def listed(self) -> list[str]:
        """Return every name, as lists show it: ``"rnn (costly)"``, ``"mine (fast-shares 1.2)"``. Raises ConfigError if
        another distribution has a name that is taken."""
        outside = self._outside()
        shown = self._shown(outside)
        return [shown.get(name, name) for name in dict.fromkeys((*self._makers, *outside))]

    def _shown(self, outside: Mapping[str, Outside]) -> dict[str, str]:
        notes = {**{name: one.distribution for name, one in outside.items()}, **self._notes}
        return {name: f"{name} ({note})" for name, note in notes.items()}

    def _outside(self) -> dict[str, Outside]:
        """Return the names and plug-ins of other distributions. Raises ConfigError if a name is taken."""
        found: dict[str, Outside] = {}
        for one in find_outside(self.group):
            taken = found.get(one.name) or (self._makers.get(one.name) if one.name not in self._loaded else None)
            if taken is not None:
                other = taken if isinstance(taken, Outside) else f"{taken.__module__}.{taken.__qualname__}"
                raise ConfigError(
                    f"{one} has a {self.kind} named {one.name!r}, which {other} already has: uninstall "
                    f"{one.distribution}, or ask its authors for another name"
                )
            found[one.name] = one
        return found

    def _load(self, one: Outside) -> Callable[..., T]:
        """Import a plug-in. Raises ConfigError if it cannot be imported or does not make a plug-in."""
        try:
            maker: Callable[..., T] = one.load()
        except (ImportError, AttributeError, SyntaxError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self.kind} {one.name!r} cannot be loaded from the {one} ({why})") from error
        # Errors of the plug-in's own code pass, with a note of their origin.
        except BaseException as error:
            error.add_note(f"while {self.kind} {one.name!r} was loaded from the {one}")
            raise
        if not callable(maker):
            raise ConfigError(
                f"{self.kind} {one.name!r}: the {one} names {maker!r}: let it name a class or a function that "
                f"returns a {self.base.__name__}"
            )
        _in_use.add(one.distribution)
        return maker

    def resolve(self, spec: str | T, **presets: Value) -> T:
        """Return the plug-in of a specification.

        Args:
            presets: options for keys that the specification omits and its maker knows.

        Raises:
            UnknownNameError: unknown name, or unknown key for this name.
            ConfigError: an invalid specification, or a plug-in of another kind.
        """
        if isinstance(spec, self.base):
            return spec
        if not isinstance(spec, str):
            raise ConfigError(
                f"a {self.kind} is a name ({', '.join(self.listed())}) or an instance of "
                f"{self.base.__name__}, not {type(spec).__name__}"
            )
        name, _, rest = (part.strip() for part in spec.partition(":"))
        known = set(inspect.signature(self[name]).parameters)
        inner = ""
        if "inner" in known:
            rest, inner = self._given_back(_split_inner(rest), known)
        elif rest.partition(":")[0].strip() in self._makers:
            raise ConfigError(
                f"{spec!r}: {name!r} does not wrap another {self.kind}; these do: {self._wrappers() or 'none'}"
            )
        _, keywords = parse_spec(f"{name}:{rest}")
        if "inner" in keywords:
            raise ConfigError(f"{spec!r}: write the one that {name!r} wraps after a colon, as in {name}:NAME:key=value")
        keywords = {**{key: value for key, value in presets.items() if key in known}, **keywords}
        if inner:
            keywords["inner"] = inner
        return self.make(name, keywords, spec)

    def _given_back(self, parts: tuple[str, str], known: set[str]) -> tuple[str, str]:
        """Move options at the end that only the wrapper knows to the wrapper.

        ``"geo:bsp:threshold=0.01"`` means ``"geo:threshold=0.01:bsp"``, because bsp has no threshold.
        """
        own, inner = parts
        name, _, options = inner.partition(":")
        if not options or name.strip() not in self:
            return parts
        others = set(inspect.signature(self[name.strip()]).parameters)
        if "inner" in others:
            return parts
        pairs = [pair.strip() for pair in options.split(",")]
        keys = {pair: pair.partition("=")[0].strip().replace("-", "_") for pair in pairs}
        mine = [pair for pair in pairs if keys[pair] in known - others - {"inner"}]
        theirs = ",".join(pair for pair in pairs if pair not in mine)
        return ",".join(filter(None, (own, *mine))), f"{name}:{theirs}" if theirs else name

    def make(self, name: str, keywords: Mapping[str, Value], spec: str | None = None) -> T:
        """Return the plug-in ``name``, made with ``keywords``; ``spec`` is the user's text, for messages.

        Raises:
            UnknownNameError: unknown name, or unknown key for this name.
            ConfigError: the maker rejects the keywords.
        """
        maker = self[name]
        known = set(inspect.signature(maker).parameters)
        for key in keywords:
            if key not in known:
                hint = f" (options of the inner one follow its name, as in {name}:NAME:{key}=…)"
                what = f"key for {self.kind} {name!r}{hint if 'inner' in known else ''}:"
                raise UnknownNameError(what, key, known - {"inner"})
        try:
            made = maker(**keywords)
        except TypeError as error:
            raise ConfigError(f"{self.kind} {spec or name!r}: {error}") from error
        if not isinstance(made, self.base):
            what = f"makes a {type(made).__name__}, which is not a {self.base.__name__}"
            raise ConfigError(f"{self.kind} {spec or name!r}: {maker!r} {what}")
        return made

    def _wrappers(self) -> str:
        return ", ".join(name for name, maker in self._makers.items() if "inner" in inspect.signature(maker).parameters)


def _split_inner(rest: str) -> tuple[str, str]:
    """Return a wrapper's own options, and the specification of the wrapped plug-in; either may be empty."""
    options, _, inner = rest.partition(":")
    return (options, inner.strip()) if "=" in options else ("", rest.strip())


def parse_spec(spec: str) -> tuple[str, dict[str, Value]]:
    """Split ``"name:key=value,key=value"``. Raises ConfigError if a pair has no equals sign or an empty side."""
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
    """Return a plug-in as text, for messages, the journal and the comparison of the ranks."""
    # The default repr has an address, which differs between ranks.
    text = repr(plugin)
    return type(plugin).__name__ if " at 0x" in text else text
