"""Predictors on the iterations of a case, and their errors, in virtual time."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from uneven.policy.core.views import Observation
from uneven.policy.predict import Predictor, predictors, study
from uneven_bench.predictors.cases import BASE_PER_S, SPIKE, Floats, PredictorCase, announced, calm

AHEAD = 4  # iterations of the longer forecast
SAMPLES_PER_WORKER = 64  # global batch ÷ workers
_FOLLOWED = 0.9
SPIKED_ITERATIONS = 400
_SPIKES_FROM, _SPIKES_EVERY = 200, 25


def play(case: PredictorCase, make: Callable[[], Predictor], ahead: int = AHEAD) -> tuple[Floats, Floats]:
    """Feed each worker's predictor its iterations, with training without delay. Returns predictions (workers,
    iterations) made right before each iteration, and ``ahead`` iterations before its end; NaN without one."""
    next_one = np.full(case.speeds_per_s.shape, np.nan)
    later = np.full((case.workers, case.iterations + ahead), np.nan)
    for worker in range(case.workers):
        predictor = make()
        batches = [SAMPLES_PER_WORKER] * case.iterations if case.samples is None else case.samples[worker].tolist()
        rows = (batches, *(one[worker].tolist() for one in (case.speeds_per_s, case.cpu, case.memory)))
        for k, (samples, speed, cpu, memory) in enumerate(zip(*rows, strict=True)):
            next_one[worker, k] = predictor.predict()
            seen = Observation(iteration=k, samples=samples, local_s=samples / speed, cpu=cpu, memory=memory)
            predictor.observe(seen)
            study(predictor)
            if k + ahead >= case.scored_from:
                later[worker, k + ahead] = predictor.predict(ahead)
    return next_one, later[:, : case.iterations]


def rmse(case: PredictorCase, told: Floats) -> float:
    """Return the root mean square error of predictions (workers, iterations), each worker's in units of its mean speed
    in the scored part."""
    speeds, told = case.speeds_per_s[:, case.scored_from :], told[:, case.scored_from :]
    return float(np.sqrt(np.mean(((told - speeds) / speeds.mean(axis=1, keepdims=True)) ** 2)))


def iteration_s(case: PredictorCase, told: Floats) -> float:
    """Return the mean time of a BSP iteration split in proportion to predictions (workers, iterations): max_i x_i /
    v_i."""
    speeds, told = case.speeds_per_s[:, case.scored_from :], told[:, case.scored_from :]
    return float(np.mean((shares(told) * SAMPLES_PER_WORKER * case.workers / speeds).max(axis=0)))


def limit_s(case: PredictorCase) -> float:
    """Return :func:`iteration_s` of correct predictions."""
    return iteration_s(case, case.speeds_per_s)


def shares(told: Floats) -> Floats:
    """Return parts of the global batch in proportion to speeds, both (workers, iterations)."""
    return told / told.sum(axis=0)


def spike_followed(spec: str, iterations: int = SPIKED_ITERATIONS) -> float:
    """Return the largest relative change of a share by lone spikes of one worker, against a run with exactly the usual
    speed in their place and the same noise."""
    quiet, slow = calm(iterations), slice(_SPIKES_FROM, iterations - 2, _SPIKES_EVERY)
    usual = quiet.speeds_per_s.copy()
    usual[0, slow] = BASE_PER_S[0]
    spiked = usual.copy()
    spiked[0, slow] *= SPIKE
    runs = [replace(quiet, speeds_per_s=speeds) for speeds in (usual, spiked)]
    before, after = (shares(play(case, _maker(spec))[0][:, _SPIKES_FROM:]) for case in runs)
    return float(np.abs(after / before - 1.0).max())


def step_delays(spec: str, told: Floats | None = None, case: PredictorCase | None = None) -> list[int]:
    """Return for every scored step of :func:`~uneven_bench.predictors.cases.announced` the iterations until nine tenths
    of it are predicted: 0 if before its first iteration, at most the length of the new level. ``told`` is (workers,
    iterations)."""
    case = case or announced()
    told = play(case, _maker(spec))[0] if told is None else told
    levels = case.levels_per_s
    if levels is None:
        raise ValueError("the levels of this case are not known")
    delays = []
    for row, level in zip(told, levels, strict=True):
        changes = (np.flatnonzero(np.diff(level)) + 1).tolist()
        for start, end in zip(changes, [*changes[1:], len(level)], strict=True):
            if start >= case.scored_from:
                step = level[start] - level[start - 1]
                done = (row[start:end] - level[start - 1]) / step >= _FOLLOWED
                delays.append(int(done.argmax()) if done.any() else end - start)
    return delays


def _maker(spec: str) -> Callable[[], Predictor]:
    return lambda: predictors.resolve(spec)
