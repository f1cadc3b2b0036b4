"""How contributions become one: merges, which say what is contributed, how it is combined and what is kept. Pure.

How a model becomes one vector (:mod:`uneven.merge.flat`) and what of it goes into a sum over the members
(:mod:`uneven.merge.shared`) is for those who carry exchanges out, and needs torch.
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
