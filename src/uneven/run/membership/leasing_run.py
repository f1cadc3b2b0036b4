"""An elastic run in which each worker takes samples at its own pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uneven.run.membership.elastic_run import Elastic

if TYPE_CHECKING:
    from uneven.run.samples.async_sampling.leased_samples import ClaimedSamples


class ClaimingElastic(Elastic):
    """See the module.

    Attributes:
        claims: who has which samples.
    """

    claims: ClaimedSamples

    @property
    def changing(self) -> ClaimedSamples:
        return self.claims

    def tend(self) -> bool:
        """Take up what has happened to the others, while this worker waits for them.

        Returns:
            Whether nothing of this worker's is under way to them.
        """
        raise NotImplementedError
