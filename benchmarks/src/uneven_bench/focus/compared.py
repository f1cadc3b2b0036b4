"""All methods on one scene: their costs at ingest and at query, and their answers."""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from uneven.focus import VideoIndex, VideoSource, drifted, ingest, retune
from uneven.focus.pure.sweep import Policy
from uneven.focus.tune import Tuned
from uneven_bench.focus import baselines, ours
from uneven_bench.focus.baselines import Binary, Method, Targets
from uneven_bench.focus.scenes import Scene
from uneven_bench.focus.seen import SceneSeen, look_through
from uneven_bench.harness.show import Told
from uneven_bench.harness.threads import threads

_SAME = 12.0  # the greatest difference, of 255, that *pixel differencing* takes for unchanged


@threads()
def compared(scene: Scene, targets: Targets, told: Told) -> dict[str, Any]:
    """Compare every method on a scene. Result: ``methods``: name → ingest_s, query_s (mean over classes), and by class
    recall, precision and calls. ``ratios``: ingest-heavy ÷ ours, and by class each rival's query ÷ ours. ``pairs``:
    classes asked, classes that reach both targets, those that miss (recall, precision). Also the cost of the choice,
    ablation, policies, other targets."""
    name = scene.source.name
    told(f"{name}: frames, boxes, truth", 0.0)
    seen = look_through(scene)
    labels = seen.test.seen.dominant()
    told(f"{name}: choose", 0.2)
    chosen = ours.chosen(seen, targets)
    looked = ours.feature(seen, chosen.tuned)
    with tempfile.TemporaryDirectory(prefix="uneven-bench-focus-") as folder:
        told(f"{name}: ingest", 0.4)
        plain, memory = Path(folder) / "plain", list[int]()
        counts = ours.taken_in(
            seen, chosen.tuned, plain, scene.options, lambda _: memory.append(psutil.Process().memory_info().rss)
        )
        own_s = counts.seconds["look"] + counts.seconds["cluster"]
        focus = ours.asked(seen, plain, labels, "focus", own_s)
        real_s, again_s = ours.for_real(seen, plain, labels[0])
        told(f"{name}: ingest, pixels differenced", 0.55)
        fewer = ours.taken_in(seen, chosen.tuned, Path(folder) / "same", replace(scene.options, same=_SAME))
        fewer_s = fewer.seconds["look"] + fewer.seconds["cluster"]
        same = ours.asked(seen, Path(folder) / "same", labels, "focus + pixel differencing", fewer_s)
    told(f"{name}: rivals", 0.7)
    binary = baselines.specialised(seen.learn, labels)
    rivals = [
        baselines.ingest_heavy(seen, labels),
        baselines.query_all(seen, labels),
        *(
            baselines.cascade(seen, binary, targets, one, like)
            for one in (baselines.ByFrames(), baselines.ByObjects())
            for like in (None, focus)
        ),
        baselines.representatives(seen, labels, targets, looked.feature, own_s),
    ]
    if find_spec("faiss") is not None:
        rivals.append(baselines.neighbours(seen, labels, targets, looked.feature, own_s))
    first = chosen.tuned.point
    told(f"{name}: other targets and policies", 0.9)
    swept = {f"{100 * one:.0f}": _other(seen, chosen.tuned, binary, Targets(one, one)) for one in (0.95, 0.97, 0.99)}
    return {
        "frames": round(seen.tests_s[1] * scene.options.per_s), "frames_with_objects": len(seen.whole.frames),
        "objects": len(seen.whole.objects), "clusters": counts.clusters, "call_ms": 1e3 * seen.call_s,
        "truth_quality": scene.quality, "boxes_s": seen.boxes_s, "ingest_stages_s": counts.seconds,
        "setting": {"network": first.setting.network, "k": first.setting.k, "skip": first.setting.skip,
                    "work_times_less": 1 / first.ingest},
        "choose": {"own_s": chosen.own_s, "calls": chosen.calls, "calls_s": chosen.calls * seen.call_s},
        "methods": {one.name: _plain(one, seen, targets) for one in (focus, same, *rivals)},
        "ratios": _ratios(focus, rivals, seen), "pairs": _pairs(focus, seen, targets),
        "query_for_real_s": real_s, "query_again_s": again_s,
        "ablation": ours.ablation(seen, chosen.tuned, looked, labels, targets),
        "policies": {one.value: ours.other(seen, chosen.tuned, targets, one, labels) for one in Policy},
        "targets": swept,
        "memory_mb": [memory[place] / 1e6 for place in (len(memory) // 4, len(memory) // 2, -1)],
        "differenced": {"looked": fewer.looked, "objects": fewer.objects},
    }  # fmt: skip


def _plain(method: Method, seen: SceneSeen, targets: Targets) -> dict[str, Any]:
    answers = method.answers.values()
    return {
        "ingest_s": method.ingest_s,
        "query_s": float(np.mean([one.cost_s(seen.call_s) for one in answers])),
        "own_s": float(np.mean([one.own_s for one in answers])),
        "trained_s": float(np.mean([one.trained_s for one in answers])),
        "classes": {
            seen.memory.classes[label]: {
                "recall": one.result.recall.value,
                "precision": one.result.precision.value,
                "calls": one.result.checked,
                "query_s": one.cost_s(seen.call_s),
            }
            for label, one in method.answers.items()
        },
        "met": sum(one.result.meets(targets.recall, targets.precision) for one in answers),
    }


def _ratios(focus: Method, rivals: list[Method], seen: SceneSeen) -> dict[str, Any]:
    own = {label: one.cost_s(seen.call_s) for label, one in focus.answers.items()}
    found: dict[str, Any] = {"ingest": rivals[0].ingest_s / focus.ingest_s}
    for rival in rivals[1:]:
        each = [rival.answers[label].cost_s(seen.call_s) / own[label] for label in own]
        found[rival.name] = {
            "of_means": sum(one.cost_s(seen.call_s) for one in rival.answers.values()) / sum(own.values()),
            "geometric": statistics.geometric_mean(each),
            "median": statistics.median(each),
            "least": min(each),
            "most": max(each),
        }
    return found


def _pairs(focus: Method, seen: SceneSeen, targets: Targets) -> dict[str, Any]:
    missed = [
        f"{seen.memory.classes[label]}: {one.result.recall.value:.3f}, {one.result.precision.value:.3f}"
        for label, one in focus.answers.items()
        if not one.result.meets(targets.recall, targets.precision)
    ]
    return {"asked": len(focus.answers), "met": len(focus.answers) - len(missed), "missed": missed}


def _other(seen: SceneSeen, tuned: Tuned, binary: Mapping[int, Binary], targets: Targets) -> dict[str, Any]:
    """Return results for other targets with the same networks, with the cascade's calls."""
    rival = baselines.cascade(seen, binary, targets, baselines.ByFrames())
    calls = float(np.mean([one.result.checked for one in rival.answers.values()]))
    return {**ours.other(seen, tuned, targets, Policy.BALANCE, tuple(binary)), "cascade_calls": calls}


def changed(scene: Scene, days: Sequence[VideoSource], sample_s: float, targets: Targets, told: Told) -> dict[str, Any]:
    """Show other classes in the stream from some day on; measure detection and newly chosen settings. ``days``: the
    stream on a day before the change, on the one after it, and on a later one. Returns classes that miss a target:
    ``before`` the change (on fresh video), ``after`` it, and ``retuned``."""
    told(f"{scene.source.name}, changed: choose and take in", 0.0)
    with tempfile.TemporaryDirectory(prefix="uneven-bench-focus-") as folder:
        index = ingest(scene.source, scene.truth, into=folder, wanted=ours.wishes(scene, targets, sample_s))
        found = {"before": _missed(index, days[0], sample_s)}
        told(f"{scene.source.name}, changed: look at fresh video, choose anew", 0.5)
        found["after"] = _missed(index, days[1], sample_s)
        retune(index, days[1], ours.wishes(scene, targets, sample_s))
        found["retuned"] = _missed(index, days[2], sample_s)
        index.close()
    return found


def _missed(index: VideoIndex, source: VideoSource, sample_s: float) -> list[str]:
    drift = drifted(index, source, sample_s)
    return [
        f"{name}: recall {drift.results[name].recall.value:.3f}, precision {drift.results[name].precision.value:.3f}"
        for name in drift.missed
    ]
