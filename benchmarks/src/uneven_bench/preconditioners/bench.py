"""``uneven bench preconditioners``: K-FAC, SOAP and Muon against kfac-pytorch, SGD, AdamW and torch's Muon."""

import tempfile
from pathlib import Path
from typing import Any

from uneven.cluster.emulate.capabilities import why_no_bandwidth, why_not_isolated
from uneven.errors import UnknownNameError
from uneven_bench.harness.show import Progress
from uneven_bench.harness.worker import staged
from uneven_bench.preconditioners.accuracy import METHODS, blow_ups, hook_overhead, to_target
from uneven_bench.preconditioners.arms import RIVAL_AT, rival
from uneven_bench.preconditioners.planned import planned

_WORKER = "uneven_bench.preconditioners.worker"
WORKERS = 4
CORES = (0.6, 0.4, 0.2, 0.1)
MBIT_PER_S = 100.0
PERIODS = {"1/10": (1, 10), "10/100": (10, 100)}
"""Name → steps from one taking of factors to the next, and from one refresh to the next."""

CASES = ("steps", "exact", "unequal", "links", "target", "blow-ups")
STEPPED = ("resnet20", "mlp", "transformer", "resnet32")
TARGETS = ("regression", "autoencoder", "cnn")


def run(quick: bool, data: str, progress: Progress, case: str | None = None) -> dict[str, Any]:
    """Measure all cases. Result: ``step_vs_kfac_pytorch`` and ``step_vs_sgd`` (model → share → periods → ratio of
    medians), ``bytes_vs_kfac_pytorch`` (model → share, at 1/10), ``memory_share`` (model → share of all squares on the
    fullest worker), ``exact_error`` (shares → method → largest difference), ``unequal_gain`` and
    ``unequal_of_limit`` (method → ratio),
    ``hook_overhead``, ``time_to_target`` (task → method → epochs, seconds), ``blow_ups``, ``links``, ``left_out``.
    Raises UnknownNameError: the case is unknown; "steps:mlp" and "target:cnn" are one model and one task,
    "target:cnn:soap" is one method. LaunchError: a worker died."""
    case, _, one = (case or "").partition(":")
    one, _, method = one.partition(":")
    some = {"steps": STEPPED, "target": TARGETS, "unequal": ("kfac", "muon")}.get(case, ())
    if case and (case not in CASES or (one and one not in some)):
        raise UnknownNameError("case", f"{case}:{one}" if one else case, (*CASES, *(f"{case}:{it}" for it in some)))
    if method and (case != "target" or method not in METHODS):
        raise UnknownNameError("method of target:TASK:METHOD", method, METHODS)
    wanted = {case} if case else {"steps", "exact", "blow-ups"} if quick else set(CASES)
    found: dict[str, Any] = {"left_out": {}}
    task: dict[str, Any]
    if rival() is None:
        found["left_out"]["kfac-pytorch"] = f"it is not on PyPI; set {RIVAL_AT} to where it is installed"
    if "steps" in wanted:
        models = (one,) if one else STEPPED[:1] if quick else STEPPED
        _steps(found, models, 2 if quick else 10, ("1/P",) if quick else ("1", "1/2", "1/P"), progress)
        progress("hooks", "", 0.0)
        found["hook_overhead"] = hook_overhead(5 if quick else 60)
    if "exact" in wanted:
        found["exact_error"] = {}
        for shares in ([3, 1], *([] if quick else [[5, 3, 2]]), *([] if rival() is None else [[1, 1]])):
            task = {"what": "exact", "shares": shares, "rival": shares == [1, 1]}
            found["exact_error"]["/".join(map(str, shares))] = _play(task, len(shares), progress)
    if "unequal" in wanted:
        isolated = not why_not_isolated()  # stopped workers would stop each other's exchanges too
        found |= {"unequal": {}, "unequal_gain": {}, "unequal_of_limit": {}}
        for part, model in (("kfac", "resnet20"), ("muon", "transformer")):
            if one in ("", part):
                task = {"what": "unequal", "model": model, "part": part, "cores": CORES}
                task |= {"settle": 4, "blocks": 2} if quick else {"settle": 8, "blocks": 6}
                found["unequal"][part] = told = _play(task, len(CORES), progress, isolated=isolated)
                told["isolated"], told["plan"] = isolated, planned(told, CORES, isolated)
                found["unequal_gain"][part], found["unequal_of_limit"][part] = told["gain"], told["of_limit"]
    if "links" in wanted:
        if why := why_not_isolated() or why_no_bandwidth():
            found["left_out"]["links"] = why
        else:
            task = {"what": "links", "model": "resnet20", "repeats": 3, "shares": ["1", "1/P"]}
            task["mbit_per_s"] = [MBIT_PER_S] * WORKERS
            told = _play(task, WORKERS, progress, isolated=True)
            found["links"] = {"step_s": told["seconds"], **_ratios(told["seconds"])}
    if "target" in wanted:
        names = (one,) if one else TARGETS[:1] if quick else TARGETS
        said = lambda what, done: progress("time to target", what, done)  # noqa: E731
        found["time_to_target"] = to_target(data, 1 if quick else 3, said, names, method or None)
    if "blow-ups" in wanted:
        found["blow_ups"] = blow_ups(data, lambda what, done: progress("blow-ups", what, done), 2 if quick else 24)
    return found


def _steps(
    found: dict[str, Any], models: tuple[str, ...], repeats: int, shares: tuple[str, ...], progress: Progress
) -> None:
    found |= {
        name: {} for name in ("step_s", "step_vs_kfac_pytorch", "step_vs_sgd", "bytes_vs_kfac_pytorch", "memory_share")
    }
    for model in models:
        task = {"what": "steps", "model": model, "repeats": repeats, "shares": list(shares)}
        told = _play(task, WORKERS, progress)
        found["step_s"][model], found["memory_share"][model] = told["seconds"], told["memory_share"]
        for name, ratios in _ratios(told["seconds"]).items():
            found[name][model] = ratios
        sent = {name: mean_step(kinds, PERIODS["1/10"]) for name, kinds in told["bytes"].items()}
        found["bytes_vs_kfac_pytorch"][model] = {
            share: sent[f"ours {share}"] / sent[f"kfac-pytorch {share}"]
            for share in shares
            if f"kfac-pytorch {share}" in sent
        }


def _ratios(seconds: dict[str, dict[str, float]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the ratios of our steps to kfac-pytorch's with the same share, to its default, and to SGD's: share →
    periods."""
    found: dict[str, dict[str, dict[str, float]]] = {"step_vs_kfac_pytorch": {}, "step_vs_sgd": {}}
    for name in seconds:
        who, _, share = name.partition(" ")
        if who != "ours":
            continue
        own = {name_of: mean_step(seconds[name], periods) for name_of, periods in PERIODS.items()}
        found["step_vs_sgd"][share] = {periods: own_s / seconds["sgd"]["plain"] for periods, own_s in own.items()}
        for label, other in ((share, f"kfac-pytorch {share}"), (f"{share} to its default", "kfac-pytorch 1")):
            if other in seconds:
                found["step_vs_kfac_pytorch"][label] = {
                    periods: own_s / mean_step(seconds[other], PERIODS[periods]) for periods, own_s in own.items()
                }
    return found


def mean_step(kinds: dict[str, float], periods: tuple[int, int]) -> float:
    """Return the mean over the steps of a method. ``kinds``: kind of step → its figure, of a plain one if it has no
    other; ``periods``: of factors and refreshes."""
    plain = kinds["plain"]
    refreshes, factors = 1 / periods[1], 1 / periods[0] - 1 / periods[1]
    rest = (1 - refreshes - factors) * plain
    return refreshes * kinds.get("refresh", plain) + factors * kinds.get("factor", plain) + rest


def _play(task: dict[str, Any], workers: int, progress: Progress, isolated: bool = False) -> Any:
    with tempfile.TemporaryDirectory(prefix="uneven-preconditioners-") as folder:
        return staged(Path(folder), _WORKER, task, workers, isolated=isolated, said=progress)
