"""Sparse exchange: selection of the entries of a vector to send, error feedback for the others, and serialization.
Pure.

A :class:`Selection` picks entries, an :class:`Accumulator` keeps the rest until it is sent, and :func:`pack` and
:func:`unpack` convert to bytes and back.
"""

from uneven.policy.select.barrier import Backlog, Barrier
from uneven.policy.select.pack import HEADER_BYTES, Index, pack_places, packed_bytes, unpack, unpack_places
from uneven.policy.select.pack import pack as pack
from uneven.policy.select.picked import Picked
from uneven.policy.select.select import Accumulator, BandwidthControl, Selection, Significant, TopK, estimated_bytes
