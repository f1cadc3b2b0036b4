"""Carries the sum of vectors: over everybody, over a group of the moment, or over parties that speak with one voice.

Everybody is an all-reduce. A group of the moment, which may be another one in each exchange, is a ring of its own
messages between neighbours on the process group of all: process groups made for every group would be without number
where groups are drawn at random, and torch names those that only the members make by how many a process has made, so
members who had been in different numbers of groups would never meet. In either case each member gets the same bits,
since every piece is added up in one place and handed on.
"""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from uneven.errors import PeerError
from uneven.run.lines.groups import new_group
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import Traffic, bytes_of_sum

Members = tuple[int, ...]


class VectorCarrier:
    """One thread's line for vectors. Every worker makes its carriers in the same order, and uses each in one thread.

    Args:
        roll: names the missing.
        timeout_s: how long an exchange may wait for somebody.
        traffic: counts what passes.

    Raises:
        PeerError: the group could not be formed in time.
    """

    def __init__(self, roll: RollCall, timeout_s: float, traffic: Traffic) -> None:
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._limit = timedelta(seconds=timeout_s)
        self._roll = roll
        self._traffic = traffic
        # Works of the newest exchange are kept alive, so that it is never gloo's own thread that destroys one; see
        # uneven.run.gradients.carrier for what could hang otherwise.
        self._kept: list[dist.Work] = []
        with roll.waiting("forming the group for parameters"):
            self._group: Any = new_group(timeout_s=timeout_s)

    def total(
        self,
        vector: torch.Tensor,
        members: Members,
        parties: tuple[Members, ...] = (),
        what: str = "the exchange of parameters",
        place: str = "",
    ) -> int:
        """Replace ``vector`` by its sum over ``members``, or over the first of each of ``parties``. Waits.

        Args:
            vector: one axis, of the same length and type on every member.
            what: the exchange, for the message.
            place: see :meth:`RollCall.waiting`.

        Returns:
            Bytes that this worker sent for it, as counted from the shape of the exchange.

        Raises:
            PeerError: somebody did not take part in time, or is gone; the message says who.
        """
        self._kept.clear()
        try:
            with self._roll.waiting(what, place), self._traffic.waiting():
                sent_bytes = self._total(vector, members, parties)
        except PeerError as failure:
            # Who waits for this worker in turn hears of it when the connections end, not by its time-out. A work in a
            # frame of the traceback would keep them.
            traceback.clear_frames(failure.__cause__.__traceback__ if failure.__cause__ is not None else None)
            self.close()
            raise
        self._traffic.sent_bytes += sent_bytes
        return sent_bytes

    def _total(self, vector: torch.Tensor, members: Members, parties: tuple[Members, ...]) -> int:
        if parties:
            return self._speak(vector, parties)
        if len(members) == 1:
            return 0
        if len(members) == self._size:
            self._finish([dist.all_reduce(vector, group=self._group, async_op=True)])
            return bytes_of_sum(vector.nbytes, self._size)
        return self._ring(vector, members)

    def _speak(self, vector: torch.Tensor, parties: tuple[Members, ...]) -> int:
        """The first of each party adds up with the other firsts, and hands the sum on inside."""
        party = next(party for party in parties if self._rank in party)
        speakers = tuple(party[0] for party in parties)
        if self._rank != party[0]:
            self._finish([dist.irecv(vector, party[0], group=self._group)])
            return 0
        sent = self._total(vector, speakers, ())
        self._finish([dist.isend(vector, rank, group=self._group) for rank in party[1:]])
        return sent + (len(party) - 1) * vector.nbytes

    def _ring(self, vector: torch.Tensor, members: Members) -> int:
        """Reduce-scatter, then all-gather: m − 1 pieces of 1/m each to the next member, twice."""
        count, place = len(members), members.index(self._rank)
        pieces = list(vector.tensor_split(count))
        following, previous = members[(place + 1) % count], members[place - 1]
        room, sent = torch.empty_like(pieces[0]), 0
        for turn in range(2 * count - 2):
            out = pieces[(place - turn) % count if turn < count - 1 else (place + 1 - (turn - count + 1)) % count]
            into = pieces[(place - turn - 1) % count if turn < count - 1 else (place - (turn - count + 1)) % count]
            heard = room[: len(into)] if turn < count - 1 else into
            # Asked for before it sends: where two send to each other first, gloo uses one direction after the other.
            works = [dist.irecv(heard, previous, group=self._group)] if len(heard) else []
            if len(out):
                works.append(dist.isend(out, following, group=self._group))
            self._finish(works)
            if turn < count - 1:
                into += heard
            sent += out.nbytes
        return sent

    def _finish(self, works: list[dist.Work | None]) -> None:
        for work in works:
            if work is not None:
                self._kept.append(work)
                work.wait(self._limit)

    def close(self) -> None:
        self._kept.clear()
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None
