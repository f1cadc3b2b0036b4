"""Which entries of a vector travel, what is kept of the others, and as which bytes. Pure.

A :class:`Selection` picks entries, an :class:`Accumulator` keeps what was not sent until it is, :func:`pack` and
:func:`unpack` make bytes of it and back.
"""

from uneven.entries.accumulator import Accumulator
from uneven.entries.bandwidth import BandwidthControl
from uneven.entries.barrier import Backlog, Barrier
from uneven.entries.pack import HEADER_BYTES, Index, pack_places, packed_bytes, unpack, unpack_places
from uneven.entries.pack import pack as pack
from uneven.entries.picked import Picked
from uneven.entries.select import Selection, Significant, TopK, estimated_bytes

__all__ = [
    "HEADER_BYTES",
    "Accumulator",
    "Backlog",
    "BandwidthControl",
    "Barrier",
    "Index",
    "Picked",
    "Selection",
    "Significant",
    "TopK",
    "estimated_bytes",
    "pack",
    "pack_places",
    "packed_bytes",
    "unpack",
    "unpack_places",
]
