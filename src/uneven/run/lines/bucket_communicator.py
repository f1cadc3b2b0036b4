"""Rounds of DDP's buckets among fixed workers: each sum replaces its bucket, under way while the next one fills."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from uneven.policy.core.membership import Members
from uneven.run.lines.communicator import RoundPlace, SummedInPlace, Weight, unscaled
from uneven.run.lines.control_words import BehindBucket, ControlWords
from uneven.run.lines.group_lines import begin_sum, sum_now
from uneven.run.lines.in_step import out_of_step
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import bytes_of_sum

# The works of this many exchanges are kept alive. If gloo's own thread dropped the last reference to a work, it would
# take the interpreter's lock and create a thread state. A fork at that moment (a DataLoader's readers, when an epoch
# starts) deadlocks the child, because CPython 3.11 forks while another thread holds the lock on its thread states.
_KEPT = 16


class BucketCommunicator:
    """Rounds of gradients, many tensors in each, on the process group of the workers that average.

    Attributes:
        in_place: whether sums replace the tensors. Otherwise they have other memory, as the tensors may be sent
            again after a loss.
        whole: whether all of a model's numbers travel in its rounds, and DDP exchanges nothing by itself.
    """

    in_place = True
    whole = False

    def __init__(self, group: Any, roll: RollCall, report_length: int) -> None:
        self._group = group
        self._words: ControlWords | None = ControlWords(group.rank(), group.size(), report_length)
        self._behind = BehindBucket(self._words)
        self._roll = roll
        self._members: Members = tuple(dist.get_process_group_ranks(group))
        self._at = RoundPlace("")
        self._ends: Callable[[], None] = lambda: None
        self._pieces: list[SummedInPlace] = []
        self._works: list[dist.Work] = []  # under way, one for each piece
        self._landed: deque[list[dist.Work]] = deque(maxlen=_KEPT)
        self._factor = 1.0, torch.ones(())
        self._nonfinite = torch.zeros(1, dtype=torch.float32)
        self._flag: Any = None  # _nonfinite's memory as an array, which the host reads without torch's overhead

    def meet(self, device: torch.device, ends: Callable[[], None]) -> ControlWords | None:
        """Prepare rounds of tensors on ``device``, on all workers; a round calls ``ends`` while this worker waits.
        Returns the words of each round; None if a worker had to wait for its device to read them."""
        self._nonfinite, self._ends = torch.zeros(1, dtype=torch.float32, device=device), ends
        on_host = device.type == "cpu"
        self._flag = self._nonfinite.numpy() if on_host else None
        if not on_host:  # on all ranks: workers on different kinds of devices exchange through host memory
            self._words = None
        return self._words

    def begin(self, place: RoundPlace) -> None:
        self._at = place

    def add(self, own: Tensor, weight: Weight = unscaled, *, into: Tensor | None = None) -> SummedInPlace:
        """Send one tensor; ``into`` is memory of its size that holds the sum if it does not replace the tensor."""
        factor = weight()
        if factor == 0.0:
            own.zero_()  # a padded batch: 0 · NaN would be NaN
        elif own.is_sparse:
            own.mul_(factor)
            self._nonfinite += ~torch.isfinite(own._values().sum())
        elif own.dtype == torch.float32:
            if self._factor[0] != factor or self._factor[1].device != own.device:
                self._factor = factor, torch.tensor(factor, dtype=torch.float32, device=own.device)
            # One pass scales and checks for NaN and infinity, without waiting for the device.
            torch._amp_foreach_non_finite_check_and_unscale_([own], self._nonfinite, self._factor[1])
        elif own.is_floating_point():
            own.mul_(factor)
            # The sum of finite float16 gradients may overflow, so it is computed in a wider type.
            wide = torch.float64 if own.dtype == torch.float64 else torch.float32
            self._nonfinite += ~torch.isfinite(own.sum(dtype=wide))
        try:
            sent, sparse = own, own.is_sparse
            if self._words is not None and not sparse:
                sent = self._behind.attach(own, self._at)
            nbytes = sent._indices().nbytes + sent._values().nbytes if sparse else sent.nbytes
            self._works.append(begin_sum(sent, self._group))
        except RuntimeError as error:
            raise self._roll.failure(self._at.what, error) from error
        self._pieces.append(piece := SummedInPlace(own, bytes_of_sum(nbytes, len(self._members))))
        return piece

    def land(self, *, words: bool = False) -> Members:
        works, pieces, self._works, self._pieces = self._works, self._pieces, [], []
        self._landed.append(works)
        with self._roll.waiting(self._at.what):
            for piece, work in zip(pieces, works, strict=True):
                work.wait()
                if piece.own.is_sparse:  # the sum has other entries, so gloo returns another tensor
                    piece.own.copy_(work.get_future().wait()[0])
            if self._words is not None:
                self._behind.collect()
            self._ends()
        if self._words is not None and self._words.apart:
            at, index = self._at, self._group.rank()
            raise out_of_step(
                lambda table: sum_now(table, self._group), at.epoch, at.iteration, index, self._members, at.passes
            )
        if self._flag is not None and self._flag[0]:
            self._flag[0], pieces[0].fine = 0.0, False  # the flag is of all pieces together
        return self._members

    def nonfinite(self) -> bool:
        """Return whether a tensor held a NaN or an infinity that no piece shows; wait for the device."""
        if self._flag is not None or not self._nonfinite.item():
            return False
        self._nonfinite.zero_()
        return True
