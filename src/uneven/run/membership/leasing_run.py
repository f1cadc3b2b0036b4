"""The base of elastic runs in which each worker takes samples asynchronously."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uneven.run.membership.elastic_run import Elastic

if TYPE_CHECKING:
    from uneven.run.samples.async_sampling.leased_samples import LeasedSamples


class ClaimingElastic(Elastic):
    """An elastic run with sample leases."""

    claims: LeasedSamples  # the samples leased by each worker

    @property
    def changing(self) -> LeasedSamples:
        return self.claims

    def tend(self) -> bool:
        """Process changes of the other members; return whether this worker has no merge under way."""
        raise NotImplementedError
