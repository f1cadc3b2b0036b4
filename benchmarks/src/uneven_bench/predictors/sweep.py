"""``uneven bench predictors --sweep``: the options of the predictors, one at a time, on windows that are not scored.

Only the first half of each trace is played, of which the second half counts, and made-up cases have another seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven.policy.predict import predictors
from uneven_bench.predictors.cases import PredictorCase, synthetic
from uneven_bench.predictors.play import iteration_s, limit_s, play, rmse
from uneven_bench.predictors.traces import real

GRID: dict[str, dict[str, tuple[str, ...]]] = {
    "ema": {"alpha": ("0.1", "0.2", "0.3", "0.5")},
    "arima": {
        "p,d,q": ("1,1,1", "2,1,1", "0,1,1", "1,0,1", "2,0,1"),
        "window": ("50", "100", "200"),
        "hold": ("0", "4"),
    },
    "rnn": {
        "hidden": ("4", "8", "16"),
        "length": ("4", "8", "16"),
        "rate": ("0.01", "0.03", "0.1"),
        "every": ("2", "5", "10"),
        "hold": ("0", "4"),
        "uses": ("false", "true"),
    },
    "lstm": {
        "hidden": ("4", "8", "16"),
        "length": ("4", "8", "16"),
        "rate": ("0.01", "0.03", "0.1"),
        "every": ("2", "5", "10"),
        "hold": ("0", "4"),
        "uses": ("false", "true"),
    },
    "narx": {
        "hidden": ("2", "6", "10"),
        "delay": ("1", "2", "4"),
        "penalty": ("3", "30", "300"),
        "every": ("5", "10", "20"),
        "memory": ("300", "1000"),
        "warm_up": ("30", "60", "100"),
        "hold": ("0", "3", "4", "6"),
    },
    "auto": {"rate": ("0.25", "0.5", "1"), "share": ("0.0005", "0.002", "0.01")},
}
"""Predictor → option → values. The first value of a pair of options is written with both names."""

Progress = Callable[[str, str, float], None]


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Every value of every option, the others at their defaults.

    Returns:
        ``rmse`` and ``iteration_s``: specification → geometric mean over the cases of the figure ÷ that of ``ema`` at
        its defaults; ``over_limit``: specification → the same of the iteration time ÷ that of right predictions;
        ``cases``: their names.
    """
    return sweep(windows(quick), GRID, progress)


def windows(quick: bool) -> list[PredictorCase]:
    """What is played."""
    found = [case.part(case.scored_from, case.scored_from // 2) for case in real(quick).values()]
    return found + [case.part(400, 200) for case in synthetic(400, seed=1).values()]


def sweep(
    cases: list[PredictorCase], grid: dict[str, dict[str, tuple[str, ...]]], progress: Progress
) -> dict[str, Any]:
    """See :func:`run`."""
    reference = {case.name: _figures(case, "ema") for case in cases}
    result: dict[str, dict[str, float]] = {"rmse": {}, "iteration_s": {}, "over_limit": {}}
    specs = specifications(grid)
    for number, spec in enumerate(specs):
        progress("options", spec, number / len(specs))
        found = {case.name: _figures(case, spec) for case in cases}
        for place, key in enumerate(("rmse", "iteration_s")):
            result[key][spec] = _mean(found[name][place] / reference[name][place] for name in found)
        result["over_limit"][spec] = _mean(found[case.name][1] / limit_s(case) for case in cases)
    progress("options", "", 1.0)
    return {**result, "cases": [case.name for case in cases]}


def specifications(grid: dict[str, dict[str, tuple[str, ...]]]) -> list[str]:
    """All of them in words, as a user would write them."""
    found = []
    for name, options in grid.items():
        for keys, values in options.items():
            for value in values:
                pairs = zip(keys.split(","), value.split(","), strict=True)
                found.append(f"{name}:{','.join(f'{key}={one}' for key, one in pairs)}")
    return found


def _figures(case: PredictorCase, spec: str) -> tuple[float, float]:
    told, _ = play(case, lambda: predictors.resolve(spec))
    return rmse(case, told), iteration_s(case, told)


def _mean(values: Any) -> float:
    """Geometric."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    table = Table(title=f"Options, mean over {', '.join(result['cases'])}", box=SIMPLE_HEAD)
    for heading in ("", "error ÷ ema's", "iteration time ÷ ema's", "÷ that of right predictions"):
        table.add_column(heading, justify="right" if heading else "left")
    for spec in result["rmse"]:
        table.add_row(spec, *(f"{result[key][spec]:.4f}" for key in ("rmse", "iteration_s", "over_limit")))
    return [table]
