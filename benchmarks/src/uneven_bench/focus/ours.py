"""Focus on a scene: settings from its sample, ingest as in a user's stream, queries about the test part."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from uneven.focus import IngestOptions, VideoIndex, Wanted, load_index
from uneven.focus.index import StreamStore
from uneven.focus.ingest_stream import Counts, Ingest
from uneven.focus.networks import look
from uneven.focus.pure.sweep import OFF, ClassResult, FocusSetting, Grouped, Looked, Policy, choose
from uneven.focus.pure.verdict_propagation import Precedents
from uneven.focus.tune import Tuned, tune
from uneven_bench.focus.baselines import Labels, Method, QueryAnswer, Targets, in_frames, timed
from uneven_bench.focus.scenes import Scene
from uneven_bench.focus.seen import SceneSeen
from uneven_bench.harness.threads import threads

_EPOCHS = 10


@dataclass(frozen=True, slots=True)
class Chosen:
    """The settings of a scene, and the cost of the choice."""

    tuned: Tuned
    own_s: float  # processor seconds of training and sweep in all processes, without calls
    calls: int


def chosen(seen: SceneSeen, targets: Targets) -> Chosen:
    """Choose the settings from the sample; the tuner does not see the test part."""
    wanted = wishes(seen.scene, targets)
    before_s, calls = _all_processes_s(), seen.truth.calls
    tuned = tune(seen.learn.objects, seen.check.objects, seen.truth, wanted)
    return Chosen(tuned, _all_processes_s() - before_s, seen.truth.calls - calls)


def wishes(scene: Scene, targets: Targets, sample_s: float = 0.0) -> Wanted:
    """Return the allowed settings for a scene."""
    return Wanted(
        recall=targets.recall,
        precision=targets.precision,
        epochs=_EPOCHS,
        ladder=scene.ladder,
        named=scene.named,
        sample_s=sample_s,
        devices=1,
    )


def _all_processes_s() -> float:
    import resource

    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def taken_in(
    seen: SceneSeen, tuned: Tuned, folder: Path, options: IngestOptions, tell: Callable[[Counts], None] = lambda _: None
) -> Counts:
    """Ingest as :func:`uneven.focus.ingest_stream` does in the stream's process, with one thread."""
    scene = seen.scene
    store = StreamStore.create(
        folder / scene.source.name, tuned.setting(), tuned.weights(), tuned.before, name=scene.source.name,
        side=scene.truth.side, classes=list(scene.truth.classes), truth=seen.truth.identity, starts=None,
        per_s=options.per_s, recall=tuned.targets[0], precision=tuned.targets[1], policy="balance",
        price=dict(tuned.price), truth_work=seen.truth.work(),
    )  # fmt: skip
    with threads(), closing(store):
        return Ingest(store, scene.source, options, tell).run()


def asked(seen: SceneSeen, folder: Path, labels: Labels, name: str, ingest_s: float) -> Method:
    """Query every class, each on a fresh index."""
    method = Method(name, ingest_s)
    for label in labels:
        index = load_index(folder, seen.truth)
        for store in index.streams.values():
            store.forget_verdicts()
        frames, own_s, calls = _query(seen, index, label)
        method.answers[label] = QueryAnswer(in_frames(seen.test, label, np.array(frames, np.int64), calls), own_s)
        index.close()
    return method


def _query(seen: SceneSeen, index: VideoIndex, label: int) -> tuple[list[int], float, int]:
    seen.memory.asked, seen.memory.remembering_s = 0, 0.0
    with timed() as own:
        frames = [hit.frame for hit in index.query(index.classes[label], between=seen.tests_s)]
    return frames, own.seconds - seen.memory.remembering_s, seen.memory.asked


def for_real(seen: SceneSeen, folder: Path, label: int) -> tuple[float, float]:
    """Return processor seconds of one query with the real truth network, and of its repetition."""
    index = load_index(folder, seen.scene.truth)
    for store in index.streams.values():
        store.forget_verdicts()
    spent = []
    for _ in range(2):
        with timed() as one:
            list(index.query(index.classes[label], between=seen.tests_s))
        spent.append(one.seconds)
    index.close()
    return spent[0], spent[1]


def feature(seen: SceneSeen, tuned: Tuned) -> Looked:
    """Return the chosen network's output for every object."""
    return look(tuned.candidate, tuned.model, seen.whole.objects.crops)


def answered(seen: SceneSeen, looked: Looked, setting: FocusSetting, labels: Labels) -> list[ClassResult]:
    """Return the answers of an index of the whole stream about the test part, without writing one. ``looked`` is the
    output of the setting's network."""
    past = slice(0, seen.test.rows.start)
    before = Precedents.sample(looked.feature[past], seen.whole.seen.label[past], looked.confidence[past].max(1))
    grouped = Grouped(seen.whole.seen, looked, setting.threshold, before)
    rows = seen.test.rows
    inside = np.zeros(len(grouped.centroid), bool)
    inside[grouped.cluster[rows]] = True
    found = []
    for label in labels:
        accepted, asked_about, _ = grouped.split(label, setting.k, setting.skip, setting.spread, inside)
        frames = seen.test.seen.frame[accepted[grouped.cluster[rows]]]
        found.append(in_frames(seen.test, label, frames, int(asked_about.sum())))
    return found


def ablation(seen: SceneSeen, tuned: Tuned, looked: Looked, labels: Labels, targets: Targets) -> dict[str, Any]:
    """Add each part of the idea in turn to the chosen network; the check part decides K, T and Skip_th for each."""
    allowed = {
        "index only": lambda one: one.threshold == 0 and one.skip == OFF and not one.spread,
        "+ clustering": lambda one: one.skip == OFF and not one.spread,
        "+ skip": lambda one: not one.spread,
        "+ verdicts spread": lambda one: True,
    }
    found: dict[str, Any] = {}
    for name, may in allowed.items():
        known = [one for one in tuned.points if one.setting.network == looked.name and may(one.setting)]
        mine = [one for one in known if one.meets(targets.recall, targets.precision)]
        setting = min(mine, key=lambda point: point.query).setting if mine else None
        found[name] = None if setting is None else summed(setting, answered(seen, looked, setting, labels))
    return found


def summed(setting: FocusSetting, results: list[ClassResult]) -> dict[str, Any]:
    """Return the mean calls over classes, and the least recall and precision."""
    return {
        "network": setting.network,
        "k": setting.k,
        "skip": setting.skip,
        "calls": float(np.mean([one.checked for one in results])),
        "recall": min(one.recall.value for one in results),
        "precision": min(one.precision.value for one in results),
    }


def other(seen: SceneSeen, tuned: Tuned, targets: Targets, policy: Policy, labels: Labels) -> dict[str, Any]:
    """Return costs and accuracy of another choice among the same settings."""
    point = choose(tuned.points, targets.recall, targets.precision, policy, tuned.confidence)
    mine = replace(tuned, point=point)
    looked = look(mine.candidate, mine.model, seen.whole.objects.crops)
    return {
        "work_times_less": 1 / mine.point.ingest,
        **summed(mine.point.setting, answered(seen, looked, mine.point.setting, labels)),
    }
