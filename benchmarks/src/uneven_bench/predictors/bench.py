"""``uneven bench predictors``: forecasts of workers' speeds, compared.

Every predictor sees the same iterations of the same workers, online, as in a run, except that training has no delay;
the first half of each case is for training, the second half is scored. Recording takes real time and processes; all
other figures are equal on every machine, up to rounding.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.predict import predictors
from uneven_bench.harness.show import Progress
from uneven_bench.predictors.cases import ITERATIONS, Floats, PredictorCase, announced, synthetic
from uneven_bench.predictors.page import write_page
from uneven_bench.predictors.play import (
    AHEAD,
    SPIKED_ITERATIONS,
    iteration_s,
    limit_s,
    play,
    rmse,
    spike_followed,
    step_delays,
)
from uneven_bench.predictors.traces import real
from uneven_bench.recorded import recording as recorded
from uneven_bench.recorded import steps as recorded_steps
from uneven_bench.recorded.recording import RecordedRun

SINGLES = ("last", "ema", "steady", "arima", "rnn", "lstm", "narx")
MIXTURE = "auto"

PAGE = Path("uneven-predictors.html")  # the file of the pictures, in the working directory


def run(
    quick: bool, data: str, progress: Progress, *, record: Path | None = None, runs: Path | None = None
) -> dict[str, Any]:
    """Play all predictors on all cases; traces come from ``UNEVEN_DATA``. Raises ConfigError: ``record`` and ``runs``,
    ``record`` if this machine cannot emulate, or ``runs`` without a run. LaunchError: a run failed. ``quick``: fewer
    cases, and no recording without ``record``; ``data``: the data set of recorded runs; ``record``: folder that keeps
    recorded runs; ``runs``: folder with earlier runs; then none is recorded. Returns the object that ``--json`` prints;
    ``docs/measurements/predictors.md`` explains every key."""
    if record and runs:
        raise ConfigError("--record and --runs: give one, to record runs or to use recorded ones")
    kept, left_out = _recorded(quick, data, progress, record, runs)
    cases = {**real(quick), **{name: one.case for name, one in kept.items()}, **synthetic(400 if quick else 800)}
    result, told = score(cases, (*SINGLES, MIXTURE), progress)
    write_page(PAGE, cases, told)
    return {**result, **recorded_figures(kept, told), "left_out": left_out, "page": str(PAGE)}


def _recorded(
    quick: bool, data: str, progress: Progress, record: Path | None, runs: Path | None
) -> tuple[dict[str, RecordedRun], dict[str, str]]:
    """Return recorded runs, and the reasons for cases left out."""
    if runs is not None:
        return recorded.load(runs), {}
    if record is not None:
        recorded.record(record, data, progress)
        return recorded.load(record), {}
    why = "they take minutes, and this is the quick form" if quick else recorded.why_not()
    if why:
        return {}, {"recorded runs": why}
    with tempfile.TemporaryDirectory(prefix="uneven-predictors-") as folder:
        recorded.record(Path(folder), data, progress)
        return recorded.load(Path(folder)), {}


def recorded_figures(kept: dict[str, RecordedRun], told: dict[str, dict[str, Floats]]) -> dict[str, Any]:
    """Return figures of recorded runs only: their length, and the response to steps at known moments."""
    stepped = {case: one for case, one in kept.items() if one.steps}
    responses = {
        name: recorded_steps.response(by_case[case], one.steps)
        for name, by_case in told.items()
        for case, one in stepped.items()
    }
    return {
        "recorded": {
            name: {
                "iterations": one.case.iterations,
                "scored_from": one.case.scored_from,
                "iteration_s": one.iteration_s,
                "lasted_s": one.lasted_s,
                "steps": len(one.steps),
            }
            for name, one in kept.items()
        },
        "recorded_step_response": responses,
        "recorded_step_delay_iterations": {name: recorded_steps.delay(each) for name, each in responses.items()},
    }


def score(
    cases: dict[str, PredictorCase],
    names: tuple[str, ...],
    progress: Progress,
    *,
    spiked_in: int = SPIKED_ITERATIONS,
    stepped_in: int = ITERATIONS,
) -> tuple[dict[str, Any], dict[str, dict[str, Floats]]]:
    """Play and score; return figures and predictions, predictor → case → ``(workers, iterations)``. ``spiked_in,
    stepped_in``: iterations of the cases with spikes and steps."""
    told: dict[str, dict[str, Floats]] = {name: {} for name in names}
    errors: dict[str, dict[str, float]] = {name: {} for name in names}
    far_errors: dict[str, dict[str, float]] = {name: {} for name in names}
    times_s: dict[str, dict[str, float]] = {name: {} for name in names}
    work = [(case, name) for case in cases.values() for name in names]
    total = sum(case.speeds_per_s.size for case, _ in work)
    done = 0
    for case, name in work:
        progress("predictors", f"{case.name}, {name}", done / total)
        next_one, later = play(case, lambda name=name: predictors.resolve(name))  # type: ignore[misc]
        told[name][case.name] = next_one
        errors[name][case.name] = rmse(case, next_one)
        far_errors[name][case.name] = rmse(case, later)
        times_s[name][case.name] = iteration_s(case, next_one)
        done += case.speeds_per_s.size
    spiked, delays = {}, {}
    for place, name in enumerate(names):
        progress("spikes and steps", name, place / len(names))
        spiked[name] = spike_followed(name, spiked_in)
        delays[name] = step_delays(name, case=announced(stepped_in))
    progress("spikes and steps", "", 1.0)
    return {
        "rmse": errors,
        "rmse_ahead": far_errors,
        "ahead": AHEAD,
        "iteration_s": times_s,
        "limit_s": {name: limit_s(case) for name, case in cases.items()},
        **_best(cases, errors, times_s),
        "spike_followed": spiked,
        "step_delay_iterations": {name: statistics.median(found) for name, found in delays.items()},
        "step_delay_worst": {name: max(found) for name, found in delays.items()},
    }, told


def _best(
    cases: dict[str, PredictorCase], errors: dict[str, dict[str, float]], times_s: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """Return the best single predictor of each case by iteration time and by error, and the loss of the mixture."""
    singles = [name for name in errors if name != MIXTURE]
    by_time = {case: min(singles, key=lambda name: times_s[name][case]) for case in cases}
    by_error = {case: min(singles, key=lambda name: errors[name][case]) for case in cases}
    found: dict[str, Any] = {"best_single": by_time, "best_single_rmse": by_error}
    if MIXTURE in errors:
        regret = {case: times_s[MIXTURE][case] / times_s[by_time[case]][case] for case in cases}
        regret_rmse = {case: errors[MIXTURE][case] / errors[by_error[case]][case] for case in cases}
        found |= {"regret_iteration_s": regret, "regret_rmse": regret_rmse}
        found |= {"auto_regret": max(regret.values()), "auto_regret_rmse": max(regret_rmse.values())}
    return found
