"""The settings of a run: one frozen object, from code, command line and file.

Code overrides the command line, which overrides ``uneven.toml``. If two of them give a key different values, the
stronger one applies, and the conflict is reported on the terminal and in the journal.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from uneven.errors import ConfigError
from uneven.policy.core.plain import Range
from uneven.policy.core.tables import check, convert, document, hints, known, located, quoted, table

LONGEST_S = 1e6  # Eleven days. Socket waits count milliseconds in 32 bits, which is twice as long.

MOST_THREADS = 1_000

_ABOVE_0, _BELOW_1 = math.ulp(0.0), math.nextafter(1.0, 0.0)  # A range includes its bounds.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The settings of one run. They must be equal on all ranks, which is checked at the start."""

    balance: str = "lb-bsp"  # balancer specification, see :mod:`uneven.policy.core.registry`
    sync: str = "bsp"  # synchronisation policy specification
    # with the epoch, determines the order of the samples
    seed: Annotated[int, Range(0, 2**63 - 1, "zero or a positive integer of at most 63 bits")] = 0
    # part of an iteration that measuring and deciding may cost
    overhead_budget: Annotated[float, Range(_ABOVE_0, _BELOW_1, "between 0 and 1, for instance 0.005")] = 0.005
    # longest wait of an exchange for other workers
    timeout_s: Annotated[float, Range(_ABOVE_0, LONGEST_S, f"positive, and at most {LONGEST_S:,.0f} seconds")] = 300.0
    # the action on the rank where a NaN or infinity appears first. The default is a warning, because a gradient scaler
    # for float16 produces infinities regularly.
    nonfinite: Literal["raise", "warn"] = "warn"
    # of each worker, which train its replica in parallel
    threads: Annotated[int, Range(1, MOST_THREADS, f"at least 1 and at most {MOST_THREADS:,}")] = 1
    # keep the memory that a step frees for the next one, if the model is on the CPU and the C library is glibc; see
    # :mod:`uneven.run.start.heap`
    keep_freed_memory: bool = True

    def __post_init__(self) -> None:
        check(self, "")
        if self.nonfinite not in ("raise", "warn"):
            raise ConfigError(f"nonfinite = {self.nonfinite!r}: it must be 'raise' or 'warn'")


OF_ONE_MACHINE = frozenset({"threads", "keep_freed_memory"})  # Settings that may differ between ranks


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two sources give one key different values."""

    key: str
    winner: str
    used: Any
    loser: str
    ignored: Any

    def __str__(self) -> str:
        return f"{self.key} = {self.used!r} ({self.winner}) overrides {self.ignored!r} ({self.loser})"


def checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the values, after a check of keys and types. Raises UnknownNameError for an unknown key, ConfigError with
    source, key and value for a wrong value."""
    known(values, hints(RunConfig), f"key in {source}:")
    good: dict[str, Any] = {}
    for key, value in values.items():
        with located(f"{source}: {key}"):
            good[key] = convert(hints(RunConfig)[key], value)
    return good


def merge(layers: Mapping[str, Mapping[str, Any]]) -> tuple[RunConfig, tuple[Conflict, ...]]:
    """Combine layers (source, such as "command line", → key → value), the strongest first. Return the settings and
    every conflict, in the order of the layers."""
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


def from_toml(data: bytes | str, source: str) -> dict[str, Any]:
    """Return the ``[run]`` table of a TOML document, checked. Raises ConfigError for invalid TOML or a wrong value,
    UnknownNameError for an unknown table or key."""
    found = document(data, source)
    known(found, ["run"], f"table in {source}:")
    with located(f"{source}: [run]"):
        run = table(found.get("run", {}))
    return checked(run, f"{source} [run]")


def to_toml(values: Mapping[str, Any]) -> str:
    """Return the TOML text of settings, the inverse of :func:`from_toml`."""
    good = checked(values, "settings").items()
    lines = [f"{key} = {_written(value)}" for key, value in good]
    return "\n".join(["[run]", *lines, ""])


def _written(value: Any) -> str:
    # Python's True is TOML's true. A bool is an int for Python, so this comes first.
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else repr(value)


def fields(config: RunConfig) -> dict[str, Any]:
    return dataclasses.asdict(config)
