"""The measurement of a worker's steps by hooks of torch, without a change to its script.

A step ends with the last optimizer that steps before one of them steps a second time. Within a step the probe sums

* data: seconds in ``DataLoader.__next__``;
* meetings: seconds in which this worker waited for a collective operation. Under DDP that is the time from the last
  gradient (``Reducer.get_backward_stats``) to the end of the backward pass; elsewhere it is each ``Work.wait``;
* compute: the rest.

A loop without an optimizer has steps too: the shortest period in its sequence of collective operations.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from uneven.journal.reader import rank_path
from uneven.journal.writer import BackgroundWriter, Writer
from uneven.policy.core.records import MeetingsRecord, Record, RunRecord, StepRecord
from uneven.runtime.installed import VERSION
from uneven.runtime.world import discover
from uneven.why.facts import FactsThread, RunQueueClock
from uneven.why.loop_period import LoopPeriod
from uneven.why.unharmed import unharmed

_now = time.perf_counter
_MOST_MEETINGS = 64  # written per step; the rest is one sum


class _Sums:
    """What has happened since a point in time."""

    __slots__ = ("data_s", "elements", "meetings", "passes", "samples")

    def __init__(self) -> None:
        self.data_s = 0.0
        self.samples = 0
        self.elements = 0
        self.passes = 0
        self.meetings: list[float] = []  # seconds of each

    def cut(self, marked: _Mark) -> None:
        """Remove what a mark has counted."""
        self.data_s -= marked.data_s
        self.samples -= marked.samples
        self.elements -= marked.elements
        del self.meetings[: marked.meetings]


class _Mark:
    """The sums at the last optimizer step so far: what belongs to this step, if no other optimizer follows."""

    __slots__ = ("at_s", "data_s", "elements", "meetings", "process_s", "samples", "thread")

    def __init__(self, sums: _Sums, thread: tuple[int, int]) -> None:
        self.at_s = _now()
        self.data_s = sums.data_s
        self.samples = sums.samples
        self.elements = sums.elements
        self.meetings = len(sums.meetings)
        self.thread = thread
        self.process_s = time.process_time()


class Probe:
    """The measurement of one worker."""

    def __init__(self, run: Path, rank: int, size: int) -> None:
        self._rank = rank
        self._process = os.getpid()
        self._thread = threading.get_ident()  # the one that trains
        self._clock = RunQueueClock()
        self._run = run
        self._size = size
        self._sums = _Sums()
        self._mark: _Mark | None = None
        self._before: _Mark | None = None
        self._stepped: set[int] = set()  # optimizers in this step
        self._iteration = 0
        self._forward: dict[int, tuple[Any, float]] = {}  # DDP models between forward and backward pass
        self._undo: list[Callable[[], None]] = []
        self._inside = 0  # depth of measured calls, so that a wait within a wait counts once
        self._loop: LoopPeriod | None = LoopPeriod()  # None once an optimizer has stepped
        self._writer: BackgroundWriter | None = None
        self._facts: FactsThread | None = None
        self._session = False  # one of uneven writes the steps
        self._off = False

    @classmethod
    def start(cls, run: Path) -> Probe:
        """Set the hooks of this process and return its probe."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            world = discover()
            rank, size = world.rank, world.size
        probe = cls(run, rank, size)
        path = rank_path(run, rank)
        probe._session = _has_session(path)
        probe._writer = BackgroundWriter(Writer(path))
        if not probe._session:
            probe._write(
                RunRecord(
                    run=run.name,
                    rank=rank,
                    world_size=size,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    started_at_s=time.time(),
                    settings={"balance": "even", "sync": "bsp", "why": True},
                    versions={"torch": torch.__version__, "uneven": VERSION},
                )
            )
        probe._hook()
        probe._facts = FactsThread(rank, probe._clock, probe._write, lambda: probe._iteration)
        probe._facts.start()
        atexit.register(unharmed, probe.close)
        return probe

    @property
    def measures(self) -> bool:
        """Whether it measures this process: a forked loader inherits the hooks, and is not measured."""
        return not self._off and self._process == os.getpid()

    def close(self) -> None:
        """Remove the hooks and write the rest of the journal."""
        if self.measures:
            if self._mark is not None:
                self._end_step(self._mark)
            self._end()

    def _end(self) -> None:
        self._off = True
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
            if self._off or threading.get_ident() != self._thread or os.getpid() != self._process:
                return
            if not unharmed(lambda: hook(*args)):
                self._end()

        return call

    # ---- hooks

    def _hook(self) -> None:
        from torch.utils.data import dataloader

        self.before_optimizer = self._guarded(self._before_optimizer)
        self.after_optimizer = self._guarded(self._after_optimizer)
        self._around(dataloader._BaseDataLoaderIter, "__next__", self._loaded)
        self._around(torch.autograd, "backward", self._backward_ended, timed=False)
        if not torch.distributed.is_available():
            return
        from torch._C import _distributed_c10d
        from torch.distributed import _functional_collectives
        from torch.nn.parallel import DistributedDataParallel

        self._around(DistributedDataParallel, "_post_forward", self._forward_ended, timed=False)
        self._around(DistributedDataParallel, "_sync_buffers", self._met)
        self._around(_distributed_c10d.Work, "wait", self._met)
        self._around(_functional_collectives, "wait_tensor", self._met)

    def _around(self, owner: Any, name: str, hook: Callable[..., None], *, timed: bool = True) -> None:
        """Call ``hook(seconds, result, arguments)`` after each call of ``owner.name`` in the training thread."""
        original = getattr(owner, name)
        guarded = self._guarded(hook)

        @wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            if self._inside and timed:
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

    def _met(self, seconds: float, _: Any, __: Any) -> None:
        self._sums.meetings.append(seconds)
        if self._loop is not None and self._loop.ended():
            self._end_step(_Mark(self._sums, self._clock.read()))

    def _forward_ended(self, _: float, __: Any, args: Any) -> None:
        model = args[0]
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            self._forward[id(model)] = model, _now()

    def _backward_ended(self, _: float, __: Any, ___: Any) -> None:
        if not self._forward:
            return
        ended_s = _now()
        for model, forward_s in self._forward.values():
            last_ns = max(model.reducer.get_backward_stats(), default=0)
            if last_ns > 0:
                self._sums.meetings.append(max(0.0, ended_s - forward_s - last_ns / 1e9))
        self._forward.clear()

    def _before_optimizer(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) in self._stepped and self._mark is not None:
            self._end_step(self._mark)
            self._stepped.clear()

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._loop = None
        self._stepped.add(id(optimizer))
        self._mark = _Mark(self._sums, self._clock.read())

    # ---- steps

    def _end_step(self, mark: _Mark) -> None:
        before, self._before, self._mark = self._before, mark, None
        meetings = self._sums.meetings[: mark.meetings]
        self._sums.cut(mark)
        if before is None:  # the first step has no beginning
            return
        whole_s = mark.at_s - before.at_s
        exchange_s = sum(meetings)
        own_s = max(0.0, whole_s - exchange_s)
        data_s = min(mark.data_s, own_s)
        if not self._session:
            self._write(
                StepRecord(
                    rank=self._rank,
                    iteration=self._iteration,
                    epoch=0,
                    batch=max(1, mark.samples),
                    global_batch=0,  # the sum of all batches, which this worker does not know
                    data_s=data_s,
                    compute_s=own_s - data_s,
                    exchange_s=exchange_s,
                    control_s=0.0,
                    ended_at_s=time.time() - (_now() - mark.at_s),
                    local_cpu_s=max(0.0, mark.process_s - before.process_s),
                )
            )
        if len(meetings) > 1 and not self._session:
            kept = meetings[:_MOST_MEETINGS]
            if len(meetings) > _MOST_MEETINGS:
                kept.append(sum(meetings[_MOST_MEETINGS:]))
            self._write(MeetingsRecord(rank=self._rank, iteration=self._iteration, seconds=tuple(kept)))
        if self._facts is not None:
            ran_ns, queued_ns = mark.thread[0] - before.thread[0], mark.thread[1] - before.thread[1]
            self._facts.step(whole_s, exchange_s, ran_ns / 1e9, queued_ns / 1e9, mark.elements)
        self._iteration += 1

    def _write(self, record: Record) -> None:
        if self._writer is not None:
            self._writer.write(record)


def _has_session(path: Path) -> bool:
    """Return whether a session of this process writes the steps into the same journal."""
    try:
        with path.open() as file:
            mine = f'"pid":{os.getpid()},'
            return any('"kind":"run"' in line and mine in line for line in file)
    except FileNotFoundError:
        return False


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
