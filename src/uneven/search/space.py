"""What a search may choose from: numbers in a range, whole numbers, choices. Pure.

A value is a number, a word, true, false or nothing, so that all of it can be written down and typed in a terminal; a
class or function to choose from is named by a word, and looked up by the training function.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from uneven.errors import ConfigError

Plain = int | float | str | bool | None
Params = Mapping[str, Plain]


class Domain(ABC):
    """What one setting may be."""

    @abstractmethod
    def sample(self, draw: Random) -> Plain:
        """One of the values, at random."""

    @abstractmethod
    def holds(self, value: object) -> bool:
        """Whether it is one of the values."""

    @abstractmethod
    def explore(self, value: Plain, draw: Random, resample: float, factors: Sequence[float]) -> Plain:
        """A value near this one, or with a probability of ``resample`` a new one: what PBT does to a good setting."""

    @abstractmethod
    def to_plain(self) -> dict[str, Any]:
        """As JSON has it; :func:`domain_of` reads it."""


@dataclass(frozen=True, slots=True)
class FloatRange(Domain):
    """A number between ``low`` and ``high``, both included; with ``log`` each order of magnitude is as likely."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _checked_range(self.low, self.high, self.log)

    def sample(self, draw: Random) -> float:
        """See above."""
        if self.log:
            drawn = math.exp(draw.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = draw.uniform(self.low, self.high)
        return min(self.high, max(self.low, drawn))

    def holds(self, value: object) -> bool:
        """A number within."""
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def explore(self, value: Plain, draw: Random, resample: float, factors: Sequence[float]) -> float:
        """Times one of the factors, and back into the range (Ray leaves it outside)."""
        if draw.random() < resample or not isinstance(value, int | float):
            return self.sample(draw)
        return min(self.high, max(self.low, float(value * draw.choice(factors))))

    def to_plain(self) -> dict[str, Any]:
        """See above."""
        return {"kind": "float", "low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, slots=True)
class IntRange(Domain):
    """A whole number between ``low`` and ``high``, both included."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            if not isinstance(bound, int) or isinstance(bound, bool):
                raise ConfigError(f"a range of whole numbers from {self.low!r} to {self.high!r}: give whole numbers")
        _checked_range(self.low, self.high, self.log)

    def sample(self, draw: Random) -> int:
        """See above."""
        if self.log:
            drawn = math.exp(draw.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
            return min(self.high, max(self.low, round(drawn)))
        return draw.randint(self.low, self.high)

    def holds(self, value: object) -> bool:
        """A whole number within."""
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def explore(self, value: Plain, draw: Random, resample: float, factors: Sequence[float]) -> int:
        """Times one of the factors, rounded, and back into the range."""
        if draw.random() < resample or not isinstance(value, int | float):
            return self.sample(draw)
        return min(self.high, max(self.low, round(value * draw.choice(factors))))

    def to_plain(self) -> dict[str, Any]:
        """See above."""
        return {"kind": "int", "low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, slots=True)
class Choices(Domain):
    """One of several values; with ``every`` each of them is tried with each of the others' (a grid)."""

    values: tuple[Plain, ...]
    every: bool = False

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("a choice among nothing: give at least one value")
        for value in self.values:
            if not isinstance(value, int | float | str | bool | None) or value != value:
                raise ConfigError(
                    f"a choice holds {value!r}: give numbers, words, True, False or None, and let the training "
                    f"function look up what a word stands for"
                )
        if len({(type(value), value) for value in self.values}) < len(self.values):
            raise ConfigError(f"a choice among {list(self.values)} names a value twice: name each once")

    def sample(self, draw: Random) -> Plain:
        """See above."""
        return draw.choice(self.values)

    def holds(self, value: object) -> bool:
        """One of them, of the same type."""
        return any(type(value) is type(one) and value == one for one in self.values)

    def explore(self, value: Plain, draw: Random, resample: float, factors: Sequence[float]) -> Plain:
        """The value before or behind it; the first and the last may stay."""
        if draw.random() < resample or not self.holds(value):
            return self.sample(draw)
        place = self.values.index(value) + draw.choice((-1, 1))
        return self.values[min(max(place, 0), len(self.values) - 1)]

    def to_plain(self) -> dict[str, Any]:
        """See above."""
        return {"kind": "choice", "values": list(self.values), "every": self.every}


def uniform(low: float, high: float) -> FloatRange:
    """A number between the two."""
    return FloatRange(low, high)


def log(low: float, high: float) -> FloatRange:
    """A number between the two, each order of magnitude as likely as the others."""
    return FloatRange(low, high, log=True)


def integer(low: int, high: int, *, log: bool = False) -> IntRange:
    """A whole number between the two, both included."""
    return IntRange(low, high, log)


def choice(*values: Plain) -> Choices:
    """One of these."""
    return Choices(values)


def grid(*values: Plain) -> Choices:
    """Each of these, together with each value of the other grids."""
    return Choices(values, every=True)


class Space(Mapping[str, Domain]):
    """Name → what it may be; and settings that are the same in every trial.

    Args:
        settings: name → a domain, or a plain value for a setting that stays.

    Attributes:
        constants: the settings that stay.

    Raises:
        ConfigError: a name that is empty or no word, or a value that is neither.
    """

    def __init__(self, settings: Mapping[str, Domain | Plain]) -> None:
        self.constants: dict[str, Plain] = {}
        self._domains: dict[str, Domain] = {}
        for name, what in settings.items():
            if not isinstance(name, str) or not name or "=" in name or not name.isprintable():
                raise ConfigError(f"the space names a setting {name!r}: give a word without an equals sign")
            if isinstance(what, Domain):
                self._domains[name] = what
            elif isinstance(what, int | float | str | bool | None):
                self.constants[name] = what
            else:
                raise ConfigError(
                    f"the space says that {name!r} is {what!r}: give search.uniform, log, integer, choice or grid, or "
                    f"a plain value; nested settings get names of their own, such as 'optimizer.lr'"
                )

    def __getitem__(self, name: str) -> Domain:
        return self._domains[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __len__(self) -> int:
        return len(self._domains)

    def checked(self, changes: Mapping[str, object]) -> dict[str, Plain]:
        """Settings that a person asks for.

        Raises:
            ConfigError: no such setting, or a value that it cannot have.
        """
        found: dict[str, Plain] = {}
        for name, value in changes.items():
            if name not in self._domains and name not in self.constants:
                known = ", ".join([*self._domains, *self.constants]) or "none"
                raise ConfigError(f"there is no setting {name!r}; there are: {known}")
            if not isinstance(value, int | float | str | bool | None):
                raise ConfigError(f"{name}={value!r}: give a number, a word, true or false")
            if name in self._domains and not self._domains[name].holds(value):
                raise ConfigError(f"{name}={value!r} is not in the space, which says {self._domains[name]}")
            found[name] = value
        return found

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"domains": {name: one.to_plain() for name, one in self.items()}, "constants": self.constants}


def domain_of(said: Mapping[str, Any]) -> Domain:
    """A domain from what ``to_plain`` gave.

    Raises:
        ConfigError: no such kind.
    """
    match said.get("kind"):
        case "float":
            return FloatRange(said["low"], said["high"], said["log"])
        case "int":
            return IntRange(said["low"], said["high"], said["log"])
        case "choice":
            return Choices(tuple(said["values"]), said["every"])
    raise ConfigError(f"a setting of kind {said.get('kind')!r}: there are float, int and choice")


def _checked_range(low: float, high: float, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"a range from {low} to {high}: both ends must be finite numbers")
    if not low < high:
        raise ConfigError(f"a range from {low} to {high} is empty: the first must be smaller than the second")
    if log and not low > 0:
        raise ConfigError(f"a logarithmic range from {low} to {high}: it must begin above zero")
