"""What sites send each other, in whole models."""

from __future__ import annotations

from collections.abc import Mapping

from uneven.core.actions import Exchange


class ModelTraffic:
    """Counts what the first worker of each site sends to other sites. What stays inside a site does not count.

    Args:
        sites: rank → its site.

    Attributes:
        models: that a site has sent to others, mean over the sites.
    """

    def __init__(self, sites: Mapping[int, int]) -> None:
        self.models = 0.0
        self._sites = dict(sites)
        self._speaks = {site: rank for rank, site in sorted(sites.items(), reverse=True)}

    def sends(self, rank: int, exchange: Exchange, part: float) -> None:
        """A worker contributes to an exchange.

        Args:
            part: of the whole vector's bytes, where entries are picked.
        """
        if self._speaks[self._sites[rank]] == rank:
            self.models += self._sent(exchange, part) / len(self._speaks)

    def visit(self) -> None:
        """The model of each site goes to another one."""
        self.models += 1.0

    @property
    def of_bsp(self) -> float:
        """What a site sends in a step under BSP."""
        return 2 * (len(self._speaks) - 1) / len(self._speaks)

    def _sent(self, exchange: Exchange, part: float) -> float:
        """Entries go to each other voice; whatever is averaged goes round in a ring."""
        voices = len({self._sites[rank] for rank in exchange.members})
        return part * (voices - 1) if exchange.select is not None else 2 * (voices - 1) / voices
