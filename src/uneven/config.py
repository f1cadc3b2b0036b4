"""What a run is set to: one frozen object, from code, command line and file. Pure.

Explicit code beats the command line beats ``uneven.toml``. Where two of them name the same key with
different values, the winner is used and the conflict is reported, by the session's journal and on the
terminal; nothing is resolved in silence.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uneven.errors import ConfigError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Settings of one run. Every rank must hold the same; they are compared at start.

    Attributes:
        balance: balancer specification, see :mod:`uneven.registry`.
        sync: synchronisation policy specification.
        seed: with the epoch, decides the order of the samples.
        budget: share of an iteration that measuring and deciding may cost, 0 … 1.
        timeout_s: how long an exchange may wait for somebody before it fails.
        nonfinite: "warn" or "raise" on the rank where a NaN or infinity appears first. Only a warning by
            default, because a gradient scaler for float16 meets infinities as a matter of course.
        threads: of each worker, which train its replica side by side; these alone may differ from rank to rank.
    """

    balance: str = "lb-bsp"
    sync: str = "bsp"
    seed: int = 0
    budget: float = 0.005
    timeout_s: float = 300.0
    nonfinite: str = "warn"
    threads: int = 1

    def __post_init__(self) -> None:
        checks = (
            ("budget", 0 < self.budget < 1, "between 0 and 1, for instance 0.005"),
            ("timeout_s", self.timeout_s > 0, "positive, in seconds"),
            ("nonfinite", self.nonfinite in ("raise", "warn"), "'raise' or 'warn'"),
            ("seed", self.seed >= 0, "zero or a positive integer"),
            ("threads", self.threads >= 1, "at least 1"),
        )
        for key, good, want in checks:
            if not good:
                raise ConfigError(f"{key} = {getattr(self, key)!r}: it must be {want}")


_TYPES: dict[str, type] = {"balance": str, "sync": str, "seed": int, "budget": float, "timeout_s": float,
                           "nonfinite": str, "threads": int}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two places named one key with different values."""

    key: str
    winner: str
    used: Any
    loser: str
    ignored: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.winner} says {self.used!r}, {self.loser} says {self.ignored!r}; using {self.used!r}"


def checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The values, if every key exists and has the right type.

    Raises:
        UnknownNameError: offering the nearest key.
        ConfigError: naming source, key and value.
    """
    good: dict[str, Any] = {}
    for key, value in values.items():
        if key not in _TYPES:
            raise UnknownNameError(f"key in {source}:", key, _TYPES)
        want = _TYPES[key]
        if want is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, want) or isinstance(value, bool):
            raise ConfigError(f"{source}: {key} = {value!r} must be of type {want.__name__}")
        good[key] = value
    return good


def merge(layers: Mapping[str, Mapping[str, Any]]) -> tuple[RunConfig, tuple[Conflict, ...]]:
    """Combine layers, strongest first.

    Args:
        layers: where it was said ("Session(...)", "command line", "uneven.toml") → key → value.

    Returns:
        The settings and every conflict, in the order of the layers.
    """
    used: dict[str, tuple[str, Any]] = {}
    conflicts = []
    for source, values in layers.items():
        for key, value in checked(values, source).items():
            if key not in used:
                used[key] = (source, value)
            elif used[key][1] != value:
                winner, best = used[key]
                conflicts.append(Conflict(key, winner, best, source, value))
    return RunConfig(**{key: value for key, (_, value) in used.items()}), tuple(conflicts)


def from_toml(text: str, source: str) -> dict[str, Any]:
    """The ``[run]`` table of a TOML document, checked.

    Raises:
        ConfigError: it is not TOML, or a value is wrong.
        UnknownNameError: a table or key that does not exist.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: {error}") from error
    for table in document:
        if table != "run":
            raise UnknownNameError(f"table in {source}:", table, ["run"])
    return checked(document.get("run", {}), f"{source} [run]")


def to_toml(values: Mapping[str, Any]) -> str:
    """Inverse of :func:`from_toml`."""
    lines = [f"{key} = {_toml(value)}" for key, value in checked(values, "settings").items()]
    return "\n".join(["[run]", *lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)


def fields(config: RunConfig) -> dict[str, Any]:
    """The settings as a plain dictionary."""
    return dataclasses.asdict(config)
