"""Which exchange a graph has, from what the user names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from uneven.errors import ConfigError
from uneven.graph.exchange.clones import CloneExchange
from uneven.graph.exchange.exact import RowCarrier

_BACKWARDS = ("exact", "identity")


@dataclass(frozen=True)
class ExchangeChoice:
    """Exact, cd-0, cd-r or 0c, and its backward pass.

    Attributes:
        name: as it was given.
        r: epochs after which sums arrive; 1 is at once.
        delays: (rank, rank) → another r for these two.
        faithful: whether each worker deals its own copies into bins, as in the released code.
    """

    name: str
    backward: str
    r: int = 1
    delays: Mapping[tuple[int, int], int] = field(default_factory=dict)
    faithful: bool = False

    @classmethod
    def of(
        cls, name: str, backward: str | None, delays: Mapping[tuple[int, int], int], faithful: bool = False
    ) -> ExchangeChoice:
        """Read what the user gave.

        Raises:
            ConfigError: no such exchange, or a backward pass or delays that it does not have.
        """
        kind, _, option = name.partition(":")
        r = 5 if kind == "cd-r" and not option else 1
        if option:
            key, _, value = option.partition("=")
            if kind != "cd-r" or key != "r" or not value.isdecimal() or int(value) < 1:
                raise ConfigError(f"exchange={name!r}: give exact, cd-0, cd-r:r=5 or 0c")
            r = int(value)
        if kind not in ("exact", "cd-0", "cd-r", "0c"):
            raise ConfigError(f"exchange={name!r}: give exact, cd-0, cd-r:r=5 or 0c")
        chosen = backward or ("exact" if kind == "exact" else "identity")
        if chosen not in _BACKWARDS or (kind == "exact") > (chosen == "exact"):
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
        """Whether each vertex is computed once."""
        return self.name == "exact"

    @property
    def counts_copies(self) -> bool:
        """Whether the loss is that of all copies, as no gradient reaches them otherwise."""
        return self.backward == "identity"

    def clones(self, carrier: RowCarrier, size: int) -> CloneExchange:
        """The exchange of one worker of ``size``."""
        me = carrier.line.rank if carrier.line is not None else 0
        bins = [self.delays.get((me, one), self.delays.get((one, me), self.r)) for one in range(size)]
        return CloneExchange(carrier, bins, backward=self.backward, none=self.name == "0c", faithful=self.faithful)
