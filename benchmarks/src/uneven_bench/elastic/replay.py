"""A replay of the committed steps of a run in one process, which judges the contents of each sum."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from uneven.policy.core.actions import Exchange, Merge
from uneven.policy.core.views import SyncView
from uneven.policy.sync import policies
from uneven_bench.elastic.logs import LoggedStep, WorkerLog
from uneven_bench.elastic.merges import MergedSteps, MergeLog
from uneven_bench.elastic.ring import ring_sum
from uneven_bench.elastic.workload import CountedWorkload, weights


def replay(workload: CountedWorkload, steps: Sequence[LoggedStep]) -> list[torch.Tensor]:
    """Return the parameters after these steps, in the order of :func:`uneven_bench.elastic.workload.weights`."""
    worker = ReplayedWorker(workload)
    for step in steps:
        worker.step(step.ids)
    return list(weights(worker.model))


class ReplayedWorker:
    """One worker of a run whose replicas are merged now and then. ``samples``: since its last merge."""

    def __init__(self, workload: CountedWorkload) -> None:
        self._workload = workload
        self._data = workload.data()
        self.model = workload.model()
        self._optimizer = workload.optimizer(self.model)
        self.samples = 0

    def copy(self) -> "ReplayedWorker":
        """Return a newcomer with this worker's state."""
        other = ReplayedWorker(self._workload)
        other.model.load_state_dict(self.model.state_dict())
        other._optimizer.load_state_dict(deepcopy(self._optimizer.state_dict()))
        return other

    def step(self, ids: Sequence[int]) -> None:
        """Take a step on these samples; a batch that only fills up a last part has no gradient."""
        if ids:
            x, y, _ = self._data[list(ids)]
            F.cross_entropy(self.model.layers(x), y).backward()
        else:
            for one in self.model.layers.parameters():
                one.grad = torch.zeros_like(one)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.samples += len(ids)

    def read(self) -> torch.Tensor:
        """Return all trained parameters, shape (numbers,)."""
        return parameters_to_vector(self.model.layers.parameters()).detach()

    def write(self, values: torch.Tensor) -> None:
        vector_to_parameters(values.clone(), self.model.layers.parameters())
        self.samples = 0


def replay_merges(
    workload: CountedWorkload,
    sync: str,
    logs: Sequence[WorkerLog],
    books: Sequence[MergeLog],
    merged: Sequence[MergedSteps],
    *,
    backwards: bool = False,
) -> dict[int, list[torch.Tensor]]:
    """Take the same steps and merges in one process, and return process → final parameters, of workers that ended.
    ``backwards``: add the replicas of a merge from the last worker to the first; only rounding differs."""
    merge = _merge(sync)
    workers = {book.worker: ReplayedWorker(workload) for book in books if book.donor < 0}
    kept: Any = merge.begin(next(iter(workers.values())).read())
    for one in merged:
        _join(workers, books, one.merge.number)
        for worker, steps in one.steps.items():
            for step in steps:
                workers[worker].step(step.ids)
        for group in one.merge.groups or (one.merge.workers,):
            kept = _merge_group(merge, kept, [workers[worker] for worker in group], workload, backwards)
    last = merged[-1].merge if merged else None
    _join(workers, books, 0 if last is None else last.number + 1)
    found = {}
    by_pid = {book.pid: book for book in books}
    for log in (log for log in logs if log.digest):
        own = workers[by_pid[log.pid].worker]
        for step in log.steps:
            if last is None or step.number >= last.upto:
                own.step(step.ids)
        found[log.pid] = list(weights(own.model))
    return found


def _merge_group(
    merge: Merge, kept: Any, those: Sequence[ReplayedWorker], workload: CountedWorkload, backwards: bool
) -> Any:
    counts = [max(merge.weight(one.samples), _LEAST) for one in those]
    given = [one.read() * count for one, count in zip(those, counts, strict=True)]
    if backwards:
        total = torch.stack(given[::-1]).sum(0)
    else:  # the ledger comes before the weights; the counts and the resting worker come behind them
        total = ring_sum(given, before=workload.samples, behind=_BEHIND)
    kept, outcome = merge.combine(kept, total / sum(counts), sum(counts))
    for one in those:
        one.write(outcome)
    return kept


def _join(workers: dict[int, ReplayedWorker], books: Sequence[MergeLog], number: int) -> None:
    for book in sorted(books, key=lambda book: book.worker):
        if book.donor >= 0 and book.since == number:
            workers[book.worker] = workers[book.donor].copy()


def _merge(sync: str) -> Merge:
    policy = policies.resolve(sync)
    views = (SyncView(rank=0, clock=clock, members=(0, 1)) for clock in range(_CLOCKS))
    exchange: Exchange = next(one for view in views for one in policy.plan(view).exchanges)
    return exchange.merge


_CLOCKS = 64
_BEHIND = 2  # numbers behind the weights in a merge: the counts, and the resting worker
_LEAST = 2.0**-40  # the weight of a replica without samples, in a mean by samples


def error(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Return the largest error of parameters of any shape, relative to the largest value of each tensor."""
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, wanted, strict=True))
