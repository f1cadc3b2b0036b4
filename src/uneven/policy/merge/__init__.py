"""Merges: rules that combine the contributions of several workers into one result.

Code that exchanges also needs :mod:`uneven.run.replicas.flat` (a model as one vector, and the content of a sum over the
members), which needs torch.
"""

from uneven.policy.merge.add import Add
from uneven.policy.merge.block_momentum import BlockMomentum
from uneven.policy.merge.elastic_pull import Elastic
from uneven.policy.merge.mean import Mean
from uneven.policy.merge.merge import Combined, Kept, Merge, Payload, merges

merges.register("mean", Mean)
merges.register("add", Add)
merges.register("elastic", Elastic)
merges.register("block-momentum", BlockMomentum)

__all__ = ["Add", "BlockMomentum", "Combined", "Elastic", "Kept", "Mean", "Merge", "Payload", "merges"]
