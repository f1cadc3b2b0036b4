"""The gradient exchange of whole models: the mean weighted by samples, over DDP's buckets, during the backward pass.

g = Σ_i (x_i / X) ḡ_i, the gradient of one process on the union batch (LB-BSP, specification §1.9).

DDP's reducer fills buckets in the order in which gradients become ready. The communication hook scales a bucket by
x_i / X and starts an asynchronous all-reduce. At the end of the backward pass one callback waits for all of them and
measures the exposed communication time.
"""

# No "from __future__ import annotations" here: DDP compares the hook's annotations with the types themselves.
import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import _C, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors
from torch.utils.hooks import RemovableHandle

from uneven.errors import TrainingError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.run.context.observer import ExchangeObserver
from uneven.run.gradients.accumulated import nothing_of
from uneven.run.gradients.statistics import BatchStatistics
from uneven.run.gradients.syncnorm import weigh_sync_batch_norm
from uneven.run.lines.group_lines import begin_sum, sum_now, take_from_first
from uneven.run.lines.in_step import closures_checked, is_still, out_of_step, refuse_held
from uneven.run.lines.piggyback import Piggyback
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import Traffic, bytes_of_sum
from uneven.run.model.check import parts_called, refuse_sparse_on_accelerator, unused_parameters
from uneven.run.model.hooks import ModelHook

# Replaces weight zero while gradients of earlier passes wait in .grad. It is a power of two, so scaling them by its
# inverse is exact, and so small that the padded batch vanishes in rounding.
_TINY = 2.0**-40

# The works of this many exchanges are kept alive. If gloo's own thread dropped the last reference to a work, it would
# take the interpreter's lock and create a thread state. A fork at that moment (a DataLoader's readers, when an epoch
# starts) deadlocks the child, because CPython 3.11 forks while another thread holds the lock on its thread states.
_KEPT = 16

# Rank 0's buffers are not broadcast before each forward pass, because rank 0 may have seen the fewest samples.
# BatchStatistics averages batch-norm statistics instead. torch 2.13 renamed the option.
_NO_BROADCAST: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers": False
}


@dataclass(slots=True)
class _Lane:
    """One of DDP's buckets, and the objects reused in each exchange of it."""

    bucket: torch.Tensor
    alone: list[torch.Tensor]  # only the bucket, as the foreach operators take lists
    last: bool
    result: torch.futures.Future[torch.Tensor]  # already complete: holds the bucket


@dataclass(kw_only=True)
class GradientCarrier:
    """Replaces a model's gradients by the weighted mean over all workers at the end of each backward pass.

    Args:
        turn_now: returns the turn of the newest forward pass's batch; None if that pass is not on a loader's batch.
        observer: notified when the last bucket is ready and when the exchange has ended.
        on_nonfinite: called on the rank whose own gradient holds a NaN or an infinity.

    Attributes:
        turn: that of the newest pass, forward or backward.
        group: the process group whose gradients are averaged; None for all ranks.
        report_length: numbers in a row that a rank may send with the gradients.
        forms_groups: whether it averages in the groups of any plan.
        piggyback: None if a model is on an accelerator, where reading numbers would block.
        owner: kept alive as long as the model.
        landed: called on all ranks after each exchange.
    """

    forms_groups = False

    turn_now: Callable[[], BatchWeight | None]
    observer: ExchangeObserver
    roll: RollCall
    on_nonfinite: Callable[[], None]
    traffic: Traffic
    turn: BatchWeight
    group: Any = None
    report_length: int = 0
    piggyback: Piggyback | None = None
    owner: object = None
    landed: Callable[[BatchWeight], None] = lambda turn: None
    _ddp: DistributedDataParallel | None = None
    _parameters: list[nn.Parameter] = field(default_factory=list)
    _statistics: BatchStatistics | None = None
    _lanes: list[_Lane] = field(default_factory=list)
    _works: list[dist.Work] = field(default_factory=list)  # under way, one for each lane so far
    _landed: deque[list[dist.Work]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _group: Any = None
    _size: int = 1  # of the group
    _weight_on_device: tuple[float, torch.Tensor] | None = None
    _nonfinite: torch.Tensor | None = None
    _flag: Any = None  # _nonfinite's memory as an array, which the host reads without torch's overhead
    _synchronise: bool = True
    _weight: float = 0.0  # the factor of the next exchange, for the current pass and all gradients that wait
    _seen: tuple[int, int] = (
        0,
        -1,
    )  # exchanges, and the first parameter's version, before the first pass on this batch
    _past: int = 0  # batches in a row that have changed it without an exchange
    _pass: int = -1  # torch's number of the backward pass under way
    _prepared: bool = False  # whether DDP expects gradients to exchange
    _handles: list[RemovableHandle] = field(default_factory=list)
    _exchanges: int = 0
    _steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # by optimizer: exchanges seen, steps without
    _aside: bool = False
    _several: bool = False  # parts of the model are called, and no pass shows which of them the next loss is made of
    _held: bool = False  # gradients of unsynchronised passes wait in .grad

    def attach(self, model: nn.Module, **ddp: Any) -> None:
        """Install on ``model``, which stays the user's object: same type, same state-dict keys.
        Every call of ``model(...)`` then prepares an exchange, as in :class:`DistributedDataParallel` with options
        ``ddp``."""
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        refuse_sparse_on_accelerator(model)
        self._group = dist.group.WORLD if self.group is None else self.group
        self._size = self._group.size()
        self._wrap(model, self._group, **ddp)
        take_from_first(model.buffers(), self._group)  # before torch 2.13, _NO_BROADCAST disables the first one too
        self._statistics = BatchStatistics(model, self._group)
        self._nonfinite = torch.zeros(1, dtype=torch.float32, device=self._parameters[0].device)
        on_host = self._nonfinite.device.type == "cpu"
        self._flag = self._nonfinite.numpy() if on_host else None
        # All ranks must agree on the piggyback, so one model on an accelerator disables it on all of them.
        apart = self._nonfinite.new_tensor([float(not on_host)])
        sum_now(apart, self._group)
        self.piggyback = None if apart.item() else Piggyback(self._group.rank(), self._size, self.report_length)
        self._hang(model)
        self._handles += weigh_sync_batch_norm(model, lambda: self.turn.weight * dist.get_world_size(), self.observer)

    def _wrap(self, model: nn.Module, group: dist.ProcessGroup, same: bool = False, **ddp: Any) -> None:
        self._ddp = DistributedDataParallel(model, process_group=group, init_sync=not same, **ddp, **_NO_BROADCAST)
        self._ddp.register_comm_hook(weakref.ref(self), _on_bucket)

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
        self._ddp = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave the gradients of the backward passes inside in ``.grad`` without an exchange."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Prepare, exchange and check nothing inside."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def check_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Raise :class:`TrainingError` if an optimizer step would use gradients that were not exchanged."""
        if self._aside or is_still(optimizer):
            return None
        closure = closures_checked(args, kwargs, lambda: refuse_held(self._held))
        refuse_held(self._held and closure is None)
        # One step without an exchange since the last one may be intended: the same gradients again. A first one, or a
        # second in a row, shows a forward pass that bypassed our hooks. A closure may exchange within the step.
        seen, missed = self._steps.get(id(optimizer), (0, 0))
        missed = missed + 1 if seen == self._exchanges and self.turn.exchanging and closure is None else 0
        with_gradient = sum(p.grad is not None for p in self._parameters)
        if self._ddp is not None and missed > (seen > 0) and 0 < with_gradient < len(self._parameters):
            raise TrainingError(unused_parameters(self._ddp.module, self._parameters, self.turn.iteration))
        if missed > (seen > 0) and with_gradient:
            raise TrainingError(
                f"iteration {self.turn.iteration}: optimizer.step() but no gradients were exchanged: call the model "
                f"that session.setup returned, model(x), not model.forward(x) or a part of it; and if torch.compile "
                f"has compiled it before, pass what torch.compile returned to session.setup"
            )
        self._steps[id(optimizer)] = (self._exchanges, missed)
        return closure

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

    def _follow(self, turn: BatchWeight) -> None:
        """Move to another batch; raise if the parameters changed twice in a row without an exchange."""
        before, self._seen = self._seen, (self._exchanges, self._parameters[0]._version)
        past = self._seen[0] == before[0] and self._seen[1] != before[1] >= 0
        self._past = self._past + 1 if past and self.turn.exchanging else 0
        if self._past > 1:
            raise TrainingError(
                f"iteration {self.turn.iteration}: the parameters have changed, but no gradients were exchanged. That "
                f"happens in loss.backward(), not in torch.autograd.grad or torch.func.grad: call loss.backward() and "
                f"update by what is in .grad then"
            )
        self.turn = turn

    def _after_forward(self, model: nn.Module, args: Any, output: Any) -> Any:
        assert self._ddp is not None
        if self._aside:
            return output
        output = self._ddp._post_forward(output)
        if not torch.is_grad_enabled():
            return output
        exchanged = self._ddp.require_backward_grad_sync
        self._prepared |= exchanged
        if self._statistics is not None and exchanged and model.training:
            self._share(self._statistics, self.turn.weight)
        if not on_entering(output, partial(self._entered, self.turn, exchanged)):
            # No tensor in the output leads to the model, so assume that this pass's backward pass comes next.
            self._count(self.turn, exchanged)
        return output

    def _share(self, statistics: BatchStatistics, weight: float) -> None:
        self.traffic.sent_bytes += statistics.start(weight)

    def _entered(self, turn: BatchWeight, exchanged: bool, gradient: torch.Tensor) -> None:
        """Handle a backward pass that has reached an output of the model and has not yet added to any gradient."""
        if self._aside:
            return
        task = _C._current_graph_task_id()
        if task != self._pass:
            self._pass = task
            self._count(turn, exchanged)
            if exchanged and (not self._prepared or self._several):
                self._prepare_again()
        elif turn is not self.turn and not turn.counts_like(self.turn):
            raise TrainingError(
                f"one backward pass through the batches of iterations {self.turn.iteration} and {turn.iteration}, "
                f"which count differently ({self._weight:.4g} and {turn.in_gradient:.4g} of the gradient): call "
                f"backward once for each batch, all but the last inside session.no_sync()"
            )

    def _count(self, turn: BatchWeight, exchanged: bool) -> None:
        """Scale the gradients of this pass, and those that already wait in ``.grad``, by this turn's weight."""
        self.turn, weight = turn, turn.in_gradient
        # The exchange multiplies all of .grad by one weight, so gradients that wait are rescaled to the new one.
        if self._held:
            weight = max(weight, _TINY)
            if weight != self._weight:
                for one in self._parameters:
                    if one.grad is not None:
                        one.grad.mul_(self._weight / weight)
        self._weight = weight
        self._held |= not exchanged and turn.exchanging

    def _prepare_again(self) -> None:
        """Prepare DDP for a second backward pass on one forward pass, or one through several parts."""
        # Without this, DDP would leave the new gradients local. The exchange averages earlier gradients once more, but
        # these are equal on all ranks, so they do not change if the weights add up to 1.
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
        """Exchange the gradients that passes inside :meth:`no_sync` left in ``.grad``; ``weight`` is for batch-norm
        statistics."""
        assert self._ddp is not None
        nothing = nothing_of(self._parameters)  # its backward pass adds nothing, but triggers DDP's hooks
        self._prepare([nothing])
        if self._statistics is not None and self._ddp.module.training:
            self._share(self._statistics, weight)
        nothing.backward()

    def carry(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Start the exchange of one bucket, flat (numbers,), whose gradients are ready."""
        lane = self._lane(bucket, len(self._works))
        if lane.last:
            self.observer.ready()
        self._scale(lane)
        self._works.append(self._reduce(lane))
        if lane.last:
            # This callback runs before DDP's own, the first reader of the hook's future. So the future may be complete
            # from the start, and no Python runs on gloo's threads, as `then` on the work's own future would.
            torch.autograd.Variable._execution_engine.queue_callback(self._land)
        return lane.result

    def _lane(self, bucket: Any, place: int) -> _Lane:
        gradients = bucket.buffer()
        if place >= len(self._lanes) or self._lanes[place].bucket is not gradients:
            result = torch.futures.Future[torch.Tensor](devices=[gradients.device] if gradients.is_cuda else [])
            result.set_result(gradients)
            self._lanes[place:] = [_Lane(gradients, [gradients], bucket.is_last(), result)]
        return self._lanes[place]

    def _reduce(self, lane: _Lane) -> dist.Work:
        try:
            sent, sparse = lane.bucket, lane.bucket.is_sparse
            if self.piggyback is not None and not sparse:
                sent = self.piggyback.attach(sent, self.turn.epoch, self.turn.iteration)
            nbytes = sent._indices().nbytes + sent._values().nbytes if sparse else sent.nbytes
            self.traffic.sent_bytes += bytes_of_sum(nbytes, self._size)
            return begin_sum(sent, self._group)
        except RuntimeError as error:
            raise self.roll.failure(self._this_exchange, error) from error

    def _scale(self, lane: _Lane) -> None:
        gradients = lane.bucket
        if self._weight == 0.0:
            gradients.zero_()  # a padded batch: 0 · NaN would be NaN
        elif gradients.is_sparse:
            gradients.mul_(self._weight)
            self._nonfinite += ~torch.isfinite(gradients._values().sum())  # type: ignore[operator]
        elif gradients.dtype == torch.float32:
            # One pass scales and checks for NaN and infinity, without waiting for the device.
            assert self._nonfinite is not None
            torch._amp_foreach_non_finite_check_and_unscale_(lane.alone, self._nonfinite, self._scale_by(gradients))
        else:
            gradients.mul_(self._weight)
            # The sum of finite float16 gradients may overflow, so it is computed in a wider type.
            wide = torch.float64 if gradients.dtype == torch.float64 else torch.float32
            self._nonfinite += ~torch.isfinite(gradients.sum(dtype=wide))  # type: ignore[operator]

    def _scale_by(self, gradients: torch.Tensor) -> torch.Tensor:
        if self._weight_on_device is None or self._weight_on_device[0] != self._weight:
            weight = torch.tensor(self._weight, dtype=torch.float32, device=gradients.device)
            self._weight_on_device = self._weight, weight
        return self._weight_on_device[1]

    def _land(self) -> None:
        works, self._works = self._works, []
        self._landed.append(works)
        with self.roll.waiting(self._this_exchange), self.traffic.waiting():
            for lane, work in zip(self._lanes, works, strict=False):
                work.wait()
                if lane.bucket.is_sparse:  # the sum has other entries, so gloo returns another tensor
                    lane.bucket.copy_(work.get_future().wait()[0])
            if self.piggyback is not None:
                self.piggyback.collect()
            if self._statistics is not None:
                self._statistics.finish()
        if self.piggyback is not None and self.piggyback.apart:
            raise self._out_of_step()
        self.landed(self.turn)
        self._exchanges += 1
        self.observer.done()
        self._held = self._prepared = False
        self._report_nonfinite()

    def _report_nonfinite(self) -> None:
        if self._flag is not None and self._flag[0]:
            self._flag[0] = 0.0
            self.on_nonfinite()

    def poll_nonfinite(self) -> None:
        """Read the flag on an accelerator; call it rarely, because it blocks the host."""
        if self._nonfinite is not None and self._flag is None and self._nonfinite.item():
            self._nonfinite.zero_()
            self.on_nonfinite()

    def _out_of_step(self) -> TrainingError:
        group, ranks = self._group, dist.get_process_group_ranks(self._group)
        total = partial(sum_now, group=group)
        return out_of_step(total, self.turn.epoch, self.turn.iteration, group.rank(), ranks, self._passes_taken)

    @property
    def _passes_taken(self) -> int:
        return self._exchanges - self._seen[0] + 1

    @property
    def _this_exchange(self) -> str:
        again = f", backward pass {self._passes_taken} on its batch" if self._passes_taken > 1 else ""
        return f"the gradient exchange of iteration {self.turn.iteration}{again}"


def on_entering(output: Any, call: Callable[[torch.Tensor], None]) -> bool:
    """Call ``call`` with an output tensor's gradient (its shape) when a backward pass reaches it.
    Returns whether any tensor of the output leads to the model."""
    found = [one for one in _find_tensors(output) if one.requires_grad]
    for one in found:
        one.register_hook(call)
    return bool(found)


def _on_bucket(
    carrier: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined] # not in torch's stubs
) -> torch.futures.Future[torch.Tensor]:
    # The hook lives in C++, invisible to the garbage collector, so it holds only a weak reference.
    found: torch.futures.Future[torch.Tensor] = carrier().carry(bucket)
    return found
