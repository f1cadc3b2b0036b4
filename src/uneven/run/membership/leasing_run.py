"""The base of elastic runs in which each worker takes samples asynchronously."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from uneven.policy.samples.order import Changing, Portion
from uneven.run.membership.elastic_run import ElasticRun

if TYPE_CHECKING:
    from uneven.run.samples.async_sampling.leased_samples import LeasedSamples


class ClaimingElastic(ElasticRun):
    """An elastic run with sample leases."""

    claims: LeasedSamples  # the samples leased by each worker

    @property
    def changing(self) -> Changing:
        return cast("Changing", self.claims)  # it has only the methods that are called in such a run

    @property
    def counted(self) -> Callable[[Portion], int]:
        return self.claims.counted

    def tend(self) -> bool:
        """Process changes of the other members; return whether this worker has no merge under way."""
        raise NotImplementedError
