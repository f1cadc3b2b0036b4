"""Define the space of settings: numbers in a range, integers, choices.

A value is a number, a word, true, false or None, so that it can be logged and typed in a terminal. A class or function
is represented by a word, which the training function looks up.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, ClassVar

from uneven.errors import ConfigError
from uneven.policy.core.tables import shown

Plain = int | float | str | bool | None
_MOST = 1e300  # the width of a range stays finite
Params = Mapping[str, Plain]


class Domain(ABC):
    """The values of one setting."""

    @abstractmethod
    def sample(self, draw: Random) -> Plain:
        """Return a random value."""

    @abstractmethod
    def holds(self, value: object) -> bool:
        """Return whether `value` is one of the values."""

    @abstractmethod
    def explore(self, value: Plain, draw: Random, resample: float, factors: Sequence[float]) -> Plain:
        """Return a value near this one, or with probability ``resample`` a random one, as PBT does."""

    @abstractmethod
    def to_plain(self) -> dict[str, Any]:
        """Return a description for JSON; :func:`domain_of` reads it."""


class _Range(Domain):
    """The common base of both ranges of numbers."""

    kind: ClassVar[str]
    low: float
    high: float
    log: bool
    step: float | None

    @abstractmethod
    def _within(self, value: float) -> Plain:
        """The nearest value of the range."""

    def explore(self, value: Plain, draw: Random, resample: float, factors: Sequence[float]) -> Plain:
        """Multiply by one of the factors and return the nearest value of the range (Ray leaves it outside)."""
        if draw.random() < resample or not isinstance(value, int | float):
            return self.sample(draw)
        return self._within(value * draw.choice(factors))

    def to_plain(self) -> dict[str, Any]:
        said = {"kind": self.kind, "low": self.low, "high": self.high, "log": self.log}
        return said if self.step is None or (self.kind == "int" and self.step == 1) else {**said, "step": self.step}


@dataclass(frozen=True)
class FloatRange(_Range):
    """A number from ``low`` to ``high``, both included; with ``log`` each order of magnitude has the same probability.

    With ``step`` it is ``low`` plus an integer number of steps; ``high`` becomes the last of these.
    """

    kind: ClassVar[str] = "float"
    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        _checked_range(self.low, self.high, self.log, self.step)
        if self.step is not None:
            # Decimal arithmetic, because 0.3 // 0.1 is 2 in floating point.
            low, high, step = (Decimal(str(one)) for one in (self.low, self.high, self.step))
            object.__setattr__(self, "high", float(low + (high - low) // step * step))

    def sample(self, draw: Random) -> float:
        if self.log:
            return self._within(math.exp(draw.uniform(math.log(self.low), math.log(self.high))))
        # Half a step more at both ends, so that rounding gives the ends the same probability as other values.
        half = (self.step or 0.0) / 2
        return self._within(draw.uniform(self.low - half, self.high + half))

    def _within(self, value: float) -> float:
        if self.step is not None:
            value = self.low + round((value - self.low) / self.step) * self.step
        return float(min(self.high, max(self.low, value)))

    def holds(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            return False
        return self.step is None or abs(value - self._within(value)) < 1e-8 * self.step


@dataclass(frozen=True)
class IntRange(_Range):
    """An integer between ``low`` and ``high``, both included; ``step`` as in :class:`FloatRange`."""

    kind: ClassVar[str] = "int"
    low: int
    high: int
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in (self.low, self.high, self.step)):
            said = ", ".join(shown(one) for one in (self.low, self.high, self.step))
            raise ConfigError(f"a range of integers with low, high, step = {said}: give integers")
        _checked_range(self.low, self.high, self.log, self.step if self.step != 1 else None)
        object.__setattr__(self, "high", self.high - (self.high - self.low) % self.step)

    def sample(self, draw: Random) -> int:
        if self.log:
            # Half an integer more at both ends, so that rounding gives the ends their full probability.
            return self._within(math.exp(draw.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5))))
        return self.low + self.step * draw.randint(0, (self.high - self.low) // self.step)

    def _within(self, value: float) -> int:
        found = min(self.high, max(self.low, round(value)))
        return found if self.step == 1 else self.low + round((found - self.low) / self.step) * self.step

    def holds(self, value: object) -> bool:
        inside = isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high
        return inside and (value - self.low) % self.step == 0  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Choices(Domain):
    """One of several values; with ``every``, each is tried with each value of the others (a grid)."""

    values: tuple[Plain, ...]
    every: bool = False

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("a choice without values: give at least one")
        for value in self.values:
            if not isinstance(value, int | float | str | bool | None) or value != value:
                raise ConfigError(
                    f"a choice has {shown(value)}: give numbers, texts, True, False or None, and let the training "
                    "function map texts to objects"
                )
        if len(set(self.values)) < len(self.values):  # 1, 1.0 and True are equal too
            raise ConfigError(f"a choice among {shown(list(self.values))} has a value twice: give each once")

    def sample(self, draw: Random) -> Plain:
        return draw.choice(self.values)

    def holds(self, value: object) -> bool:
        """Return whether `value` is one of the values, with the same type."""
        # 1, 1.0 and True are equal in Python, but are different settings.
        return any(type(value) is type(one) and value == one for one in self.values)

    def explore(self, value: Plain, draw: Random, resample: float, factors: Sequence[float]) -> Plain:
        """Return the previous or next value; the first and the last may stay."""
        if draw.random() < resample or not self.holds(value):
            return self.sample(draw)
        place = self.values.index(value) + draw.choice((-1, 1))
        return self.values[min(max(place, 0), len(self.values) - 1)]

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "choice", "values": list(self.values), "every": self.every}


def uniform(low: float, high: float) -> FloatRange:
    """Return a setting that is a number from ``low`` to ``high``."""
    return FloatRange(low, high)


def loguniform(low: float, high: float) -> FloatRange:
    """Return a setting from ``low`` to ``high`` in which each order of magnitude has the same probability."""
    return FloatRange(low, high, log=True)


def integer(low: int, high: int, *, log: bool = False) -> IntRange:
    """Return a setting that is an integer from ``low`` to ``high``, both included; ``log`` as in :func:`log`."""
    return IntRange(low, high, log)


def choice(*values: Any) -> Choices:
    """Return a setting that is one of ``values``, or of the values of one list."""
    return Choices(_listed(values))


def grid(*values: Any) -> Choices:
    """Return a setting that tries each of ``values`` with each value of the other grids."""
    return Choices(_listed(values), every=True)


def _listed(values: Sequence[Any]) -> tuple[Plain, ...]:
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], list | tuple | range) else tuple(values)


class Space(Mapping[str, Domain]):
    """The settings of a search: name → domain, and constants.

    Args:
        settings: name → a domain, or a plain value for a constant.

    Attributes:
        constants: the constant settings.

    Raises:
        ConfigError: a name is empty or not a word, or a value is not a domain and not plain.
    """

    def __init__(self, settings: Mapping[str, Domain | Plain]) -> None:
        self.constants: dict[str, Plain] = {}
        self._domains: dict[str, Domain] = {}
        for name, what in settings.items():
            if not isinstance(name, str) or not name or "=" in name or not name.isprintable():
                raise ConfigError(f"the space has a setting {name!r}: give a name without an equals sign")
            if isinstance(what, Domain):
                self._domains[name] = what
            elif isinstance(what, int | float | str | bool | None):
                self.constants[name] = what
            else:
                raise ConfigError(
                    f"the space has {name!r} as {what!r}: give search.uniform, loguniform, integer, choice or grid, or "
                    "a plain value; give nested settings names such as 'optimizer.lr'"
                )

    def __getitem__(self, name: str) -> Domain:
        return self._domains[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __len__(self) -> int:
        return len(self._domains)

    def checked(self, changes: Mapping[str, object], *, open_: bool = False) -> dict[str, Plain]:
        """Check settings that the user gives, and return them.

        Args:
            changes: name → value.
            open_: allow names that the space does not have, because the training function may ask for them.

        Raises:
            ConfigError: an unknown setting, or a value outside its domain.
        """
        found: dict[str, Plain] = {}
        for name, value in changes.items():
            if not isinstance(name, str) or not (open_ or name in self._domains or name in self.constants):
                known = ", ".join([*self._domains, *self.constants]) or "none"
                raise ConfigError(f"no setting {name!r}; give one of {known}")
            if not isinstance(value, int | float | str | bool | None):
                raise ConfigError(f"{name}={value!r}: give a number, a text, true or false")
            if name in self._domains and not self._domains[name].holds(value):
                raise ConfigError(f"{name}={value!r} is not in the space: give a value in {self._domains[name]}")
            found[name] = value
        return found

    def to_plain(self) -> dict[str, Any]:
        """Return a description for JSON."""
        return {"domains": {name: one.to_plain() for name, one in self.items()}, "constants": self.constants}


def domain_of(said: Mapping[str, Any]) -> Domain:
    """Return the domain of a description by ``to_plain``. Raises `ConfigError` for an unknown kind."""
    match said.get("kind"):
        case "float":
            return FloatRange(said["low"], said["high"], said["log"], said.get("step"))
        case "int":
            return IntRange(said["low"], said["high"], said["log"], said.get("step", 1))
        case "choice":
            return Choices(tuple(said["values"]), said["every"])
    raise ConfigError(f"a setting of kind {said.get('kind')!r}: give float, int or choice")


def _checked_range(low: float, high: float, log: bool, step: float | None) -> None:
    said = f"a range from {shown(low)} to {shown(high)}"
    for one in (low, high, *([] if step is None else [step])):
        if not isinstance(one, int | float) or isinstance(one, bool) or not abs(one) <= _MOST:
            raise ConfigError(f"{said}: give finite numbers, at most {_MOST:g}, not {shown(one)}")
    if not low <= high:
        raise ConfigError(f"{said} is empty: give low <= high")
    if log and not low > 0:
        raise ConfigError(f"a logarithmic range from {low} to {high}: give a lower end above 0")
    if step is not None and (log or not step > 0 or (high - low) / step > 2**53):
        raise ConfigError(f"{said} in steps of {step}: " + ("leave out step or log" if log else "give a larger step"))
