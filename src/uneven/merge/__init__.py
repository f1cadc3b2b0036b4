"""Merges: rules that combine the contributions of several workers into one result. Pure.

Code that exchanges also needs :mod:`uneven.merge.flat` (a model as one vector) and :mod:`uneven.merge.shared` (the
content of a sum over the members); both need torch.
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
