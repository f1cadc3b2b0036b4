"""Averages gradients among members that come and go, without losing a step when one of them fails.

DDP's bucket keeps this worker's gradient until the sums, which are made in other memory, are complete on all members.
Then DDP copies the sums into ``.grad``. An exchange fails inside ``loss.backward()``, where autograd's last callback
waits for it, and is repeated there (:mod:`uneven.run.lines.elastic_communicator`). No backward pass runs twice.
"""

# No "from __future__ import annotations" here, as in the carrier that this one derives from.
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.membership import Meeting
from uneven.policy.samples.requeued import RequeuedSamples
from uneven.run.gradients.gradient_carrier import GradientCarrier, _Lane
from uneven.run.gradients.statistics import BatchStatistics
from uneven.run.lines.abortable_group import alone
from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.membership.generations import Membership

_CARRIED = (torch.float32, torch.float64)  # gradient types behind whose buckets reports and announcements fit


@dataclass(kw_only=True)
class ElasticCarrier(GradientCarrier):
    """The gradient carrier of an elastic run."""

    forms_groups = True

    membership: Membership  # of this worker
    returned: RequeuedSamples  # how each iteration's samples were split
    rounds: ElasticCommunicator  # makes the exchanges
    groups: Callable[[], Meeting | None]  # in which gradients are averaged in this step; None for all members
    roll: Any = None  # not used, because the membership knows which workers are missing
    _passes: list[BatchWeight] = field(default_factory=list)  # batches whose gradients are in the next exchange
    _buckets: int = 0  # in the exchange under way
    _sums: list[torch.Tensor] = field(default_factory=list)  # memory for the sum of each bucket, by its place
    _results: list[torch.futures.Future[torch.Tensor]] = field(default_factory=list)  # of the exchange under way
    _options: dict[str, Any] = field(default_factory=dict)  # of DDP

    # ---------------------------------------------------------------- the model
    def attach(self, model: nn.Module, **ddp: Any) -> None:
        """Prepare the model; a worker that joins later exchanges nothing yet. Raises ConfigError if it is not
        supported."""
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        refuse_model(model, self._parameters)
        self._options = ddp
        # DDP gets a group of this process only, because it cannot use another group after a failure. Its hook calls
        # `carry`.
        self._wrap(model, alone(), same=True, **ddp)
        self._statistics = BatchStatistics(model)
        self.piggyback = self.rounds.slots  # type: ignore[assignment] # has the methods that are used
        self._hang(model)

    def wrap_again(self) -> None:
        assert self._ddp is not None
        model: nn.Module = self._ddp.module
        # A newcomer's buckets follow the order of its first backward pass. New reducers everywhere make the buckets the
        # same.
        self._ddp._remove_autograd_hooks()
        self._lanes.clear()
        self._sums.clear()
        self._wrap(model, alone(), same=True, **self._options)

    # ---------------------------------------------------------------- an exchange
    def carry(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        lane, turn = self._lane(bucket, len(self.rounds.pieces)), self.turn
        if self.rounds.at is None:
            where = turn.epoch, *3 * (turn.iteration,)
            how: dict[str, Any] = {"groups": self.groups(), "confirmed": True, "passes": self._passes_taken}
            self.rounds.begin(RoundPlace(self._this_exchange, *where, **how))
        if lane.last:
            self.observer.ready()
            self._buckets = len(self.rounds.pieces) + 1
        self.rounds.add(lane.bucket, self._scale_now, into=self._sum_of(lane))
        self._results.append(torch.futures.Future[torch.Tensor]())
        if lane.last:
            statistics = None if self._statistics is None else self._statistics.flat()
            if statistics is not None:
                self.rounds.add(statistics, self._weight_now)
            # The exchange may have to be repeated, so it is awaited where `backward` ends, not in DDP's own callback.
            torch.autograd.Variable._execution_engine.queue_callback(self._land)
        return self._results[-1]

    def _share(self, statistics: BatchStatistics, weight: float) -> None:
        """Do nothing: `carry` sends the statistics behind the gradients, so that both are repeated together."""

    def _count(self, turn: BatchWeight, exchanged: bool) -> None:
        super()._count(turn, exchanged)
        if turn.exchanging and all(one.iteration != turn.iteration for one in self._passes):
            self._passes.append(turn)

    @property
    def _grouped(self) -> bool:
        return self.rounds.at is not None and self.rounds.at.groups is not None

    def _weight_now(self) -> float:
        """Return x_i / Σ x over the current members, for the batch of the newest pass."""
        return self.turn.weight / self._samples_there(self.turn)

    def _scale_now(self) -> float:
        """Return the weight of this worker's gradients among the current members."""
        # `.grad` may hold several batches (`no_sync`), split differently. After a loss the remaining samples of all
        # these batches are scaled by one factor, so that the result is the mean over them.
        those = self._passes
        there = sum(map(self._there, those))
        return self._weight * len(those) / there if there else self._weight

    def _there(self, turn: BatchWeight) -> float:
        """Return the fraction of a batch's loss weight that belongs to current members."""
        counted = turn.there(self._those)
        return self._samples_there(turn) if counted is None else counted

    @property
    def _those(self) -> tuple[int, ...]:
        at = self.rounds.at
        return self.membership.members if at is None or at.groups is None else self.rounds.mine(at.groups)

    def _samples_there(self, turn: BatchWeight) -> float:
        """Return the fraction of a batch's samples that belongs to current members."""
        part = self.returned.part(turn.iteration)
        if part is None:
            return 1.0
        whole: float = part.size
        if self._grouped:  # the whole is the samples of its group when the batch was made
            if not turn.weight:
                return 1.0
            whole = part.batch(self.membership.worker) / turn.weight
        return max(1, part.among(self._those)) / max(1, whole)

    def _land(self) -> None:
        assert self._ddp is not None
        if self._ddp.find_unused_parameters:
            # DDP sums this only in its own group of one process, and reads it after this callback.
            self.rounds.add(self._ddp.reducer._get_local_used_map())
        pieces = self.rounds.pieces
        with self.traffic.waiting():
            self.rounds.land()
        self.traffic.sent_bytes += sum(one.sent_bytes for one in pieces)
        buckets = pieces[: self._buckets]
        # After a loss a sum has new memory, because the exchange that failed may still write into the old one.
        self._sums, results, self._results = [piece.sum for piece in buckets], self._results, []
        for result, summed in zip(results, self._sums, strict=True):
            result.set_result(summed)
        culprit = not all(piece.fine for piece in buckets) and self._weight_now() > 0.0
        rest = [piece for piece in pieces[self._buckets :] if piece.own.numel()]
        if self._ddp.find_unused_parameters:
            rest.pop().take()
        if rest:
            assert self._statistics is not None
            self._statistics.put(rest.pop().sum)
        self._passes = []
        self._exchanges += 1
        self.observer.done()
        self._held = self._prepared = False
        if culprit:
            self.on_nonfinite()

    def _sum_of(self, lane: _Lane) -> torch.Tensor:
        place = len(self.rounds.pieces)
        if place >= len(self._sums) or self._sums[place].numel() != lane.bucket.numel():
            self._sums[place:] = [torch.empty_like(lane.bucket)]
        return self._sums[place]


def refuse_model(model: nn.Module, parameters: list[nn.Parameter]) -> None:
    """Raise ConfigError, with the remedy, if an elastic run does not support the model."""
    why = ""
    if any(one.device.type != "cpu" for one in parameters):
        why = "a model on an accelerator: only gloo's exchanges on the CPU can be mended"
    elif odd := sorted({str(one.dtype) for one in parameters if one.dtype not in _CARRIED}):
        why = f"parameters of type {odd[0]}"
    elif any(isinstance(one, nn.SyncBatchNorm) for one in model.modules()):
        why = (
            "SyncBatchNorm, which torch has for accelerators only, and whose messages inside of the forward pass go "
            "over torch's default group, which an elastic run has none of: use BatchNorm"
        )
    elif any(isinstance(one, nn.Embedding | nn.EmbeddingBag) and one.sparse for one in model.modules()):
        why = "sparse gradients: use sparse=False"
    if why:
        raise ConfigError(f"an elastic run cannot carry {why}; or leave --elastic out")
