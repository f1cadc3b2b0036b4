"""The traffic between sites, in whole models."""

from collections.abc import Mapping

from uneven.errors import ConfigError
from uneven.policy.core.actions import Exchange


class ModelTraffic:
    """Counts what the first worker of each site sends to other sites, in models, mean over the sites (rank → site)."""

    def __init__(self, sites: Mapping[int, int]) -> None:
        self.models = 0.0
        self._sites = dict(sites)
        self._speaks = {site: rank for rank, site in sorted(sites.items(), reverse=True)}

    def sends(self, rank: int, exchange: Exchange, part: float) -> None:
        """Count a worker's contribution; ``part`` is that of the selected entries in the whole vector's bytes.

        Raises:
            ConfigError: the exchange uses hubs.
        """
        if exchange.far.hubs:
            raise ConfigError("traffic that hubs forward is not counted by site: compare geo without hubs")
        if self._speaks[self._sites[rank]] == rank:
            self.models += self._sent(exchange, part) / len(self._speaks)

    def visit(self, models: float) -> None:
        """Add models that each site has sent for an evaluation elsewhere."""
        self.models += models

    @property
    def of_bsp(self) -> float:
        """Models that a site sends in a step under BSP."""
        return 2 * (len(self._speaks) - 1) / len(self._speaks)

    def _sent(self, exchange: Exchange, part: float) -> float:
        # Selected entries go to each other site; a whole mean or sum goes round a ring.
        voices = len({self._sites[rank] for rank in exchange.members})
        picked = exchange.select is not None and not exchange.select.whole
        return part * (voices - 1) if picked else 2 * (voices - 1) / voices
