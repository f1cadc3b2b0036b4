"""The choice of an exchange, parsed from the user's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from uneven.errors import ConfigError


@dataclass(frozen=True)
class ExchangeChoice:
    """The exchange (exact, cd-0, cd-r or 0c) and its backward pass."""

    name: str  # as given
    backward: str
    r: int = 1  # epochs until sums arrive; 1 is without delay
    delays: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (rank, rank) → another r for this pair
    faithful: bool = False  # deal copies into bins per worker, as in the released code

    @classmethod
    def of(
        cls, name: str, backward: str | None, delays: Mapping[tuple[int, int], int], faithful: bool = False
    ) -> ExchangeChoice:
        """Parse the user's arguments; raise :class:`ConfigError` if they are unknown or do not go together."""
        known = re.fullmatch(r"exact|cd-0|0c|cd-r(?::r=0*([1-9]\d*))?", name)
        if known is None:
            raise ConfigError(f"exchange={name!r}: give exact, cd-0, cd-r:r=5 or 0c")
        kind, r = name.partition(":")[0], int(known[1] or (5 if name == "cd-r" else 1))
        chosen = backward or ("exact" if kind == "exact" else "identity")
        if chosen not in ("exact", "identity") or (kind == "exact") > (chosen == "exact"):
            raise ConfigError(f"backward={backward!r} with exchange={name!r}: exact, or identity for DistGNN's")
        if chosen == "exact" and kind in ("cd-r", "0c"):
            raise ConfigError(f"backward='exact' with exchange={name!r}: what is late or missing has no exact gradient")
        if delays and (kind != "cd-r" or min(delays.values()) < 1):
            raise ConfigError(
                f"delays={dict(delays)}: give r of 1 or more for pairs of ranks, with exchange='cd-r:r=5'"
            )
        if faithful and kind != "cd-r":
            raise ConfigError(f"faithful=True with exchange={name!r}: it is how cd-r deals into bins; give cd-r:r=5")
        return cls(name, chosen, r, delays, faithful)

    @property
    def exact(self) -> bool:
        """True if each vertex is computed once."""
        return self.name == "exact"

    def bins(self, rank: int, size: int) -> list[int]:
        """Return the number of bins (r) between this worker and each of ``size``; with 1, it waits for the answer."""
        return [self.delays.get((rank, one), self.delays.get((one, rank), self.r)) for one in range(size)]
