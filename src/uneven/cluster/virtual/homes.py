"""Samples that stay at their site."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from uneven.cluster.virtual.virtual_replicas import SampleOrder
from uneven.errors import ConfigError
from uneven.policy.samples.order import epoch_order

_APART = 1 << 40  # positions between the streams of two sites


class HomeOrder(SampleOrder):
    """A separate endless order per site; the site's workers take its samples one after the other.

    ``sites`` is rank → index of its site in ``numbers``, the sample numbers at each site.

    Raises:
        ConfigError: a worker at a site without samples.
    """

    def __init__(self, numbers: Sequence[Sequence[int]], sites: Mapping[int, int], seed: int) -> None:
        self.numbers = [torch.as_tensor(own, dtype=torch.int64) for own in numbers]
        for rank, site in sites.items():
            if not 0 <= site < len(numbers) or not len(numbers[site]):
                raise ConfigError(
                    f"rank {rank} trains at site {site}, which has no samples: {len(numbers)} sites have some"
                )
        super().__init__(sum(len(own) for own in numbers), seed)
        self.sites = dict(sites)
        self._taken = [0] * len(numbers)
        self._orders: dict[tuple[int, int], Tensor] = {}

    def drawn(self, rank: int, positions: range) -> range:
        """Return the next positions of the worker's site, as many as given."""
        site = self.sites[rank]
        start = site * _APART + self._taken[site]
        self._taken[site] += len(positions)
        return range(start, start + len(positions))

    def samples(self, positions: range) -> Tensor:
        """Return the sample numbers at consecutive positions of one site: int64, shape (positions,)."""
        site, at = divmod(positions.start, _APART)
        own, end, found = self.numbers[site], at + len(positions), []
        while at < end:
            epoch, first = divmod(at, len(own))
            piece = self._order(site, epoch)[first : first + end - at]
            found.append(own[piece])
            at += len(piece)
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)

    def _order(self, site: int, epoch: int) -> Tensor:
        if (site, epoch) not in self._orders:
            # Positions are drawn in order, so an older epoch is rarely needed again.
            self._orders.pop((site, epoch - 2), None)
            order = epoch_order(length=len(self.numbers[site]), seed=self._seed + site, epoch=epoch)
            self._orders[site, epoch] = torch.from_numpy(order)
        return self._orders[site, epoch]
