"""The cost of asynchrony in one pass: real gradients in virtual time, so that a seed always gives the same answer.

::

    thread of a trainer   rows requested `ahead` batches before; forward and backward with its first dense numbers;
                          at its end the dense gradient into its trainer's live replica, the rows' into the tables
    start of a trainer    after `stagger` updates of the tables for each trainer before it; then its shadow starts
    shadow of a trainer   exchanges without pause; the sync server takes one exchange after the other
    foreground twin       each thread exchanges at a period of its own batches, and waits

A batch lasts one unit of time and a little chance; an exchange occupies the sync server for half a unit in all ways.
It is that of ``easgd``: d = α (x − x̃) of the replica that was sent, x̃ += d, and the live replica −= d.
:mod:`uneven_bench.recommendation.tuning` chooses the settings and judges.
"""

import heapq
import math
import multiprocessing
import os
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.embedding import RowwiseAdagrad
from uneven.embedding.kernels import kernels
from uneven.embedding.pure.row_optimizers import Bags
from uneven_bench.harness.show import Progress, Told
from uneven_bench.harness.threads import threads
from uneven_bench.recommendation import tuning
from uneven_bench.recommendation.clicks import Clicks, clicks
from uneven_bench.recommendation.model import DIM, ClickNet
from uneven_bench.recommendation.tuning import PLAIN, Learned, LearningSettings, Pass, Passes

BATCH, HELD = 128, 5
_EXCHANGE, _BETA, _JITTER = 0.5, 0.9, 0.1  # α is β ÷ trainers, as in uneven.sync.EASGD
STAGGER = 16
TWINS = {"easgd-5": 5, "easgd-30": 30}


@dataclass(frozen=True, slots=True)
class Learning:
    """One way to go through the log once."""

    trainers: int = 1
    threads: int = 1
    batch: int = BATCH
    ahead: int = 0
    # batches of a thread between two exchanges in the foreground; 0 for a shadow; None for no exchange
    every: int | None = None
    # `EmbeddingBagCollection(stagger=)`: updates for each trainer before it that a trainer waits for at its start
    stagger: int = 0


WAYS = {
    "sequential": Learning(),
    "synchronous": Learning(batch=8 * BATCH),
    "asynchronous": Learning(4, 2, ahead=1, every=0, stagger=STAGGER),
    **{name: Learning(4, 2, ahead=1, every=every, stagger=STAGGER) for name, every in TWINS.items()},
}
TRAINERS = (2, 4, 8)


def at(way: str, trainers: int) -> str:
    """Return the name of an asynchronous way with this number of trainers."""
    return way if trainers == WAYS[way].trainers else f"{way}, {trainers} trainers"


# The paper's table is played at the settings that the asynchronous way of four trainers has chosen.
ELP = {
    at(way, trainers): replace(WAYS[way], trainers=trainers)
    for way in ("asynchronous", *TWINS)
    for trainers in TRAINERS
}


@dataclass(slots=True)
class _Trainer:
    dense: Tensor
    sums: Tensor


@dataclass(slots=True)
class _Thread:
    """One thread: its trainer, batches with their rows, its first dense numbers, and the batches since its exchange."""

    trainer: _Trainer
    asked: deque[tuple[Any, Tensor]] = field(default_factory=deque)
    begun: Tensor | None = None
    since: int = 0


class OnePass:
    """One pass over the log; see the module."""

    def __init__(self, data: Clicks, way: Learning, seed: int, settings: LearningSettings = PLAIN) -> None:
        self._way = way
        self._data = data
        self._tables = RowwiseAdagrad(settings.table_lr, initial_accumulator_value=settings.first_sum)
        self._dense_lr = settings.dense_lr
        self._held = len(data.clicked) // HELD
        random = np.random.default_rng(seed)
        self._order = self._held + random.permutation(len(data.clicked) - self._held)
        self._random = random
        torch.manual_seed(seed)
        self._net = ClickNet(len(data.rows), data.numbers.shape[1])
        self._params = list(self._net.parameters())
        # Otherwise all batches in flight at the start learn the base rate at the same time, several times too far.
        base_rate = float(data.clicked[self._held :].mean())
        nn.init.constant_(self._params[-1], math.log(base_rate / (1 - base_rate)))
        start = nn.utils.parameters_to_vector(self._params).detach()
        self._trainers = [_Trainer(start.clone(), torch.zeros_like(start)) for _ in range(way.trainers)]
        self._central = start.clone()
        spread = np.repeat(1 / np.sqrt(np.array(data.rows)), data.rows).astype(np.float32)[:, None]
        self._rows = (random.random((sum(data.rows), DIM), dtype=np.float32) * 2 - 1) * spread
        self._sums = np.full(len(self._rows), settings.first_sum, np.float32)
        self._kernels = kernels()
        self._server_free = 0.0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._at = self._numbered = self._running = self._started = self._applied = self._exchanged = 0

    @threads()
    def run(self) -> Learned:
        """Go through the log, on one core: sums over several cores could differ in their last bits."""
        self._start(0.0)
        now, last = 0.0, 0.0
        while self._events:
            now, _, happens = heapq.heappop(self._events)
            last = now if self._running else last
            happens(now)
        return self._judged(len(self._order) / last)

    def _start(self, now: float) -> None:
        """Start the trainers whose turn has come."""
        while self._started < len(self._trainers) and self._applied >= self._started * self._way.stagger:
            trainer = self._trainers[self._started]
            self._started += 1
            for thread in [_Thread(trainer) for _ in range(self._way.threads)]:
                self._ask(thread, 1 + self._way.ahead)
                self._begin(thread, now)
            if self._way.every == 0:
                self._shadow(trainer, now)

    def _later(self, time: float, happens: Callable[[float], None]) -> None:
        self._numbered += 1
        heapq.heappush(self._events, (time, self._numbered, happens))

    def _ask(self, thread: _Thread, batches: int) -> None:
        """Fetch its next rows as they are now."""
        for _ in range(batches):
            mine = self._order[self._at : self._at + self._way.batch]
            self._at += len(mine)
            if len(mine):
                thread.asked.append((mine, self._lookup(mine)))

    def _begin(self, thread: _Thread, now: float) -> None:
        if not thread.asked:
            return
        self._running += 1
        thread.begun = thread.trainer.dense.clone()
        lasts = max(0.2, 1 + _JITTER * float(self._random.standard_normal()))
        self._later(now + lasts, lambda then: self._end(thread, then))

    def _end(self, thread: _Thread, now: float) -> None:
        mine, pooled = thread.asked.popleft()
        assert thread.begun is not None
        self._running -= 1
        nn.utils.vector_to_parameters(thread.begun, self._params)
        values = pooled.requires_grad_()
        score = self._net(values, torch.from_numpy(self._data.numbers[mine]))
        loss = F.binary_cross_entropy_with_logits(score, torch.from_numpy(self._data.clicked[mine]))
        *dense, rows = torch.autograd.grad(loss, [*self._params, values])
        gradient = nn.utils.parameters_to_vector(dense)
        one = thread.trainer
        one.sums += gradient.square()
        one.dense -= self._dense_lr * gradient / (one.sums.sqrt() + 1e-10)
        flat = self._bags(mine)
        given = np.ascontiguousarray(rows.numpy().reshape(-1, DIM))
        self._kernels.update(self._rows, self._sums, flat, given, self._tables)
        self._applied += 1
        self._start(now)
        self._ask(thread, 1)
        thread.since += 1
        if self._way.every and thread.since >= self._way.every:
            thread.since = 0
            self._running += 1
            self._exchange(one, now, lambda then: self._again(thread, then))
        else:
            self._begin(thread, now)

    def _again(self, thread: _Thread, now: float) -> None:
        self._running -= 1
        self._begin(thread, now)

    def _shadow(self, trainer: _Trainer, now: float) -> None:
        if self._running:
            self._exchange(trainer, now, lambda then: self._shadow(trainer, then))

    def _exchange(self, trainer: _Trainer, now: float, then: Callable[[float], None]) -> None:
        """Exchange by EASGD: the central replica and the trainer's move towards each other; the server takes its
        time."""
        self._exchanged += 1
        sent = trainer.dense.clone()
        over = self._server_free = max(now, self._server_free) + _EXCHANGE

        def arrived(at: float) -> None:
            moved = (sent - self._central) * (_BETA / len(self._trainers))
            self._central += moved
            trainer.dense -= moved
            then(at)

        self._later(over, arrived)

    def _bags(self, samples: Any) -> Bags:
        flat = self._data.ids[samples].reshape(-1)
        return Bags(0, DIM, len(flat), flat, 1)

    def _lookup(self, samples: Any) -> Tensor:
        return torch.from_numpy(self._kernels.lookup(self._rows, self._bags(samples))).view(len(samples), -1).clone()

    def _judged(self, per_unit: float) -> Learned:
        replica = self._central if self._way.every is not None else self._trainers[0].dense
        nn.utils.vector_to_parameters(replica, self._params)
        scores = []
        with torch.no_grad():
            for start in range(0, self._held, 4096):
                some = np.arange(start, min(self._held, start + 4096))
                scores.append(self._net(self._lookup(some), torch.from_numpy(self._data.numbers[some])))
        half = self._held // 2  # the first is for validation
        score, clicked = torch.cat(scores).double(), torch.from_numpy(self._data.clicked[: self._held]).double()
        validation, loss = (
            F.binary_cross_entropy_with_logits(score[part], clicked[part]).item()
            for part in (slice(half), slice(half, None))
        )
        # A shadow exchanges for all threads of its trainer; in the foreground each thread does.
        batches = self._applied / self._way.threads if self._way.every == 0 else self._applied
        gap = batches / self._exchanged if self._exchanged else None
        return Learned(loss, area_under_curve(clicked[half:], score[half:]), validation, per_unit, gap)


def area_under_curve(clicked: Tensor, score: Tensor) -> float:
    """Return the share of pairs in which the clicked sample (n,) has the higher score (n,); equal scores count half."""
    _, place, counts = score.unique(return_inverse=True, return_counts=True)
    below = (counts.cumsum(0) - (counts + 1) / 2)[place][clicked > 0.5].double()
    return float((below.mean() - (len(below) - 1) / 2) / (len(clicked) - len(below)))


def quality(seeds: int, samples: int, grid: Sequence[LearningSettings], told: Progress) -> dict[str, Any]:
    """Play all ways on the same samples and seeds, each tuned over the same grid; see :func:`tuning.judged` and
    :func:`paper_table`."""
    data, ways = clicks(samples), list(WAYS)
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_hold, initargs=(data,)) as pool:
        tuned = _played(pool, tuning.to_tune(ways, grid, seeds), partial(told, "tuning in virtual time"))
        own = tuning.chosen(tuned)
        more = [Pass(way, own["asynchronous"], seed) for way in ELP for seed in range(seeds)]
        wanted = list(dict.fromkeys([*tuning.to_report(own, seeds), *more]))
        found = _played(pool, wanted, partial(told, "learning in virtual time"))
    return tuning.judged(tuned, found, seeds, TWINS) | {"elp": paper_table(found, own, seeds)}


def paper_table(found: Passes, own: Mapping[str, LearningSettings], seeds: int) -> dict[str, Any]:
    """Return the paper's table, way → ``elp`` (batch × threads × trainers: examples in flight), ``sync_gap``
    (iterations of a thread between two exchanges of its numbers), ``examples`` in a unit of time, ``log_loss`` and
    ``logloss_vs_sequential`` (over one process at its own best settings, less 1): means over the seeds. The gap is None
    if a pass ended before its first exchange."""
    alone = [found[Pass("sequential", own["sequential"], seed)].log_loss for seed in range(seeds)]
    rows: dict[str, Any] = {}
    for name, way in ELP.items():
        many = [found[Pass(name, own["asynchronous"], seed)] for seed in range(seeds)]
        gaps = [one.gap for one in many if one.gap is not None]
        worse = (one.log_loss / base - 1 for one, base in zip(many, alone, strict=True))
        rows[name] = {
            "elp": way.batch * way.threads * way.trainers,
            "sync_gap": statistics.fmean(gaps) if len(gaps) == seeds else None,
            "examples": statistics.fmean(one.per_unit for one in many),
            "log_loss": statistics.fmean(one.log_loss for one in many),
            "logloss_vs_sequential": statistics.fmean(worse),
        }
    return rows


def _played(pool: Executor, passes: Sequence[Pass], told: Told) -> dict[Pass, Learned]:
    """Play one pass on each core; virtual time does not depend on it."""
    under_way = {pool.submit(_play, one): one for one in passes}
    for number, done in enumerate(as_completed(under_way), 1):
        told(f"{under_way[done].way}, {number} of {len(passes)} passes", number / len(passes))
    return {one: done.result() for done, one in under_way.items()}


_held: Clicks | None = None  # one for each process of the pool, so that no pass sends the log


def _hold(data: Clicks) -> None:
    global _held
    _held = data


def _play(one: Pass) -> Learned:
    assert _held is not None
    return OnePass(_held, (WAYS | ELP)[one.way], one.seed, one.settings).run()
