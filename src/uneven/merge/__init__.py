"""Merges: rules that combine the contributions of several workers into one result. Pure.

The conversion of a model to one vector (:mod:`uneven.merge.flat`) and the content of a sum over the members
(:mod:`uneven.merge.shared`) are for the code that exchanges, and need torch.
"""

from uneven.merge.add import Add
from uneven.merge.base import Combined, Kept, Merge, Payload, merges
from uneven.merge.block import BlockMomentum
from uneven.merge.elastic import Elastic
from uneven.merge.mean import Mean

merges.register("mean", Mean)
merges.register("add", Add)
merges.register("elastic", Elastic)
merges.register("block-momentum", BlockMomentum)

__all__ = ["Add", "BlockMomentum", "Combined", "Elastic", "Kept", "Mean", "Merge", "Payload", "merges"]
