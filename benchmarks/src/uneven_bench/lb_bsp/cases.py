"""The cases of ``uneven bench lb-bsp``: which workers, how their shares of a core change, who takes part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]
"""Shape (rounds, workers)."""

SHARES = (0.6, 0.4, 0.2, 0.1)
PER_WORKER = 128
"""Samples of an iteration and of each worker on average: ResNet-32's on CIFAR-10 in programs around LB-BSP."""

EIGHT = (0.4, 0.3, 0.25, 0.2, 0.15, 0.12, 0.1, 0.08)
OURS = "lb-bsp"
"""The arm that is meant by "ours"."""

TOGETHER = "together"
"""The same, whose iterations are finished together."""

LIMIT = "oracle"

RULES = {"dbs": "rival:dbs:epoch=10", "omnilearn": "rival:omnilearn:epoch=10", "lbb": "rival:lbb"}
"""Rivals that balance. An epoch of the digits would be six iterations and one of CIFAR-10 seven hundred; ten, here."""

INSIDE = {"flexrr": "flexrr:pieces=4", "backup": "backup:spares=1", "accumulate": "accumulate:pieces=4"}
"""Rivals with an iteration of their own. An even share has four micro-batches: in virtual time, and without a thread
that listens while a worker computes, that suits FlexRR best of four, eight and sixteen, and accumulation nearly so."""

BASE = {"ddp": "ddp", "even": "even", "static": "static:profile=4"}
SINGLES = {"last": "lb-bsp:predictor=last", "ema": "lb-bsp:predictor=ema"}
AGAIN = "ddp-again"
"""DDP with another copy of the model, elsewhere in memory. Where a per cent counts, ours is compared with the mean of
both, which are played before it and after it."""

PAIR = {"ddp": "ddp", OURS: "lb-bsp", AGAIN: "ddp"}
RIVALS = ("ddp", "static", *RULES, *INSIDE)
"""Whom ours is compared with."""

ARMS = {**BASE, **SINGLES, OURS: "lb-bsp", LIMIT: LIMIT}
"""Those of ``--quick``, where no rival but a profile takes part."""

FULL = {"ddp": "ddp", "static": BASE["static"], **RULES, **INSIDE, OURS: "lb-bsp", LIMIT: LIMIT}
SLOW = ("ddp", "even", "static", "backup", "flexrr", "accumulate")
"""Far from the limit, so that fewer rounds tell as much, where rounds are alike."""

TRACED = (0, 4, 5, 6)
"""Workers of the recorded job, those of ``uneven bench rivals``."""

FLICKERING = {**FULL, TOGETHER: TOGETHER}
MOST = 1.6
"""Cores that all workers together have at any time; the machine is to have two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LbBspCase:
    """One comparison.

    Attributes:
        shares: of a core, for each worker, round by round; one row if they never change, none if nobody is slowed down.
        workers: how many.
        arms: name → who; see ``lb_bsp_worker``.
        block: iterations of a round.
        settling: rounds at the beginning that do not count, for arms that look for a split.
        rounds: that count; a case whose shares change has as many as rows.
        seconds: after so long no round is begun, where rounds are alike.
        rare_every: arms in ``SLOW`` take part in every so many rounds.
        profile_s: how long each worker measures its own cost for the oracle; 0 if there is none.
        mbit_per_s: bandwidth of each worker's link, round by round; none: what the machine has. Needs root.
        change: round in which something changes once, None if nothing does or much.
        look: every so many rounds a copy of each model is kept, for its accuracy.
        catch_up: in the end train every arm as long as the one that was trained longest.
        ours: the arm that rivals are compared with.
    """

    name: str
    about: str
    workload: str = "images"
    workers: int = 4
    shares: tuple[tuple[float, ...], ...] = ()
    global_batch: int = 4 * PER_WORKER
    arms: Mapping[str, str] = field(default_factory=lambda: dict(FULL))
    block: int = 8
    settling: int = 4
    rounds: int = 40
    seconds: float = 180.0
    rare_every: int = 1
    profile_s: float = 8.0
    mbit_per_s: tuple[tuple[float, ...], ...] = ()
    change: int | None = None
    look: int = 1
    catch_up: bool = False
    ours: str = OURS

    @property
    def changing(self) -> bool:
        """Whether rounds differ, so that each counts for what it took."""
        return len(self.shares) > 1 or len(self.mbit_per_s) > 1

    @property
    def limit(self) -> str:
        """The arm that nobody who decides before an iteration can be much faster than."""
        return LIMIT if LIMIT in self.arms else "ddp"

    def shares_at(self, number: int) -> tuple[float, ...]:
        """Shares of a round; before the first round, those of the first. Empty where nobody is slowed down."""
        return self.shares[min(max(number, 0), len(self.shares) - 1)] if self.shares else ()

    def mbit_at(self, number: int) -> tuple[float, ...]:
        """The same for the links."""
        return self.mbit_per_s[min(max(number, 0), len(self.mbit_per_s) - 1)] if self.mbit_per_s else ()


def cases(jobs: Table | None, use: Table | None = None) -> dict[str, LbBspCase]:
    """All of them.

    Args:
        use: of machines, 0 … 1, shape (records, machines); None where no recording is there.
        jobs: mini-batch times of a recorded job, shape (records, workers); None where there is none.
    """
    traced = traces(jobs, 24)
    step = (*((0.55, 0.4, 0.25, 0.12),) * 3, *((0.22, 0.4, 0.25, 0.12),) * 5)
    wide = (150.0,) * 4
    narrow = (150.0, 40.0, 150.0, 150.0)
    found = (
        LbBspCase(
            name="steady",
            about="four workers with 0.6, 0.4, 0.2 and 0.1 of a core",
            shares=(SHARES,), arms={**BASE, **RULES, **INSIDE, **SINGLES, OURS: "lb-bsp", LIMIT: LIMIT},
            rare_every=3, seconds=240.0, catch_up=True,
        ),
        LbBspCase(
            name="step",
            about="in the midst of the run the fastest of four falls from 0.55 of a core to 0.22",
            shares=step, block=10, settling=2, rounds=len(step), change=3, rare_every=2,
        ),
        LbBspCase(
            name="traces",
            about="four workers slowed down as those of "
            + ("a recorded job on shared GPUs (Alibaba 2020, job 4)" if jobs is not None else "a made-up job"),
            shares=traced, block=10, settling=2, rounds=len(traced), rare_every=4, look=2,
        ),
        LbBspCase(
            name="eight",
            about="eight workers with 0.4 to 0.08 of a core",
            workers=8, shares=(EIGHT,), global_batch=8 * PER_WORKER, rare_every=3, seconds=240.0, catch_up=True,
        ),
        LbBspCase(
            name="equal",
            about="four workers that nobody slows down",
            arms={name: who for name, who in FULL.items() if name != LIMIT}, settling=3, seconds=120.0,
            profile_s=0.0, catch_up=True,
        ),
        LbBspCase(
            name="pair",
            about="the workers of `equal` with DDP and ours alone, as often as it takes to tell them apart",
            arms=PAIR, global_batch=256, settling=3, rounds=400, seconds=240.0, profile_s=0.0, look=0,
        ),
        LbBspCase(
            name="cut",
            about="four unequal workers on links of 150 Mbit/s; at iteration 150 the second one's falls to 40",
            shares=((0.5, 0.4, 0.25, 0.15),), mbit_per_s=(*(wide,) * 2, *(narrow,) * 5),
            block=10, settling=13, rounds=7, change=2, rare_every=2,
        ),
        LbBspCase(
            name="svm",
            about="a small SVM on sparse URL data, on the workers of `steady`",
            workload="svm", shares=(SHARES,), global_batch=16_384, rare_every=2, seconds=120.0,
            catch_up=True,
        ),
        LbBspCase(
            name="resnet",
            about="ResNet-32 on CIFAR-10, on the workers of `steady`",
            workload="resnet", shares=(SHARES,), global_batch=64, block=4, settling=3, seconds=220.0, rare_every=2,
            look=2,
        ),
    )  # fmt: skip
    flickers = tuple(_flicker(held, rounds, use) for held, rounds in FLICKERS.items())
    return {case.name: case for case in (*found, *flickers)}


FLICKERS = {25: 4, 5: 12, 2: 24}
"""Iterations that a load stays, and rounds of as many."""


def _flicker(held: int, rounds: int, use: Table | None) -> LbBspCase:
    return LbBspCase(
        name=f"flicker-{held}",
        about=f"four workers slowed down as {'recorded' if use is not None else 'made-up'} machines were, others every "
        f"{held} iterations",
        shares=flickering(use, rounds), global_batch=4 * 64, arms=FLICKERING, block=held, settling=1 + 5 // held,
        rounds=rounds, rare_every=2, look=0, ours=TOGETHER,
    )  # fmt: skip


def quick() -> tuple[LbBspCase, LbBspCase]:
    """The steady case and ours beside DDP on equal workers within ninety seconds, without the rivals."""
    steady = LbBspCase(
        name="steady", about="four workers with 0.6, 0.4, 0.2 and 0.1 of a core", shares=(SHARES,), arms=ARMS, block=4,
        settling=3, rounds=40, seconds=32.0, rare_every=3, profile_s=2.0, look=0, catch_up=True,
    )  # fmt: skip
    pair = LbBspCase(
        name="pair", about="four workers that nobody slows down", arms=PAIR, global_batch=256, settling=2,
        rounds=80, seconds=8.0, profile_s=0.0, look=0,
    )  # fmt: skip
    return steady, pair


def traces(jobs: Table | None, rounds: int) -> tuple[tuple[float, ...], ...]:
    """Shares of a core that slow four workers down as a recorded job's were, a record a round.

    Ten iterations a round, for every tenth was recorded. Of the recording the stretch is taken in which times change
    most. A worker's share is inverse to its mini-batch time; the largest sum of a round is ``MOST`` cores.
    """
    if jobs is None:
        rng = np.random.default_rng(3)
        times = np.exp(rng.uniform(0.0, np.log(4.0), (rounds, len(TRACED))))
        for row in range(1, rounds):
            stays = rng.random(len(TRACED)) > 0.25
            times[row, stays] = times[row - 1, stays]
    else:
        times = jobs[:, TRACED]
        changes = np.abs(np.diff(np.log(times), axis=0)).sum(1)
        first = int(np.convolve(changes, np.ones(rounds - 1), "valid").argmax())
        times = times[first : first + rounds]
    shares = _capped(1.0 / times)
    return tuple(tuple(float(share) for share in row) for row in shares.round(4))


def _capped(speeds: Table) -> Table:
    """Shares of a core in proportion, shape (rounds, workers)."""
    shares: Table = np.clip(speeds / speeds.sum(1).max() * MOST, 0.05, 0.9)
    return shares


def flickering(use: Table | None, rounds: int) -> tuple[tuple[float, ...], ...]:
    """What others leave to four workers, a record a round, from the first one on.

    The machines are four of the hundred whose speeds change most in that time.
    """
    rng = np.random.default_rng(0)
    if use is None:
        used = np.clip(rng.beta(1.0, 4.0, (rounds, 4)), 0.0, 0.95)
    else:
        some = use[np.arange(rounds) % len(use)]
        changes = np.abs(np.diff(np.log(np.clip(1.0 - some, 0.1, 1.0)), axis=0)).sum(0)
        used = some[:, rng.choice(np.argsort(-changes)[:100], 4, replace=False)]
    shares = _capped(np.clip(1.0 - used, 0.1, 1.0))
    return tuple(tuple(float(share) for share in row) for row in shares.round(4))


def oracle_costs(
    costs: Sequence[Mapping[str, float]], before: tuple[float, ...], now: tuple[float, ...]
) -> tuple[list[float], list[float]]:
    """Overheads and seconds a sample under other shares than those that they were measured under.

    Args:
        costs: ``overhead_s`` and ``per_sample_s`` of each worker.
        before: its share then.
        now: its share in the next round, from the schedule.
    """
    factors = [was / is_ for was, is_ in zip(before, now, strict=True)] if now else [1.0] * len(costs)
    return (
        [factor * cost["overhead_s"] for factor, cost in zip(factors, costs, strict=True)],
        [factor * cost["per_sample_s"] for factor, cost in zip(factors, costs, strict=True)],
    )


def corrected(cost: Mapping[str, float], worked_s: float, samples: int, share: float) -> dict[str, float]:
    """A worker's cost after one more block of the oracle's own iterations, which count by half.

    What was measured alone, at the start, misses what threads, caches and the exchange cost in place. That part does
    not grow with the batch.

    Args:
        cost: ``overhead_s`` and ``per_sample_s`` so far.
        worked_s: processor time of an iteration.
        samples: that it took.
        share: of a core, under which the cost is counted.
    """
    seen_s = worked_s / share - cost["per_sample_s"] * samples
    return {**cost, "overhead_s": max(0.0, (cost["overhead_s"] + seen_s) / 2)}
