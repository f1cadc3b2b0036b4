"""The measurement of a worker's steps by hooks of torch, without a change to its script.

A step ends with the last optimizer that steps before one of them steps a second time. Within a step the probe sums

* data: seconds in ``DataLoader.__next__``;
* meetings: seconds in which this worker waited for a collective operation. Under DDP that is the time from the last
  gradient (``Reducer.get_backward_stats``) to the end of the backward pass; elsewhere it is each ``Work.wait``;
* compute: the rest.

A loop without an optimizer has steps too: the shortest period in its sequence of collective operations.

If the measurement takes more than its budget, it measures one burst of steps in 2, 4, … 64. All workers give a
step the same number, so the burst of a worker is also one of each worker that measures more often.
"""

import atexit
import gc
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from statistics import median
from typing import Any

import torch

from uneven.journal.reader import rank_path
from uneven.journal.writer import BackgroundWriter, Writer, writers_of
from uneven.policy.core.records import MeetingsRecord, Record, RunRecord, StepRecord
from uneven.runtime.installed import VERSION
from uneven.runtime.world import discover
from uneven.why.facts import BUDGET, FactsThread, RunQueueClock
from uneven.why.loop_period import LoopPeriod
from uneven.why.unharmed import unharmed

_now = time.perf_counter
_MOST_MEETINGS = 32  # written per step, which keeps its records below 1 kB; the rest is one sum
_DIGITS = 6  # of a second: microseconds
_BURST = 16  # steps that are measured one after the other
_FIRST = 48  # steps that are measured in any case
_SPARSEST = 64  # one burst in 64 is measured at least


class _StepSums:
    """What has happened since a point in time."""

    __slots__ = ("data_s", "elements", "evaluated_s", "meetings", "samples", "saved_s")

    def __init__(self) -> None:
        self.data_s = 0.0
        self.samples = 0
        self.elements = 0
        self.evaluated_s = 0.0  # between batches that are loaded without gradients
        self.saved_s = 0.0  # in torch.save
        self.meetings: list[float] = []  # seconds of each

    def add(self, later: "_StepSums") -> None:
        self.data_s += later.data_s
        self.samples += later.samples
        self.elements += later.elements
        self.evaluated_s += later.evaluated_s
        self.saved_s += later.saved_s
        self.meetings += later.meetings


class _Mark:
    """The last optimizer step so far, and the sums of this step, if no other optimizer follows."""

    __slots__ = ("at_s", "process_s", "sums", "thread")

    def __init__(self, sums: _StepSums, thread: tuple[int, int]) -> None:
        self.at_s = _now()
        self.sums = sums
        self.thread = thread
        self.process_s = time.process_time()

    def since(self, before: "_Mark") -> tuple[float, float, float]:
        """Return the seconds, and those in which the thread ran and was queued."""
        ran_ns, queued_ns = self.thread[0] - before.thread[0], self.thread[1] - before.thread[1]
        return self.at_s - before.at_s, ran_ns / 1e9, queued_ns / 1e9


class Probe:
    """The measurement of one worker."""

    def __init__(self, run: Path, rank: int, size: int) -> None:
        self._rank = rank
        self._thread = threading.get_ident()  # the one that trains
        self._clock = RunQueueClock()
        self._run = run
        self._size = size
        self._sums = _StepSums()
        self._mark: _Mark | None = None
        self._before: _Mark | None = None
        self._stepped: set[int] = set()  # optimizers in this step
        self._iteration = -1  # the first step has no beginning
        self._sparse = 1  # one of this number of bursts is measured
        self._forward: dict[int, tuple[Any, float]] = {}  # DDP models between forward and backward pass
        self._undo: list[Callable[[], None]] = []
        self._inside = 0  # depth of measured calls, so that a wait within a wait counts once
        self._loop: LoopPeriod | None = LoopPeriod()  # None once there is an optimizer
        self._trains = False  # a backward pass has ended: the meetings before belong to the start of the script
        self._issued: Hashable = None  # the last collective operation, as torch reports it
        self._groups: list[Any] = []  # that report it, until there is an optimizer
        self._writer: BackgroundWriter | None = None
        self._facts: FactsThread | None = None
        self._session = False  # one of uneven writes the steps
        self._off = False
        self._resting = False  # this burst of steps is not measured
        self._spent_s = 0.0  # by the hooks in this step
        self._costs: list[tuple[float, float]] = []  # of each measured step in this burst: by the hooks, whole
        self._evaluated_at_s = math.nan  # the last batch without gradients in this step

    @classmethod
    def start(cls, run: Path) -> "Probe":
        """Set the hooks of this process and return its probe."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            world = discover()
            rank, size = world.rank, world.size
        probe = cls(run, rank, size)
        probe._writer = BackgroundWriter(Writer(rank_path(run, rank)))
        try:
            probe._hook()
        except BaseException:  # this torch lacks something
            probe._end()
            raise
        atexit.register(unharmed, probe.close)
        return probe

    def _begin(self) -> None:
        """Write the first record and start to read facts, once a session of this process would exist."""
        self._session = writers_of(rank_path(self._run, self._rank)) > 1
        if not self._session:
            self._write(
                RunRecord(
                    run=self._run.name,
                    rank=self._rank,
                    world_size=self._size,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    started_at_s=time.time(),
                    settings={"balance": "even", "sync": "bsp", "why": True},
                    versions={"torch": torch.__version__, "uneven": VERSION},
                )
            )
        self._facts = FactsThread(self._rank, self._clock, self._write, lambda: self._iteration)
        self._facts.start()

    @property
    def measures(self) -> bool:
        """Whether it measures this process."""
        return not self._off

    def forget(self) -> None:
        """Leave the hooks without effect, in a process that has inherited them, as a forked loader does."""
        self._off = True

    def close(self) -> None:
        """Remove the hooks and write the rest of the journal."""
        if self.measures:
            if self._mark is not None:
                unharmed(self._end_step, self._mark)
            self._end()

    def _end(self) -> None:
        self._off = True
        self._leave_groups()
        for undo in reversed(self._undo):
            undo()
        if self._facts is not None:
            self._facts.stop()
        if self._writer is not None:
            self._writer.close()

    def _guarded(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return the hook so that an error in it switches the probe off, with one line."""

        @wraps(hook)
        def call(*args: Any) -> None:
            if self._off or threading.get_ident() != self._thread:
                return
            started_s = _now()
            if not unharmed(hook, *args):
                self._end()
            self._spent_s += _now() - started_s

        return call

    # ---- hooks

    def _hook(self) -> None:
        from torch.utils.data import dataloader

        self.before_optimizer = self._guarded(self._before_optimizer)
        self.after_optimizer = self._guarded(self._after_optimizer)
        self._around(dataloader._BaseDataLoaderIter, "__next__", self._loaded)
        self._around(torch.autograd, "backward", self._backward_ended, timed=False)
        self._around(torch, "save", self._saved)
        if not torch.distributed.is_available():
            return
        from torch._C import _distributed_c10d
        from torch.distributed import _functional_collectives
        from torch.nn.parallel import DistributedDataParallel

        self._around(DistributedDataParallel, "_post_forward", self._forward_ended, timed=False)
        self._around(DistributedDataParallel, "_sync_buffers", self._met)
        self._around(_distributed_c10d.Work, "wait", self._met)
        self._around(_functional_collectives, "wait_tensor", self._met)
        group = torch.distributed.group.WORLD
        if group is not None and hasattr(group, "register_pre_hook"):  # torch 2.14 or later
            group.register_pre_hook(id(self), self._issues)
            self._groups.append(group)

    def _issues(self, operation: Any) -> None:
        # Not guarded: the end of the measurement removes this hook, and torch crashes if a hook is removed within it.
        try:
            self._issued = operation.name, sum(tensor.nbytes for tensor in operation.input_tensors)
        except (AttributeError, TypeError):  # torch calls this interface unstable
            self._issued = None

    def _leave_groups(self) -> None:
        while self._groups:
            self._groups.pop().unregister_pre_hook(id(self))

    def _around(self, owner: Any, name: str, hook: Callable[..., None], *, timed: bool = True) -> None:
        """Call ``hook(seconds, result, arguments)`` after each call of ``owner.name`` in the training thread."""
        original = getattr(owner, name)
        guarded = self._guarded(hook)

        @wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():  # first: Dynamo then traces the original alone
                return original(*args, **options)
            resting = self._resting and self._loop is None
            if resting or (self._inside and timed) or threading.get_ident() != self._thread:
                return original(*args, **options)
            self._inside += timed
            started_s = _now()
            try:
                result = original(*args, **options)
            finally:
                self._inside -= timed
            guarded(_now() - started_s, result, args)
            return result

        setattr(owner, name, call)
        self._undo.append(lambda: setattr(owner, name, original) if getattr(owner, name) is call else None)

    def _loaded(self, seconds: float, batch: Any, _: Any) -> None:
        self._sums.data_s += seconds
        if torch.is_grad_enabled():  # otherwise an evaluation, whose samples train nothing
            samples, elements = _size_of(batch)
            self._sums.samples += samples
            self._sums.elements += elements
            return
        now_s = _now()
        if not math.isnan(self._evaluated_at_s):
            self._sums.evaluated_s += now_s - self._evaluated_at_s
        self._evaluated_at_s = now_s

    def _saved(self, seconds: float, _: Any, __: Any) -> None:
        self._sums.saved_s += seconds

    def _met(self, seconds: float, _: Any, __: Any) -> None:
        if self._session and self._forward:
            return  # a session waits within the backward pass, whose end counts as a whole
        self._sums.meetings.append(seconds)
        if self._loop is not None and self._trains and self._loop.ended(self._issued):
            if self._iteration < 0 and has_optimizer():
                self._leave_loop()
            else:
                self._mark_here()
                self._end_step(self._mark)

    def _forward_ended(self, seconds: float, _: Any, args: Any) -> None:
        model = args[0]
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            self._forward[id(model)] = model, _now() - seconds  # when the reducer starts its clock

    def _backward_ended(self, _: float, __: Any, ___: Any) -> None:
        self._trains = True
        if not self._forward:
            return
        ended_s = _now()
        for model, forward_s in self._forward.values():
            last_ns = max(model.reducer.get_backward_stats(), default=0)
            if last_ns > 0:
                self._sums.meetings.append(max(0.0, ended_s - forward_s - last_ns / 1e9))
        self._forward.clear()

    def _before_optimizer(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) in self._stepped:
            self._end_step(self._mark)
            self._stepped.clear()

    def _leave_loop(self) -> None:
        self._loop = None
        self._leave_groups()

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._leave_loop()
        self._stepped.add(id(optimizer))
        self._mark_here()

    def _mark_here(self) -> None:
        if self._resting:
            self._mark = None
            return
        sums, self._sums = self._sums, _StepSums()
        if self._mark is not None:  # of another optimizer in this step
            self._mark.sums.add(sums)
            sums = self._mark.sums
        self._mark = _Mark(sums, self._clock.read())

    # ---- steps

    def _end_step(self, mark: _Mark | None) -> None:
        """End a step at a mark; without one, it was not measured. The first step of a burst has no beginning."""
        if self._facts is None:
            self._begin()
        before, self._before, self._mark = self._before, mark, None
        self._evaluated_at_s = math.nan
        if mark is None:
            self._sums = _StepSums()
        elif before is not None:
            whole_s, _, queued_s = mark.since(before)
            self._costs.append((self._spent_s, whole_s - queued_s))
            self._record(self._iteration, before, mark)
        self._spent_s = 0.0
        self._iteration += 1
        if self._iteration % _BURST == 0:
            self._plan_burst()

    def _plan_burst(self) -> None:
        """Decide whether the next steps are measured."""
        if self._facts is not None:
            self._facts.find_gpu()
        if self._costs:
            # Medians, because a hook may have waited for a processor.
            hooks_s, whole_s = (median(each) for each in zip(*self._costs, strict=True))
            threads_s = sum(one.take_spent_s() for one in (self._writer, self._facts) if one is not None)
            self._sparse = sparse(hooks_s + threads_s / len(self._costs), whole_s)
            self._costs.clear()
        self._resting = self._iteration >= _FIRST and self._iteration // _BURST % self._sparse != 0
        if self._resting:
            self._before = None
            self._forward.clear()

    def _record(self, iteration: int, before: _Mark, mark: _Mark) -> None:
        sums, (whole_s, ran_s, queued_s) = mark.sums, mark.since(before)
        exchange_s = sum(sums.meetings)
        data_s = min(sums.data_s, max(0.0, whole_s - exchange_s))
        if self._facts is not None:
            self._facts.step(
                {
                    "whole_s": whole_s,
                    "exchange_s": exchange_s,
                    "data_s": data_s,
                    "ran_s": ran_s,
                    "queued_s": queued_s,
                    "elements": sums.elements,
                    "evaluated_s": sums.evaluated_s,
                    "saved_s": sums.saved_s,
                }
            )
        if self._session:
            return
        # The writer's thread makes the records: right after a step, the caches hold the model.
        process_s = max(0.0, mark.process_s - before.process_s)
        self._write(partial(self._step_record, iteration, mark, whole_s, data_s, exchange_s, process_s))
        if len(sums.meetings) > 1:
            self._write(partial(self._meetings_record, iteration, sums.meetings))

    def _step_record(
        self, iteration: int, mark: _Mark, whole_s: float, data_s: float, exchange_s: float, process_s: float
    ) -> StepRecord:
        return StepRecord(
            rank=self._rank,
            iteration=iteration,
            epoch=0,
            batch=max(1, mark.sums.samples),
            global_batch=0,  # the sum of all batches, which this worker does not know
            data_s=round(data_s, _DIGITS),
            compute_s=round(max(0.0, whole_s - exchange_s) - data_s, _DIGITS),
            exchange_s=round(exchange_s, _DIGITS),
            control_s=0.0,
            ended_at_s=round(time.time() - (_now() - mark.at_s), _DIGITS),
            local_cpu_s=round(process_s, _DIGITS),
        )

    def _meetings_record(self, iteration: int, meetings: list[float]) -> MeetingsRecord:
        kept = meetings[:_MOST_MEETINGS]
        if len(meetings) > _MOST_MEETINGS:
            kept.append(sum(meetings[_MOST_MEETINGS:]))
        seconds = tuple(round(one, _DIGITS) for one in kept)
        return MeetingsRecord(rank=self._rank, iteration=iteration, seconds=seconds)

    def _write(self, record: Record | Callable[[], Record]) -> None:
        if self._writer is not None:
            self._writer.write(record)


def has_optimizer() -> bool:
    """Return whether this script has an optimizer, whose first step takes many meetings."""
    return any(issubclass(type(one), torch.optim.Optimizer) for one in gc.get_objects())


def sparse(cost_s: float, step_s: float) -> int:
    """Return the power of two n so that measuring one step in n keeps within the budget: 1 … 64."""
    over = cost_s / step_s / BUDGET
    return min(_SPARSEST, 2 ** math.ceil(math.log2(over))) if over > 1 else 1


def _size_of(batch: Any, depth: int = 3) -> tuple[int, int]:
    """Return the samples of a batch, the length of its first tensor, and the elements of all its tensors."""
    if isinstance(batch, torch.Tensor):
        return (batch.shape[0] if batch.dim() else 1), batch.numel()
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if depth == 0 or not isinstance(batch, Sequence) or isinstance(batch, str):
        return 0, 0
    samples = elements = 0
    for item in batch[:16]:  # a list of strings may be long
        first, numbers = _size_of(item, depth - 1)
        samples = samples or first
        elements += numbers
    return samples, elements
