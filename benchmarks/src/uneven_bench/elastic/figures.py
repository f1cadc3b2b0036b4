"""The figures of the runs of ``uneven bench elastic``."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from uneven_bench.elastic import judge, logs, merges, updates
from uneven_bench.elastic.cases import KINDS, OURS, OVERHEAD, SPOT, TORCHFT, TORCHRUN, UNDISTURBED, at_own_pace
from uneven_bench.elastic.play import FaultEvent, Played
from uneven_bench.elastic.replay import error, replay, replay_merges
from uneven_bench.elastic.workload import CountedWorkload

Book = TypeVar("Book")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """One run, judged."""

    played: Played
    ledger: judge.SampleCounts
    pauses_s: tuple[float, ...]  # of each event, beyond a usual step; infinite if no worker continued
    step_s: float  # median
    steps: int
    wrong: tuple[str, ...]  # violations, in words
    replay_error: float | None  # see :func:`uneven_bench.elastic.replay.error`; None without a replay
    sync: str = "bsp"  # our policy
    # the distance of two replays that add the replicas of each merge in opposite orders, by the same measure: the
    # effect of rounding. None without merges.
    replay_rounding: float | None = None


def of(played: Played, workload: CountedWorkload, folder: Path, sync: str = "bsp") -> JudgedRun:
    """Judge a run from the files in its folder. With a parameter server two runs differ, so nothing is replayed."""
    steps = logs.history(played.logs)
    hurt = [(pid, event.at_s, event.until_s) for event in played.events for pid in event.victims]
    moments = judge.progress(played.logs, hurt)
    ended = [log.pid for log in played.logs if log.digest]
    again = workload.double and played.over and ended
    replayed = rounding = None
    if at_own_pace(sync):
        given = _books(folder, "updates", updates.read)
        counted, apart, what = updates.history(played.logs, given), updates.disputed(given), "lost workers"
    elif sync == "bsp":
        counted, apart, what = steps, judge.disagreements(played.logs), "steps"
        if again:
            replayed = _error(folder, dict.fromkeys(ended, replay(workload, steps)))
    else:
        books = _books(folder, "merges", merges.read)
        merged = merges.merged(played.logs, books)
        counted = merges.history(merged, merges.in_the_end(merged, books, ended))
        apart = [number for number, those in merges.held(books, ended).items() if len(those) > 1]
        what = "merges"
        if again:
            wanted = replay_merges(workload, sync, played.logs, books, merged)
            other = replay_merges(workload, sync, played.logs, books, merged, backwards=True)
            replayed = _error(folder, wanted)
            rounding = max(error(other[pid], wanted[pid]) for pid in ended)
    wrong = _wrong(played, steps, apart, what)
    return JudgedRun(
        played=played,
        ledger=judge.ledger(counted, workload.samples, workload.global_batch),
        pauses_s=tuple(judge.pause_s(moments, event.at_s, event.until_s) for event in played.events),
        step_s=judge.step_s(moments),
        steps=len(counted if at_own_pace(sync) else steps),
        wrong=tuple(wrong if sync == "bsp" else (f"{sync}: {one}" for one in wrong)),
        replay_error=replayed,
        sync=sync,
        replay_rounding=rounding,
    )


def _books(folder: Path, kind: str, read: Callable[[Iterable[str]], Book | None]) -> list[Book]:
    found = (read(path.read_text().splitlines(keepends=True)) for path in folder.glob(f"{kind}-*.jsonl"))
    return [one for one in found if one is not None]


def _error(folder: Path, wanted: Mapping[int, Sequence[torch.Tensor]]) -> float:
    """Return the largest error of the final parameters of some processes."""
    return max(error(torch.load(folder / f"weights-{pid}.pt"), each) for pid, each in wanted.items())


def _wrong(played: Played, steps: Sequence[logs.LoggedStep], apart: Sequence[int], what: str) -> list[str]:
    found = [] if played.over else ["it did not come to its end"]
    if missing := judge.gaps(steps):
        found.append(f"nobody wrote down {len(missing)} steps, the first is {missing[0]}")
    if apart:
        found.append(f"workers hold different samples to be in {len(apart)} {what}, the first is {apart[0]}")
    if unequal := judge.unequal(played.logs):
        found.append(f"{unequal + 1} different sets of parameters in the end")
    if played.left:
        found.append(f"{played.left} processes left")
    if played.woke["hung"]:
        found.append(f"{played.woke['hung']} stopped workers hung when they were let go on")
    return found


def told(runs: Sequence[JudgedRun]) -> dict[str, Any]:
    """Return all runs of one arm in one case as JSON; a run that did not end is None."""
    events = [_event(*one) for run in runs for one in zip(run.played.events, run.pauses_s, strict=True)]
    errors = [run.replay_error for run in runs if run.replay_error is not None]
    woke = {key: sum(run.played.woke[key] for run in runs) for key in runs[0].played.woke}
    return {
        "events": events,
        "pause_s": {kind: _pauses(events, kind) for kind in KINDS if any(one["kind"] == kind for one in events)},
        "lost": sum(run.ledger.lost for run in runs),
        "twice": sum(run.ledger.twice for run in runs),
        "more_steps": sum(run.ledger.more for run in runs),
        "steps": sum(run.steps for run in runs),
        "step_s": median(run.step_s for run in runs),
        "survivors_ended": sum(event.ended for run in runs for event in run.played.events),
        "woke": woke,
        "wrong": [one for run in runs for one in run.wrong],
        "replay_error": max(errors) if errors else None,
        "said": [run.played.said for run in runs if run.played.said],
        "policies": [_policy(run) for run in runs if run.sync != "bsp"],
    }


def _policy(run: JudgedRun) -> dict[str, Any]:
    hurt = sum(bool(event.victims) for event in run.played.events)
    told = {"sync": run.sync, "faults": hurt, "lost": run.ledger.lost, "twice": run.ledger.twice}
    return told | {"replay_error": run.replay_error, "replay_rounding": run.replay_rounding}


def _event(event: FaultEvent, pause_s: float) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "moment": event.moment,
        "victims": len(event.victims),
        "inside": event.inside,
        "pause_s": pause_s if event.went_on and math.isfinite(pause_s) else None,
        "went_on": event.went_on,
        "out_s": event.out_s,
        "survivors_ended": event.ended,
    }


def _pauses(events: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    of_kind = [one for one in events if one["kind"] == kind]
    went_on = [one["pause_s"] for one in of_kind if one["pause_s"] is not None]
    return {
        "count": len(of_kind),
        "median": median(went_on) if went_on else None,
        "worst": max(went_on) if went_on and len(went_on) == len(of_kind) else None,
        "without_end": len(of_kind) - len(went_on),
    }


def summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the whole bench."""
    ours = [case[OURS] for name, case in found.items() if name not in (OVERHEAD, *SPOT) and OURS in case]
    events = [event for case in ours for event in case["events"]]
    struck = [case[OURS] for name, case in found.items() if name in ("faults", "stop", "cut") and OURS in case]
    small = [event for case in struck for event in case["events"] if event["victims"] <= 1]
    counted = [*ours, *(case for name, case in found.items() if name == f"spot-{OURS}" and case)]
    errors = [case["replay_error"] for case in ours if case["replay_error"] is not None]
    spots = {arm: found.get(name, {}).get("goodput") for name, arm in SPOT.items()}
    return {
        "faults": sum(event["victims"] > 0 for event in events) if ours else None,
        "lost": sum(case["lost"] for case in counted) if counted else None,
        "twice": sum(case["twice"] for case in counted) if counted else None,
        "replay_error": max(errors) if errors else None,
        "pause_s": {kind: _pauses(small, kind)["median"] for kind in KINDS},
        "overhead": {size: found.get(OVERHEAD, {}).get(size, {}).get("ratio") for size in UNDISTURBED},
        "goodput": spots[OURS],
        "goodput_vs_torchrun": _ratio(spots[OURS], spots[TORCHRUN]),
        "goodput_vs_torchft": _ratio(spots[OURS], spots[TORCHFT]),
    }


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
