"""Carries the weighted mean of the gradients among members that come and go, without losing a step when one dies.

Each bucket is scaled into memory of the exchange's own and summed up there, so DDP's bucket holds this worker's
gradient until the sums of all buckets are complete; then they are copied over it. The memory of two exchanges takes
turns: the sum of the last one is kept until this one is over, for a member that had not completed the last one when
somebody died.

An exchange fails inside of ``loss.backward()``, where autograd's last callback waits for it, and is mended there: the
members agree on who they are (:mod:`uneven.core.membership`), and either add their gradients up anew or are given the
sum by one that has it. No backward pass is run twice; it just takes longer.
"""

# No "from __future__ import annotations" here, as in the carrier that this one derives from.
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from uneven.core.membership import Generation, Statement
from uneven.data.returned import Returned
from uneven.errors import ConfigError, PeerError, TrainingError
from uneven.run.elastic.membership import Membership
from uneven.run.elastic.slots import Slots
from uneven.run.gradients.carrier import GradientCarrier
from uneven.run.gradients.instep import out_of_step
from uneven.run.gradients.statistics import BatchStatistics
from uneven.run.lines.circle import Broken, Circle, alone

_STRETCH = 1 << 17
"""Numbers that are looked at and copied in one go: few enough to lie in a core's cache in between."""

_CARRIED = (torch.float32, torch.float64)
"""Types of gradients behind whose buckets reports and announcements fit."""


@dataclass(slots=True)
class _Piece:
    """One bucket, or the batch-norm statistics, in one exchange.

    Attributes:
        own: what this worker brings, unscaled; it is not touched until the exchange is over.
        sent: ``own`` scaled, then the sum; longer than ``own`` by the slots, where it has any.
        bucket: whether it is one of DDP's.
        work: under way; None where it could not be begun.
    """

    own: torch.Tensor
    sent: torch.Tensor
    bucket: bool
    work: Any = None

    @property
    def sum(self) -> torch.Tensor:
        return self.sent[: self.own.numel()]

    def take(self) -> bool:
        """The sum takes the place of what this worker has brought; whether that was finite where the sum is not."""
        fine = True
        for own, total in zip(self.own.split(_STRETCH), self.sum.split(_STRETCH), strict=True):
            if not math.isfinite(total.sum().item()):
                fine = fine and bool(torch.isfinite(own).all())
            own.copy_(total)
        return fine


@dataclass(kw_only=True)
class ElasticCarrier(GradientCarrier):
    """See the module.

    Args:
        membership: who takes part.
        returned: what each iteration's samples were split into.
        changed: told of each new generation of which this worker is a member, and whether it holds for the exchange
            under way (else from the next step on).
        announce: what this member has to announce with the next exchange; see :mod:`uneven.run.elastic.slots`.

    Attributes:
        exchanges: completed over the whole run.
    """

    membership: Membership
    returned: Returned
    changed: Callable[[Generation, bool, float], None]
    announce: Callable[[], float]
    roll: Any = None  # who is missing, the membership knows
    by: int = 0
    circle: Circle | None = None
    _pieces: list[_Piece] = field(default_factory=list)  # of the exchange under way
    _kept: list[_Piece] = field(default_factory=list)  # of the last one, with their sums
    _spare: list[_Piece] = field(default_factory=list)  # of the one before, whose memory is used again
    _slots: Slots | None = None
    _bucket_cap_mb: float | None = None

    # ---------------------------------------------------------------- the model
    def attach(self, model: nn.Module, find_unused_parameters: bool, bucket_cap_mb: float | None) -> None:
        """See :meth:`GradientCarrier.attach`; of a worker that joins later nothing is exchanged yet.

        Raises:
            ConfigError: the model cannot be carried while members come and go.
        """
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        _refuse(model, self._parameters, find_unused_parameters)
        self._bucket_cap_mb = bucket_cap_mb
        if not self.membership.joins_later:
            self._meet(model)
        self._wrap(model, False, bucket_cap_mb, alone())
        self._statistics = BatchStatistics.of(model)
        self.piggyback = self._slots = Slots(self.report_length)  # type: ignore[assignment] # stands where it does
        self._slots.renew(self.membership.place, len(self.membership.members))
        self._hang(model)

    def wrap_again(self) -> None:
        """Let DDP's reducer begin anew, as a newcomer's does: buckets follow the order of the first backward pass."""
        assert self._ddp is not None
        model: nn.Module = self._ddp.module
        self._ddp._remove_autograd_hooks()
        self._lanes.clear()
        self._wrap(model, False, self._bucket_cap_mb, alone())

    def _meet(self, model: nn.Module) -> None:
        """All founders are there, and have the parameters of the first."""
        try:
            self.circle = self.membership.circle("gradients")
            for one in [*model.parameters(), *model.buffers()]:
                flat = one.detach().contiguous()
                self.circle.wait(self.circle.broadcast(flat, 0))
                one.detach().copy_(flat)
        except (Broken, TimeoutError) as error:
            gone = self.membership.board.dead(self.membership.members)
            said = "; ".join(f"worker {one}: {why}" for one, why in gone.items())
            raise PeerError(f"session.setup: a worker was gone before the training began ({said or error})") from None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Not carried.

        Raises:
            TrainingError: always.
        """
        raise TrainingError(
            "session.no_sync() in an elastic run: gradients of several batches that one worker has added up cannot be "
            "weighted anew when another one dies; take one backward pass for each step, or leave --elastic out"
        )
        yield

    # ---------------------------------------------------------------- an exchange
    @property
    def under_way(self) -> bool:
        """Whether this worker is in the midst of one."""
        return bool(self._pieces)

    def announced(self) -> tuple[float, ...]:
        """What the members have announced in the last exchange, by place; once."""
        assert self._slots is not None
        said, self._slots.announced = self._slots.announced, ()
        return said

    @property
    def exchanges(self) -> int:
        return self._exchanges

    @exchanges.setter
    def exchanges(self, count: int) -> None:
        self._exchanges = count

    def carry(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Start the exchange of one bucket whose gradients are ready."""
        lane = self._lane(bucket, len(self._pieces))
        if lane.last:
            self.observer.ready()
        self._begin(lane.bucket, bucket=True, slots=lane.last)
        if lane.last:
            statistics = None if self._statistics is None else self._statistics.flat()
            if statistics is not None:
                self._begin(statistics, bucket=False, slots=False)
            torch.autograd.Variable._execution_engine.queue_callback(self._land)
        return lane.result

    def _begin(self, own: torch.Tensor, *, bucket: bool, slots: bool) -> None:
        assert self._slots is not None
        size = own.numel() + (self._slots.count(own.dtype) if slots else 0)
        place = len(self._pieces)
        spare = self._spare[place].sent if place < len(self._spare) else None
        if spare is None or spare.numel() != size or spare.dtype != own.dtype:
            spare = torch.empty(size, dtype=own.dtype)
        piece = _Piece(own, spare, bucket)
        self._pieces.append(piece)
        self._send(piece, self._weight_now())

    def _send(self, piece: _Piece, weight: float) -> None:
        assert self._slots is not None
        if weight == 0.0:
            piece.sum.zero_()  # a padded batch; zero even where its gradient is not finite
        else:
            torch.mul(piece.own, weight, out=piece.sum)
        if piece.sent.numel() > piece.own.numel():
            self._slots.fill(piece.sent[piece.own.numel() :], self.turn.epoch, self.turn.iteration, self.announce())
        try:
            piece.work = None if self.circle is None else self.circle.sum(piece.sent)
        except Broken:
            piece.work = None

    def _weight_now(self) -> float:
        """x_i / Σ x over those that take part now, of the batch that the gradients are of."""
        part = self.returned.part(self.turn.iteration)
        if part is None:
            return self.turn.weight
        return part.batch(self.membership.worker) / max(1, part.among(self.membership.members))

    def _land(self) -> None:
        contributors = self.membership.members
        try:
            whole = self._wait()
        except TimeoutError:
            raise self.membership.missing(self._this_exchange, self._exchanges) from None
        if whole:
            self.by = self.membership.generation.number
        else:
            contributors = self._recover()
        self._complete(contributors)

    def _wait(self) -> bool:
        """Whether all sums of this exchange have come."""
        circle = self.circle
        if circle is None or any(piece.work is None for piece in self._pieces):
            return False
        try:
            for piece in self._pieces:
                circle.wait(piece.work)
        except Broken:
            return False
        return True

    def _complete(self, contributors: tuple[int, ...]) -> None:
        slots, culprit = self._slots, False
        assert slots is not None
        for piece in self._pieces:
            piece.work = None
            if not piece.bucket:
                assert self._statistics is not None
                self._statistics.put(piece.sum)
                continue
            if piece.sent.numel() > piece.own.numel():
                slots.read(piece.sent[piece.own.numel() :])
            if not piece.take():
                culprit = self._weight_now() > 0.0
        self._spare, self._kept, self._pieces = self._kept, self._pieces, []
        if slots.apart:
            raise self._out_of_step()
        self.returned.exchanged(self.turn.iteration, contributors)
        self._exchanges += 1
        self.observer.done()
        self._held = self._prepared = False
        if culprit:
            self.on_nonfinite()

    # ---------------------------------------------------------------- when members are gone
    def _recover(self) -> tuple[int, ...]:
        """Complete the exchange under way among those that are left.

        Returns:
            Whose gradients are in its sum.
        """
        while True:
            new, began_s = self.next_generation(), time.monotonic()
            try:
                lacking = self._exchanges < new.exchange
                self.hand_over(new, lacking)
                self.changed(new, not lacking, began_s)
                if lacking:
                    self.by = new.by
                    return self.membership.history[new.by]
                self._begin_anew()
                if self._wait():
                    self.by = new.number
                    return new.members
            except Broken:
                continue
            except TimeoutError:
                raise self.membership.missing(self._this_exchange, self._exchanges) from None

    def next_generation(self, *, between: bool = False, leaving: bool = False, new: bool = False) -> Generation:
        """Give the old one up, agree on the next one and make its group.

        Args:
            between: this worker is between two steps.
            leaving: it takes no part in the next one.
            new: it has joined, and was not given the state of the run yet.

        Raises:
            LeftOut, PeerError: see :meth:`Membership.agree`.
        """
        while True:
            if self.circle is not None:
                self.circle.drop(works := [piece.work for piece in self._pieces])
                del works
            for piece in self._pieces:
                piece.work = None
            self.circle = None
            said = Statement(
                exchanges=self._exchanges, by=self.by, drawn=self.returned.newest, between=between, leaving=leaving,
                new=new,
            )  # fmt: skip
            made = self.membership.agree(said)
            if leaving:
                return made
            try:
                self.circle = self.membership.circle("gradients")
            except Broken:
                if not new:
                    self.changed(made, self._exchanges >= made.exchange, time.monotonic())
                continue
            return made

    def hand_over(self, new: Generation, lacking: bool) -> None:
        """Those that have the sum of the last exchange give it to those that lack it.

        Raises:
            Broken: one of them is gone, too.
        """
        if new.donor is None:
            return
        assert self.circle is not None
        pieces, source = self._pieces if lacking else self._kept, new.place(new.donor)
        for piece in pieces:
            # What an exchange that has failed was given may still be written into.
            sent = piece.sent if new.donor == self.membership.worker else torch.empty_like(piece.sent)
            self.circle.wait(self.circle.broadcast(sent, source))
            if lacking:
                piece.sent = sent

    def serve(self) -> None:
        """Outside of all steps: others have given the generation up; give them what they lack."""
        while True:
            new, began_s = self.next_generation(), time.monotonic()
            try:
                self.hand_over(new, lacking=False)
            except Broken:
                continue
            self.changed(new, True, began_s)
            return

    def _begin_anew(self) -> None:
        """This worker's gradients once more, weighted by who is left, in memory that nobody else writes into."""
        assert self._slots is not None
        weight = self._weight_now()
        for piece in self._pieces:
            slots = self._slots.count(piece.own.dtype) if piece.sent.numel() > piece.own.numel() else 0
            piece.sent = torch.empty(piece.own.numel() + slots, dtype=piece.own.dtype)
            self._send(piece, weight)

    def renew(self, generation: Generation) -> None:
        """From the next exchange on, or in the one that is begun anew, these are the members."""
        assert self._slots is not None
        self._slots.renew(generation.place(self.membership.worker), len(generation.members))

    def _out_of_step(self) -> TrainingError:
        circle = self.circle
        assert circle is not None
        return out_of_step(
            lambda table: circle.wait(circle.sum(table)), self.turn.epoch, self.turn.iteration, circle.place,
            self.membership.members,
        )  # fmt: skip


def _refuse(model: nn.Module, parameters: list[nn.Parameter], find_unused_parameters: bool) -> None:
    """What is not carried while members come and go.

    Raises:
        ConfigError: naming it, and the way out.
    """
    why = ""
    if find_unused_parameters:
        why = "find_unused_parameters=True: DDP's messages about unused parameters do not survive a member"
    elif any(one.device.type != "cpu" for one in parameters):
        why = "a model on an accelerator: only gloo's exchanges on the CPU can be mended"
    elif odd := sorted({str(one.dtype) for one in parameters if one.dtype not in _CARRIED}):
        why = f"parameters of type {odd[0]}"
    elif any(isinstance(one, nn.SyncBatchNorm) for one in model.modules()):
        why = "SyncBatchNorm, whose messages inside of the forward pass do not survive a member: use BatchNorm"
    elif any(isinstance(one, nn.Embedding | nn.EmbeddingBag) and one.sparse for one in model.modules()):
        why = "sparse gradients: use sparse=False"
    if why:
        raise ConfigError(f"an elastic run cannot carry {why}; or leave --elastic out")
