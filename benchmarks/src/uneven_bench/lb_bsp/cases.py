"""The cases of ``uneven bench lb-bsp``: workers, their shares of a core over time, and arms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]  # shape (rounds, workers)
SHARES = (0.6, 0.4, 0.2, 0.1)
PER_WORKER = 128  # samples of an iteration and worker on average: ResNet-32's on CIFAR-10 in programs around LB-BSP
EIGHT = (0.4, 0.3, 0.25, 0.2, 0.15, 0.12, 0.1, 0.08)
OURS = "lb-bsp"  # the arm named "ours"
TOGETHER = "together"  # ours with iterations that workers finish together
LIMIT = "oracle"

RULES = {"dbs": "rival:dbs:epoch=10", "omnilearn": "rival:omnilearn:epoch=10", "lbb": "rival:lbb"}
"""Rivals that balance. An epoch of the digits would be six iterations and one of CIFAR-10 seven hundred; here ten."""

INSIDE = {"flexrr": "flexrr:pieces=4", "backup": "backup:spares=1", "accumulate": "accumulate:pieces=4"}
"""Rivals with their own iteration. An even share has four micro-batches: in virtual time, without a thread that listens
while a worker computes, this suits FlexRR best of four, eight and sixteen, and accumulation nearly so."""

BASE = {"ddp": "ddp", "even": "even", "static": "static:profile=4"}
SINGLES = {"last": "lb-bsp:predictor=last", "ema": "lb-bsp:predictor=ema"}
AGAIN = "ddp-again"
"""DDP with another copy of the model, elsewhere in memory. If a per cent counts, ours is compared with the mean of
both, which run before and after it."""

PAIR = {"ddp": "ddp", OURS: "lb-bsp", AGAIN: "ddp"}
RIVALS = ("ddp", "static", *RULES, *INSIDE)  # the rivals of ours
ARMS = {**BASE, **SINGLES, OURS: "lb-bsp", LIMIT: LIMIT}  # the arms of ``--quick``, without rivals but a profile
FULL = {"ddp": "ddp", "static": BASE["static"], **RULES, **INSIDE, OURS: "lb-bsp", LIMIT: LIMIT}
SLOW = ("ddp", "even", "static", "backup", "flexrr", "accumulate")
"""Arms far from the limit, for which fewer rounds suffice if rounds are equal."""

TRACED = (0, 4, 5, 6)  # workers of the recorded job, those of ``uneven bench rivals``
FLICKERING = {**FULL, TOGETHER: TOGETHER}
MOST = 1.6  # the most cores of all workers together; the machine should have two


@dataclass(frozen=True, slots=True, kw_only=True)
class LbBspCase:
    """One comparison."""

    name: str
    about: str
    workload: str = "images"
    workers: int = 4  # their number
    # of a core, for each worker, round by round; one row if they never change, none for full speed
    shares: tuple[tuple[float, ...], ...] = ()
    global_batch: int = 4 * PER_WORKER
    arms: Mapping[str, str] = field(default_factory=lambda: dict(FULL))  # name → text; see ``lb_bsp_worker``
    block: int = 8  # iterations of a round
    settling: int = 4  # rounds at the beginning that do not count, in which arms find a split
    rounds: int = 40  # that count; one for each row if shares change
    seconds: float = 180.0  # no round begins after this time, if rounds are equal
    rare_every: int = 1  # arms in ``SLOW`` take part in every n-th round
    profile_s: float = 8.0  # time of each worker's own measurement for the oracle; 0 for none
    # bandwidth of each worker's link, round by round; empty for the machine's. Needs root.
    mbit_per_s: tuple[tuple[float, ...], ...] = ()
    change: int | None = None  # the round of a single change, else None
    look: int = 1  # rounds between copies of each model, for its accuracy
    catch_up: bool = False  # in the end train every arm as long as the one that was trained longest
    ours: str = OURS  # the arm that rivals are compared with

    @property
    def changing(self) -> bool:
        """True if rounds differ, so that each counts with its time."""
        return len(self.shares) > 1 or len(self.mbit_per_s) > 1

    @property
    def limit(self) -> str:
        """The limit of all arms that decide before an iteration."""
        return LIMIT if LIMIT in self.arms else "ddp"

    def shares_at(self, number: int) -> tuple[float, ...]:
        """Return the shares of a round, of the first for earlier ones; empty for full speed."""
        return self.shares[min(max(number, 0), len(self.shares) - 1)] if self.shares else ()

    def mbit_at(self, number: int) -> tuple[float, ...]:
        """Return the bandwidths of a round, as :meth:`shares_at`."""
        return self.mbit_per_s[min(max(number, 0), len(self.mbit_per_s) - 1)] if self.mbit_per_s else ()


def cases(jobs: Table | None, use: Table | None = None) -> dict[str, LbBspCase]:
    """Return all cases. ``use``: of machines, 0 … 1, shape (records, machines), or None; ``jobs``: mini-batch times of
    a recorded job, shape (records, workers), or None."""
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


FLICKERS = {25: 4, 5: 12, 2: 24}  # iterations that a load stays → rounds of this length


def _flicker(held: int, rounds: int, use: Table | None) -> LbBspCase:
    return LbBspCase(
        name=f"flicker-{held}",
        about=f"four workers slowed down as {'recorded' if use is not None else 'made-up'} machines were, others every "
        f"{held} iterations",
        shares=flickering(use, rounds), global_batch=4 * 64, arms=FLICKERING, block=held, settling=1 + 5 // held,
        rounds=rounds, rare_every=2, look=0, ours=TOGETHER,
    )  # fmt: skip


def short() -> tuple[LbBspCase, LbBspCase]:
    """Return the steady case and ours with DDP on equal workers, within ninety seconds, without the rivals."""
    steady = LbBspCase(
        name="steady", about="four workers with 0.6, 0.4, 0.2 and 0.1 of a core", shares=(SHARES,), arms=ARMS, block=4,
        settling=3, rounds=40, seconds=20.0, rare_every=3, profile_s=2.0, look=0, catch_up=True,
    )  # fmt: skip
    pair = LbBspCase(
        name="pair", about="four workers that nobody slows down", arms=PAIR, global_batch=256, settling=2,
        rounds=80, seconds=6.0, profile_s=0.0, look=0,
    )  # fmt: skip
    return steady, pair


def traces(jobs: Table | None, rounds: int) -> tuple[tuple[float, ...], ...]:
    """Return shares of a core that slow four workers down as in a recorded job, a record a round of ten iterations, as
    every tenth was recorded. The stretch with the largest changes is played. A share is inverse to the mini-batch time;
    the largest sum of a round is ``MOST`` cores."""
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
    """Return shares of a core in proportion, shape (rounds, workers)."""
    shares: Table = np.clip(speeds / speeds.sum(1).max() * MOST, 0.05, 0.9)
    return shares


def flickering(use: Table | None, rounds: int) -> tuple[tuple[float, ...], ...]:
    """Return the remaining shares of four workers, a record a round from the first one on. The machines are the four of
    a hundred with the largest changes in that time."""
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
    """Return overheads and seconds a sample under the shares ``now`` of the next round, from ``costs`` (``overhead_s``
    and ``per_sample_s`` of each worker) under the shares ``before``."""
    factors = [was / is_ for was, is_ in zip(before, now, strict=True)] if now else [1.0] * len(costs)
    return (
        [factor * cost["overhead_s"] for factor, cost in zip(factors, costs, strict=True)],
        [factor * cost["per_sample_s"] for factor, cost in zip(factors, costs, strict=True)],
    )


def corrected(cost: Mapping[str, float], worked_s: float, samples: int, share: float) -> dict[str, float]:
    """Return a worker's cost after one more block of the oracle's iterations, which count by half. The measurement
    alone at the start misses the effects of threads, caches and the exchange, which do not grow with the batch.
    ``worked_s``: processor time of an iteration; ``samples``: of it; ``share``: of a core, for the cost."""
    seen_s = worked_s / share - cost["per_sample_s"] * samples
    return {**cost, "overhead_s": max(0.0, (cost["overhead_s"] + seen_s) / 2)}
