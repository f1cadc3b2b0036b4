"""Sums of vectors over all workers, over a group that may differ in each exchange, or over the speakers of parties.

In each case all members get bit-identical results, because every piece is summed in one place and forwarded.
"""

import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from uneven.errors import PeerError
from uneven.run.lines.communicator import RoundPlace, SummedInPlace, Weight, unscaled
from uneven.run.lines.group_lines import new_group
from uneven.run.lines.in_step import mark, out_of_step
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import bytes_of_sum

Members = tuple[int, ...]


class GroupCommunicator:
    """Rounds of one tensor among fixed workers. Every worker creates its communicators in the same order."""

    lonely = False

    def __init__(self, roll: RollCall, timeout_s: float) -> None:
        self._rank = dist.get_rank()
        self._everybody = tuple(range(dist.get_world_size()))
        self._limit = timedelta(seconds=timeout_s)
        self._roll = roll
        self._at = RoundPlace("")
        self._piece = SummedInPlace(torch.empty(0))
        # Keeps the works of the newest exchange alive, so that gloo's own thread never destroys one; see
        # uneven.run.lines.bucket_communicator for the deadlock.
        self._kept: list[dist.Work] = []
        with roll.waiting("forming the group for parameters"):
            self._group: Any = new_group(timeout_s=timeout_s)

    def begin(self, place: RoundPlace) -> None:
        self._at = place

    def add(self, own: Tensor, weight: Weight = unscaled) -> SummedInPlace:
        if (factor := weight()) != 1.0:
            own.mul_(factor)
        self._piece = SummedInPlace(own)
        return self._piece

    def land(self, *, words: bool = False) -> Members:
        at, vector = self._at, self._piece.own
        members = at.members or self._everybody
        if not at.compared or at.parties or len(members) == 1:
            self._piece.sent_bytes = self._sum(vector, members, at.parties)
            return members
        index = members.index(self._rank)
        # If all workers take the same steps, none rests, so the slot for resting carries the mark.
        vector[-1] = mark(at.epoch, at.place, index, len(members), vector.dtype)
        self._piece.sent_bytes = self._sum(vector, members)
        if vector[-1]:
            raise out_of_step(lambda table: self._sum(table, members), at.epoch, at.iteration, index, members)
        return members

    def _sum(self, vector: Tensor, members: Members, parties: tuple[Members, ...] = ()) -> int:
        """Replace ``vector`` by its sum; return the bytes that this worker sent. Raises PeerError with the name of a
        worker that did not take part in time, or has failed."""
        self._kept.clear()
        try:
            with self._roll.waiting(self._at.what, self._at.where):
                return self._total(vector, members, parties)
        except PeerError as failure:
            # Workers that wait for this one notice when its connections close, before their time-out. A work in a frame
            # of the traceback would keep the connections open.
            traceback.clear_frames(failure.__cause__.__traceback__ if failure.__cause__ is not None else None)
            self.close()
            raise

    def _total(self, vector: Tensor, members: Members, parties: tuple[Members, ...]) -> int:
        if parties:
            return self._speak(vector, parties)
        if len(members) == 1:
            return 0
        if len(members) == len(self._everybody):
            self._finish([dist.all_reduce(vector, group=self._group, async_op=True)])
            return bytes_of_sum(vector.nbytes, len(members))
        # A ring of messages on the group of all workers. Process groups for all random groups would be too many. Torch
        # also names a group that only its members create by a counter of the process. So members with different
        # numbers of earlier groups would never meet.
        return self._ring(vector, members)

    def _speak(self, vector: Tensor, parties: tuple[Members, ...]) -> int:
        """Sum over the first workers of the parties, which forward the result to their parties."""
        party = next(party for party in parties if self._rank in party)
        speakers = tuple(party[0] for party in parties)
        if self._rank != party[0]:
            self._finish([dist.irecv(vector, party[0], group=self._group)])
            return 0
        sent = self._total(vector, speakers, ())
        self._finish([dist.isend(vector, rank, group=self._group) for rank in party[1:]])
        return sent + (len(party) - 1) * vector.nbytes

    def _ring(self, vector: Tensor, members: Members) -> int:
        """Reduce-scatter, then all-gather: m − 1 pieces of 1/m each to the next member, twice."""
        count, place = len(members), members.index(self._rank)
        pieces = list(vector.tensor_split(count))
        following, previous = members[(place + 1) % count], members[place - 1]
        room, sent = torch.empty_like(pieces[0]), 0
        for turn in range(2 * count - 2):
            out = pieces[(place - turn) % count if turn < count - 1 else (place + 1 - (turn - count + 1)) % count]
            into = pieces[(place - turn - 1) % count if turn < count - 1 else (place - (turn - count + 1)) % count]
            heard = room[: len(into)] if turn < count - 1 else into
            # Receive before send: if two members send to each other first, gloo uses one direction after the other.
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
