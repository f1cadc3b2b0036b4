"""The gradient exchange of whole models: the mean weighted by samples, over DDP's buckets, during the backward pass.

g = Σ_i (x_i / X) ḡ_i, the gradient of one process on the union batch (LB-BSP, specification §1.9).

DDP's reducer fills buckets in the order in which gradients become ready. The communication hook scales a bucket by
x_i / X and starts an asynchronous all-reduce. At the end of the backward pass one callback waits for all of them and
measures the exposed communication time.
"""

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import _C, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from uneven.errors import TrainingError
from uneven.policy.core.actions import Payload, StepPlan
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.membership import Meeting, Members
from uneven.run.context.context import Context
from uneven.run.gradients.accumulated import nothing_of
from uneven.run.gradients.backward_start import on_entering
from uneven.run.gradients.base import ExchangedSteps
from uneven.run.gradients.replica_check import ReplicaCheck
from uneven.run.gradients.statistics import BatchStatistics
from uneven.run.gradients.syncnorm import weigh_sync_batch_norm
from uneven.run.lines.bucket_communicator import BucketCommunicator
from uneven.run.lines.communicator import RoundPlace, RoundTensor
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.lines.group_lines import ReducerGroup, sum_now
from uneven.run.lines.staging import HostRounds
from uneven.run.lines.traffic import Traffic
from uneven.run.measure.meter import Meter
from uneven.run.model.check import parts_called, unused_parameters
from uneven.run.model.hooks import ModelHook

# Rank 0's buffers are not broadcast before each forward pass, because rank 0 may have seen the fewest samples.
# BatchStatistics averages batch-norm statistics instead. torch 2.13 renamed the option.
_NO_BROADCAST: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers": False
}

# On an accelerator, reading the flag for NaN and infinity blocks the host, so it is read once in this many iterations.
_NONFINITE_EVERY = 50


@dataclass(slots=True)
class _Lane:
    """One of DDP's buckets, and the objects reused in each exchange of it."""

    bucket: torch.Tensor
    last: bool
    result: torch.futures.Future[torch.Tensor]  # holds the sum; already complete if that is the bucket
    room: torch.Tensor | None = None  # memory of the sum, if that is not the bucket


@dataclass(kw_only=True)
class BucketGradients(ExchangedSteps):
    """Replaces a model's gradients by the weighted mean over all workers at the end of each backward pass.

    Args:
        turn_now: returns the turn of the newest forward pass's batch; None if that pass is not on a loader's batch.
        observer: notified when the last bucket is ready and when the exchange has ended.
        on_nonfinite: called on the rank whose own gradient holds a NaN or an infinity.
        group: of the averaging workers; None if members come and go.
        groups: the groups in which gradients are averaged in this step, if those of any plan can be.
    """

    turn_now: Callable[[], BatchWeight | None]
    observer: Meter
    on_nonfinite: Callable[[], None]
    traffic: Traffic
    rounds: BucketCommunicator | ElasticCommunicator | HostRounds
    group: Any
    members: Members | None
    groups: Callable[[], Meeting | None] | None = None
    _options: dict[str, Any] = field(default_factory=dict)  # of DDP
    _reducing: Any = None  # the group of DDP's reducer
    _lanes: list[_Lane] = field(default_factory=list)
    _pieces: list[RoundTensor] = field(default_factory=list)  # in the exchange under way; one for each used lane
    _behind: list[RoundTensor] = field(default_factory=list)  # behind them
    _synchronise: bool = True
    _pass: int = -1  # torch's number of the backward pass under way
    _prepared: bool = False  # whether DDP expects gradients to exchange
    _handles: list[RemovableHandle] = field(default_factory=list)
    _several: bool = False  # parts of the model are called, and no pass shows which of them the next loss uses

    def averaging(self, plan: StepPlan) -> Members | None:
        if self.groups is None:
            return self.members
        return next((one.members for one in plan.exchanges if one.payload is Payload.GRADIENT), None)

    def attach(self, model: nn.Module, owner: object, **ddp: Any) -> list[Callable[..., None]]:
        """Install on ``model``, which stays the user's object: same type, same state-dict keys.
        Every call of ``model(...)`` then prepares an exchange, as in :class:`DistributedDataParallel` with options
        ``ddp``."""
        self.owner, self._options = owner, ddp
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        device = self._parameters[0].device
        # DDP cannot use another group after a loss, and its own sums would go to the device.
        self._reducing = ReducerGroup(self.group) if self.rounds.whole else self.group
        self._wrap(model)
        self._statistics = BatchStatistics(model, self.group)
        self.words = self.rounds.meet(device, self._statistics.finish)
        self._hang(model)
        self._handles += weigh_sync_batch_norm(model, lambda: self.turn.weight * dist.get_world_size(), self.observer)
        return [self.check_step]

    def _wrap(self, model: nn.Module) -> None:
        how = {"process_group": self._reducing, "init_sync": False} | self._options | _NO_BROADCAST
        self._ddp = DistributedDataParallel(model, **how)
        self._ddp.register_comm_hook(weakref.ref(self), _on_bucket)

    def wrap_again(self) -> None:
        """Make other buckets, because a newcomer's would follow the order of its first backward pass."""
        assert self._ddp is not None
        self._ddp._remove_autograd_hooks()
        self._lanes.clear()
        self._wrap(self._ddp.module)

    def compare(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], context: Context) -> None:
        super().compare(model, optimizers, context)
        # The closure below must not hold the gradients themselves, which have to be freed with the session.
        roll, traffic, group = context.connection.roll, self.traffic, self.group
        assert roll is not None
        assert self._statistics is not None

        def total(numbers: torch.Tensor) -> None:
            with roll.waiting("the comparison of replicas"), traffic.waiting():
                sum_now(numbers, group)

        others = self._statistics.others
        self.replicas = ReplicaCheck(model, optimizers, context.rank, context.members, others, total)

    def _hang(self, model: nn.Module) -> None:
        before, after, called = ModelHook(self._before_forward), ModelHook(self._after_forward), parts_called(model)
        self._handles = [one.register_forward_pre_hook(before, with_kwargs=True) for one in called]
        self._handles += [one.register_forward_hook(after) for one in called]
        self._several = len(called) > 1

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._lanes.clear()
        if self._ddp is not None:
            self._ddp._remove_autograd_hooks()
        self._ddp = self.replicas = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave the gradients of the backward passes inside in ``.grad`` without an exchange."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    def _before_forward(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        assert self._ddp is not None
        if self._aside:
            return args, kwargs
        if torch.is_grad_enabled():  # a pass that evaluates is not on a batch of the loader
            turn = self.turn_now() or self.turn
            if turn is not self.turn:
                self._follow(turn)
        self._ddp.require_backward_grad_sync = self._synchronise and self.turn.exchanging
        try:
            return self._ddp._pre_forward(*args, **kwargs)
        except RuntimeError as error:
            if "find_unused_parameters" in str(error):
                raise TrainingError(unused_parameters(model, self._parameters, self.turn.iteration)) from error
            raise

    def _after_forward(self, model: nn.Module, args: Any, output: Any) -> Any:
        assert self._ddp is not None
        if self._aside:
            return output
        output = self._ddp._post_forward(output)
        if not torch.is_grad_enabled():
            return output
        exchanged = self._ddp.require_backward_grad_sync
        self._prepared |= exchanged
        if exchanged and model.training:
            self._share(self.turn.weight)
        if not on_entering(output, partial(self._entered, self.turn, exchanged)):
            # No tensor in the output leads to the model, so assume that this pass's backward pass comes next.
            self._count(self.turn, exchanged)
        return output

    def _count(self, turn: BatchWeight, exchanged: bool) -> None:
        assert self._ddp is not None
        summed = turn.exchanging and turn.of_exchanged != 1.0 and not self.scale.held
        unknown = summed and self._ddp.find_unused_parameters
        if unknown and any(one.grad is not None and one.grad.any() for one in self._parameters):
            raise TrainingError(  # DDP leaves those out that no worker's pass uses, so no factor would be right for all
                "session.loss_sum with find_unused_parameters=True: .grad holds gradients that were exchanged already. "
                "Add up the losses and call backward once, or call zero_grad() before"
            )
        self.scale.count(turn, exchanged, self._parameters)

    def _share(self, weight: float) -> None:
        if self._statistics is not None and self.rounds.whole:
            self._statistics.choose()  # they follow the last bucket
        elif self._statistics is not None:
            self.traffic.sent_bytes += self._statistics.start(weight)

    def _entered(self, turn: BatchWeight, exchanged: bool, gradient: torch.Tensor) -> None:
        """Handle a backward pass that has reached an output of the model and has not yet added to any gradient."""
        if self._aside:
            return
        task = _C._current_graph_task_id()
        if task != self._pass:
            self._pass, self.turn = task, turn
            self._count(turn, exchanged)
            if exchanged and (not self._prepared or self._several):
                self._prepare_again()
        elif turn is not self.turn and not turn.counts_like(self.turn):
            raise TrainingError(
                f"one backward pass through the batches of iterations {self.turn.iteration} and {turn.iteration}, "
                f"which have different weights ({self.scale.now:.4g} and {turn.in_gradient:.4g} of the gradient): "
                "call backward once for each batch, all but the last inside session.no_sync()"
            )

    def _prepare_again(self) -> None:
        """Prepare DDP for a second backward pass on one forward pass, or one through several parts."""
        # Without this, DDP would leave the new gradients local. The exchange averages earlier gradients once more.
        # These are equal on all ranks, so they do not change: their weights add up to 1.
        assert self._ddp is not None
        leads: list[torch.Tensor] = []
        if self._ddp.find_unused_parameters:
            trained = (one for one in self._parameters if one.requires_grad)
            reached = [one for one in trained if _C._will_engine_execute_node(get_gradient_edge(one).node)]
            with torch.enable_grad():
                leads = [nothing_of(reached)] if reached else []
        self._prepare(leads)

    def _prepare(self, leads: list[torch.Tensor]) -> None:
        assert self._ddp is not None
        self._ddp.reducer._rebuild_buckets()  # as DDP does before a forward pass, once
        self._ddp.reducer.prepare_for_backward(leads if self._ddp.find_unused_parameters else [])
        self._prepared = True

    def exchange_held(self, weight: float) -> None:
        assert self._ddp is not None
        nothing = nothing_of(self._parameters)  # its backward pass adds nothing, but triggers DDP's hooks
        self._prepare([nothing])
        if self._ddp.module.training:
            self._share(weight)
        turn, self.turn = self.turn, replace(self.turn, weight=weight)  # for statistics that follow the last bucket
        nothing.backward()
        self.turn = turn

    def carry(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Start the exchange of one bucket, flat (numbers,), whose gradients are ready."""
        lane, in_place = self._lane(bucket, len(self._pieces)), self.rounds.in_place
        if not self._pieces:
            self.rounds.begin(self._place())
        if lane.last:
            self.observer.ready()
        if not in_place:
            lane.result = torch.futures.Future[torch.Tensor]()
            lane.room = torch.empty_like(lane.bucket) if lane.room is None else lane.room
        self._pieces.append(self.rounds.add(lane.bucket, self.scale, into=lane.room))
        if lane.last:
            if self.rounds.whole and self._statistics is not None and (flat := self._statistics.flat()) is not None:
                self._behind.append(self.rounds.add(flat, partial(self.scale.of, self.turn)))
            # This callback runs before DDP's own, the first reader of the hook's future. So the future may be complete
            # from the start, and no Python runs on gloo's threads, as `then` on the work's own future would. An
            # exchange that has to be made again is made where `backward` ends.
            torch.autograd.Variable._execution_engine.queue_callback(self._land)
        return lane.result

    def _lane(self, bucket: Any, place: int) -> _Lane:
        gradients = bucket.buffer()
        if place >= len(self._lanes) or self._lanes[place].bucket is not gradients:
            result = torch.futures.Future[torch.Tensor](devices=[] if gradients.is_cpu else [gradients.device])
            result.set_result(gradients)
            self._lanes[place:] = [_Lane(gradients, bucket.is_last(), result)]
        return self._lanes[place]

    def _place(self) -> RoundPlace:
        turn, passes = self.turn, self._exchanges - self._seen[0] + 1
        again = f", backward pass {passes} on its batch" if passes > 1 else ""
        what, where = f"the gradient exchange of iteration {turn.iteration}{again}", 3 * (turn.iteration,)
        groups = None if self.groups is None else self.groups()
        return RoundPlace(what, turn.epoch, *where, groups=groups, confirmed=True, passes=passes)

    def _land(self) -> None:
        assert self._ddp is not None
        if self.rounds.whole and self._ddp.find_unused_parameters:
            # DDP sums this only in its own group of one process, and reads it after this callback.
            self._behind.append(self.rounds.add(self._ddp.reducer._get_local_used_map()))
        (pieces, behind), self._pieces, self._behind = (self._pieces, self._behind), [], []
        with self.traffic.waiting():
            self.rounds.land()
        fine = True
        for piece in pieces:
            fine = fine and piece.fine
            self.traffic.sent_bytes += piece.sent_bytes
        if self.rounds.whole:
            self._take(pieces, behind)
        if self.replicas is not None:
            self.replicas(self.turn)
        self._exchanges += 1
        self.observer.done()
        self._prepared = False
        self.scale.landed()
        if not fine:
            self.on_nonfinite()

    def _take(self, pieces: list[RoundTensor], behind: list[RoundTensor]) -> None:
        """Give the sums of gradients to DDP, and those of statistics to the model."""
        for lane, piece in zip(self._lanes, [] if self.rounds.in_place else pieces, strict=False):
            # After a loss a sum has other memory, because the exchange that failed may still write into the old one.
            lane.room = piece.sum
            lane.result.set_result(piece.sum)
        for piece in behind:
            piece.take()
            self.traffic.sent_bytes += piece.sent_bytes
        if self._statistics is not None:
            self._statistics.put()

    def poll(self, iteration: int) -> None:
        if iteration % _NONFINITE_EVERY == 0 and self.rounds.nonfinite():
            self.on_nonfinite()


def _on_bucket(
    gradients: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined] # not in torch's stubs
) -> torch.futures.Future[torch.Tensor]:
    # The hook lives in C++, invisible to the garbage collector, so it holds only a weak reference.
    found: torch.futures.Future[torch.Tensor] = gradients().carry(bucket)
    return found
