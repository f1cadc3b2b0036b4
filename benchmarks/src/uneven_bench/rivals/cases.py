"""The clusters of ``uneven bench rivals``: costs, and the slowness of each worker in each iteration."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]  # shape (iterations, workers)
ITERATIONS = 400
SETTLING = 80  # first iterations, which do not count: two epochs of the rules that decide once an epoch
CHANGE = 150  # iteration at which speeds or links change, in the middle of an epoch

# Seconds, as measured on 0.6, 0.4, 0.2 and 0.1 of a core. Of the overhead a quarter is paid again for every
# micro-batch: a backward pass of that network over one sample takes as long as two and a half samples more.
CPU_OVERHEAD_S = (0.0057, 0.0079, 0.0141, 0.042)
CPU_PER_SAMPLE_S = (0.0006, 0.00084, 0.00208, 0.00425)
LAUNCH_PART = 0.25

HELD = 10  # iterations that one recorded mini-batch time holds: every tenth was recorded
GOOGLE_HELD = 25  # iterations that one recorded use of a machine holds


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalCase:
    """One cluster over all iterations. A batch of x samples takes worker i, in iteration k, on its own, slow[k, i] ·
    (step_s[i] + launch_s[i] + per_sample_s[i] · x) + transfer_s[k, i]   seconds."""

    name: str
    global_batch: int
    step_s: tuple[float, ...]  # of an iteration, for any batch
    launch_s: tuple[float, ...]  # of a micro-batch of any size: the small-batch inefficiency
    per_sample_s: tuple[float, ...]
    slow: Table  # factor on compute time; 1 is the worker as described
    level: Table  # the same without noise and spikes, which cannot be foreseen
    transfer_s: Table  # its side of the exchange

    @property
    def workers(self) -> int:
        return len(self.step_s)

    def local_s(self, k: int, i: int, samples: int) -> float:
        """Return the compute time of a batch in one piece."""
        return float(self.slow[k, i]) * (self.step_s[i] + self.launch_s[i] + self.per_sample_s[i] * samples)

    def micro_s(self, k: int, i: int, samples: int) -> float:
        """Return the compute time of one micro-batch."""
        return float(self.slow[k, i]) * (self.launch_s[i] + self.per_sample_s[i] * samples)

    def fixed_s(self, k: int, i: int) -> float:
        """Return the compute time of an iteration without its micro-batches."""
        return float(self.slow[k, i]) * self.step_s[i]


def cases(recorded: Callable[[str], Table | None], seed: int) -> tuple[RivalCase, ...]:
    """Return the clusters, with new noise for each seed. ``recorded``: "jobs": mini-batch times (records, 10); "use":
    the use of machines (records, 8), 0 … 1; None without a recording: then a made-up one is played."""
    rng = np.random.default_rng(seed)
    overhead_s, per_sample_s = CPU_OVERHEAD_S, CPU_PER_SAMPLE_S
    four = _describe(overhead_s, per_sample_s)
    eight = _describe(overhead_s * 2, per_sample_s * 2)
    same = _describe((0.006,) * 4, (0.0009,) * 4)
    same8 = _describe((0.006,) * 8, (0.0009,) * 8)
    # A tenth of a K520's time per image on each faster card, and a launch that costs as much as ten images.
    cards = _describe((0.008, 0.009, 0.009, 0.010), (0.00009, 0.00028, 0.00031, 0.00056), launch=0.5)
    one4, one8 = np.ones((ITERATIONS, 4)), np.ones((ITERATIONS, 8))
    step = one4.copy()
    step[CHANGE:, 0] = 2.5
    cut = np.full((ITERATIONS, 4), 0.004)
    cut[CHANGE:, 1] = 0.04
    jobs, use = recorded("jobs"), recorded("use")

    def case(
        name: str, each: int, costs: _Described, level: Table, noise: Table, moved_s: Table | None = None
    ) -> RivalCase:
        return RivalCase(
            name=name, global_batch=each * level.shape[1], step_s=costs[0], launch_s=costs[1], per_sample_s=costs[2],
            slow=level * noise, level=level, transfer_s=np.full(level.shape, 0.001) if moved_s is None else moved_s,
        )  # fmt: skip

    def noise(workers: int, spread: float) -> Table:
        return np.exp(rng.normal(0.0, spread, (ITERATIONS, workers)))

    found = [
        case("steady shares", 64, four, one4, noise(4, 0.05)),
        case("step change", 64, four, step, noise(4, 0.05)),
        case("noise and spikes", 64, four, one4, _spikes(rng, noise(4, 0.12))),
        case(f"{'made-up' if jobs is None else 'real'} job times", 64, same, _jobs(rng, jobs, seed), noise(4, 0.05)),
        case(f"{'made-up' if use is None else 'real'} machine use", 64, same8, _use(rng, use, seed), noise(8, 0.03)),
        case("bandwidth cut", 128, cards, one4, noise(4, 0.03), cut),
        case("equal workers", 64, same, one4, noise(4, 0.05)),
        case("8 workers", 64, eight, one8, noise(8, 0.05)),
    ]
    return tuple(found)


_ByWorker = tuple[float, ...]
_Described = tuple[_ByWorker, _ByWorker, _ByWorker]


def _describe(overhead_s: _ByWorker, per_sample_s: _ByWorker, launch: float = LAUNCH_PART) -> _Described:
    return tuple((1.0 - launch) * a for a in overhead_s), tuple(launch * a for a in overhead_s), per_sample_s


def _spikes(rng: np.random.Generator, slow: Table) -> Table:
    """Make one iteration in thirty of each worker take three times as long; shape (iterations, workers)."""
    return np.where(rng.random(slow.shape) < 1 / 30, 3.0 * slow, slow)


def _regimes(rng: np.random.Generator, rows: int, workers: int) -> Table:
    """Make levels from 1 to 4 that hold for about twenty rows; shape (rows, workers)."""
    levels = np.exp(rng.uniform(0.0, np.log(4.0), (rows, workers)))
    for row in range(1, rows):
        stay = rng.random(workers) > 1 / 20
        levels[row, stay] = levels[row - 1, stay]
    return levels


def _jobs(rng: np.random.Generator, recorded: Table | None, seed: int) -> Table:
    """Return four workers of a recorded job, relative to its median; another stretch of it for each seed."""
    rows = ITERATIONS // HELD
    if recorded is None:
        return np.repeat(_regimes(rng, rows, 4), HELD, axis=0)
    first = (seed * 397) % (len(recorded) - rows)
    stretch = recorded[first : first + rows, (0, 4, 5, 6)] / float(np.median(recorded))
    return np.repeat(stretch, HELD, axis=0)


def _use(rng: np.random.Generator, recorded: Table | None, seed: int) -> Table:
    """Return eight equal machines with other loads; another stretch for each seed."""
    rows = ITERATIONS // GOOGLE_HELD
    if recorded is None:
        return np.repeat(_regimes(rng, rows, 8), GOOGLE_HELD, axis=0)
    first = (seed * 61) % (len(recorded) - rows)
    left = np.clip(1.0 - recorded[first : first + rows], 0.05, 1.0)
    return np.repeat(1.0 / left, GOOGLE_HELD, axis=0)
