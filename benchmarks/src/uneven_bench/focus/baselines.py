"""Other ways to find a class in recorded video, on the same frames and boxes, written with the same care.

Each is set up on the training and check parts of a scene, and asked about the test part. Costs are processor seconds: a
method's computing is timed, a call of the truth network costs its mean.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from uneven.focus import LadderRung
from uneven.focus.networks import Cheap, run
from uneven.focus.objects import Objects, unchanged
from uneven.focus.pure.sweep import ClassResult, Share, appearances
from uneven.focus.truth import as_input
from uneven_bench.focus.seen import ScenePart, SceneSeen

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Features = npt.NDArray[np.float32]  # (objects, width)
Labels = tuple[int, ...]

_NEAREST = 5
_ROUNDING = 1e-9
_REPRESENTATIVES = 0.05
"""The share of objects that TASTI-style has labelled at ingest: three quarters furthest first, the rest at random."""


@dataclass(slots=True)
class Spent:
    """Processor seconds of a block, see :func:`timed`."""

    seconds: float = 0.0


@contextmanager
def timed() -> Iterator[Spent]:
    """Measure the processor time of the block."""
    spent, began_s = Spent(), time.process_time()
    try:
        yield spent
    finally:
        spent.seconds = time.process_time() - began_s


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The result of a method's query for one class."""

    result: ClassResult
    own_s: float  # the method's computing, without calls
    trained_s: float = 0.0  # training before the query, per class; in no cost of a query, as NoScope's authors count

    def cost_s(self, call_s: float) -> float:
        return self.own_s + self.result.checked * call_s


@dataclass(slots=True)
class Method:
    """A method's costs and answers."""

    name: str
    ingest_s: float  # processor seconds of ingest, without frames and boxes; 0 if it does nothing then
    answers: dict[int, QueryAnswer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Targets:
    """Recall and precision, in frames."""

    recall: float = 0.99
    precision: float = 0.99


def in_frames(part: ScenePart, label: int, frames: npt.NDArray[np.int64], checked: int) -> ClassResult:
    """Compare the returned frames, int64 (n,), with the truth."""
    truth, got = np.unique(part.seen.frame[part.seen.label == label]), np.unique(frames)
    both = len(np.intersect1d(truth, got, assume_unique=True))
    recall, precision = Share.of(both, len(truth), appearances(truth)), Share.of(both, len(got), appearances(got))
    return ClassResult(label, recall, precision, checked)


def ingest_heavy(seen: SceneSeen, labels: Labels) -> Method:
    """Call the truth network on every object at ingest; a query reads the result."""
    return _all_called(Method("ingest-heavy", len(seen.whole.objects) * seen.call_s), seen, labels, at_query=0)


def query_all(seen: SceneSeen, labels: Labels) -> Method:
    """Call the truth network on every object at the query."""
    return _all_called(Method("query-all", 0.0), seen, labels, at_query=len(seen.test.objects))


def _all_called(method: Method, seen: SceneSeen, labels: Labels, at_query: int) -> Method:
    for label in labels:
        frames = seen.test.seen.frame[seen.test.seen.label == label]
        method.answers[label] = QueryAnswer(in_frames(seen.test, label, frames, at_query), 0.0)
    return method


class ByFrames:
    """NoScope's difference detector: a frame with a small difference to the last one looked at has the same answer."""

    name = "cascade, frames differ"

    def looked_at(self, part: ScenePart, most: float) -> tuple[Ints, Ints]:
        """Return the objects looked at, and of each object's frame, the frame with its answer."""
        stands = np.arange(len(part.frames))
        last = 0
        small = part.small.astype(np.int16)
        for at in range(1, len(stands)):
            if part.frames[at] == part.frames[at - 1] + 1 and np.square(small[at] - small[last]).mean() <= most:
                stands[at] = last
            else:
                last = at
        answer = part.frames[stands]
        looked = np.flatnonzero(np.isin(part.seen.frame, np.unique(answer)))
        return looked, answer

    def returned(self, part: ScenePart, accepted: Ints, answer: Ints) -> Ints:
        return part.frames[np.isin(answer, part.seen.frame[accepted])]

    def steps(self, part: ScenePart) -> Floats:
        small = part.small.astype(np.int16)
        return np.square(small[1:] - small[:-1]).mean((1, 2)) if len(small) > 1 else np.zeros(1)


class ByObjects:
    """A stronger detector than NoScope's: an object whose crop changes little has the answer of the one before."""

    name = "cascade, objects differ"

    def looked_at(self, part: ScenePart, most: float) -> tuple[Ints, Ints]:
        """Return the objects looked at, and of each object, the one with its answer."""
        origin = np.arange(len(part.objects))
        bounds = np.searchsorted(part.seen.frame, [*part.frames, part.frames[-1] + 1])
        for at in range(1, len(part.frames)):
            if part.frames[at] == part.frames[at - 1] + 1:
                before, now = (_rows(part, bounds[one], bounds[one + 1]) for one in (at - 1, at))
                same = unchanged(now, before, most)
                rows = np.flatnonzero(same >= 0)
                origin[bounds[at] + rows] = origin[bounds[at - 1] + same[rows]]
        return np.unique(origin), origin

    def returned(self, part: ScenePart, accepted: Ints, answer: Ints) -> Ints:
        return part.seen.frame[np.isin(answer, accepted)]

    def steps(self, part: ScenePart) -> Floats:
        crops = part.objects.crops[:4000].astype(np.int16)
        return np.abs(crops[1:] - crops[:-1]).mean((1, 2, 3)) if len(crops) > 1 else np.zeros(1)


def _rows(part: ScenePart, low: int, high: int) -> Objects:
    one = part.objects
    return Objects(one.frame[low:high], one.time_s[low:high], one.boxes[low:high], one.crops[low:high], 1)


Differ = ByFrames | ByObjects


@dataclass(frozen=True, slots=True)
class Sure:
    """Thresholds: below ``low`` it is not the class, above ``high`` it is; the truth network decides between."""

    low: float
    high: float

    def split(self, score: Floats) -> tuple[Bools, Bools]:
        """Return the objects accepted unseen, and those for the truth network."""
        return score > self.high, (score >= self.low) & (score <= self.high)


def sure(
    part: ScenePart, label: int, score: Floats, looked: Ints, frames_of: Callable[[Ints], Ints], targets: Targets
) -> tuple[Sure, int]:
    """Return the thresholds with the fewest calls that reach the targets on a part, and the calls; all if none does."""
    right = part.seen.label[looked] == label
    truth = np.unique(part.seen.frame[part.seen.label == label])
    steps = np.unique(np.quantile(score, np.linspace(0, 1, 41))) if len(score) else np.zeros(1)
    levels = (steps[1:] + steps[:-1]) / 2
    best, fewest = Sure(-np.inf, np.inf), len(looked)
    for low in (-np.inf, *levels):
        for high in (*levels[levels >= low], np.inf):
            one = Sure(low, high)
            accepted, asked = one.split(score)
            if (calls := int(asked.sum())) >= fewest:
                continue
            got = np.unique(frames_of(looked[accepted | (asked & right)]))
            both = len(np.intersect1d(truth, got, assume_unique=True))
            if both >= targets.recall * len(truth) and both >= targets.precision * len(got):
                best, fewest = one, calls
    return best, fewest


def cascade(
    seen: SceneSeen, binary: "Mapping[int, Binary]", targets: Targets, differ: Differ, like: Method | None = None
) -> Method:
    """Answer NoScope-style, at query time: differences, a network for this class, the truth network if unsure.

    The check part decides thresholds and differences: the fewest calls that reach the targets.

    ``like``: choose on the test part, for the accuracy of that method class by class: an impossible advantage for the
    cascade.
    """
    method = Method(differ.name if like is None else f"{differ.name}, as accurate as {like.name}", 0.0)
    part = seen.check if like is None else seen.test
    levels = (-1.0, *np.quantile(differ.steps(part), (0.1, 0.25, 0.5, 0.75, 0.9)))
    given = [(most, *differ.looked_at(part, most)) for most in levels]
    for label, one in binary.items():
        if like is not None:
            reached = like.answers[label].result
            targets = Targets(reached.recall.value - _ROUNDING, reached.precision.value - _ROUNDING)
        check = chances(one.network, part)
        tried = [_tried(part, label, check, differ, step, targets) for step in given]
        _, most, thresholds = min((each for each in tried if each is not None), key=lambda each: each[0])
        with timed() as own:
            looked, answer = differ.looked_at(seen.test, most)
            accepted, asked = thresholds.split(chances(one.network, seen.test, looked))
        right = seen.test.seen.label[looked] == label
        frames = differ.returned(seen.test, looked[accepted | (asked & right)], answer)
        result = in_frames(seen.test, label, frames, int(asked.sum()))
        method.answers[label] = QueryAnswer(result, own.seconds, one.trained_s)
    return method


def _tried(
    part: ScenePart, label: int, score: Floats, differ: Differ, step: tuple[float, Ints, Ints], targets: Targets
) -> tuple[int, float, Sure] | None:
    """Return calls, difference, thresholds; None if even the truth about the objects looked at misses the targets."""
    most, looked, answer = step
    whole = differ.returned(part, looked[part.seen.label[looked] == label], answer)
    if most >= 0 and not in_frames(part, label, whole, 0).meets(targets.recall, targets.precision):
        return None
    thresholds, calls = sure(part, label, score[looked], looked, lambda at: differ.returned(part, at, answer), targets)
    return calls, most, thresholds


@dataclass(frozen=True, slots=True)
class Binary:
    """A network for one class against the rest, and the processor seconds of its training."""

    network: Cheap
    trained_s: float


def specialised(part: ScenePart, labels: Labels, epochs: int = 15) -> dict[int, Binary]:
    found = {}
    for label in labels:
        with timed() as spent:
            network = _told_apart(part, label, epochs)
        found[label] = Binary(network, spent.seconds)
    return found


def _told_apart(part: ScenePart, label: int, epochs: int) -> Cheap:
    torch.manual_seed(0)
    model = Cheap(LadderRung(4, 16), 2)
    wanted = torch.from_numpy((part.seen.label == label).astype(np.int64))
    share = float(wanted.float().mean().clamp(1e-3, 1 - 1e-3))
    weights = torch.tensor([0.5 / (1 - share), 0.5 / share])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(wanted)).split(64):
            crops = as_input(part.objects.crops[rows.numpy()])
            if torch.rand(()) < 0.5:
                crops = crops.flip(-1)
            optimizer.zero_grad()
            F.cross_entropy(model(crops), wanted[rows], weight=weights).backward()
            optimizer.step()
    return model.eval()


def chances(network: Cheap, part: ScenePart, rows: Ints | None = None) -> Floats:
    """Return the probability of the class for each object, (n,)."""
    crops = part.objects.crops if rows is None else part.objects.crops[rows]
    return run(network, crops)[0][:, 1].astype(np.float64)


def neighbours(seen: SceneSeen, labels: Labels, targets: Targets, feature: Features, ingest_s: float) -> Method:
    """Index all features in FAISS; a query looks up examples of the class and has their neighbours checked. ``feature``
    (objects, width) comes from the cheap network and cost ``ingest_s``."""
    import faiss

    faiss.omp_set_num_threads(1)
    with timed() as spent:
        lists = max(1, int(np.sqrt(len(feature))))
        flat = faiss.IndexFlatL2(feature.shape[1])
        index = faiss.IndexIVFFlat(flat, feature.shape[1], lists)
        index.train(feature)
        index.add(feature)
        index.nprobe = max(1, lists // 4)
    method = Method("FAISS over features", ingest_s + spent.seconds)
    draw = np.random.default_rng(0)
    for label in labels:
        known = np.flatnonzero(seen.learn.seen.label == label)
        if not len(known):  # no example to look up
            method.answers[label] = QueryAnswer(in_frames(seen.test, label, known, 0), 0.0)
            continue
        examples = feature[draw.choice(known, min(64, len(known)), replace=False)]
        for share in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0):
            picked = _within(_near(index, examples, share), seen.check.rows)
            frames = seen.check.seen.frame[picked[seen.check.seen.label[picked] == label]]
            if in_frames(seen.check, label, frames, 0).recall.value >= targets.recall:
                break
        with timed() as own:
            picked = _within(_near(index, examples, share), seen.test.rows)
        frames = seen.test.seen.frame[picked[seen.test.seen.label[picked] == label]]
        method.answers[label] = QueryAnswer(in_frames(seen.test, label, frames, len(picked)), own.seconds)
    return method


def _near(index: Any, examples: Features, share: float) -> Ints:
    found = index.search(examples, max(1, int(share * index.ntotal)))[1]
    return np.unique(found[found >= 0])


def _within(rows: Ints, part: slice) -> Ints:
    return rows[(rows >= part.start) & (rows < part.stop)] - part.start


def representatives(seen: SceneSeen, labels: Labels, targets: Targets, feature: Features, ingest_s: float) -> Method:
    """Answer TASTI-style: some objects are labelled at ingest, the others score as their five nearest ones do.
    ``feature`` (objects, width) is the cheap network's, not one trained with triplets."""
    with timed() as spent:
        chosen = furthest_first(feature, max(_NEAREST, int(_REPRESENTATIVES * len(feature))))
        apart = torch.cdist(torch.from_numpy(feature), torch.from_numpy(feature[chosen]))
        distance, place = (one.numpy() for one in apart.topk(_NEAREST, largest=False))
        weight = 1 / (distance + 1e-6)
        weight /= weight.sum(1, keepdims=True)
    method = Method("TASTI-style", ingest_s + spent.seconds + len(chosen) * seen.call_s)
    said = seen.whole.seen.label[chosen]
    for label in labels:
        with timed() as own:
            score = ((said[place] == label) * weight).sum(1).astype(np.float64)
        part = seen.check
        every = np.arange(len(part.objects))
        thresholds, _ = sure(part, label, score[part.rows], every, lambda rows: seen.check.seen.frame[rows], targets)
        accepted, asked = thresholds.split(score[seen.test.rows])
        asked &= ~np.isin(np.arange(seen.test.rows.start, seen.test.rows.stop), chosen)
        right = seen.test.seen.label == label
        frames = seen.test.seen.frame[accepted | (asked & right) | (right & ~asked & _in(chosen, seen.test.rows))]
        method.answers[label] = QueryAnswer(in_frames(seen.test, label, frames, int(asked.sum())), own.seconds)
    return method


def _in(chosen: Ints, part: slice) -> Bools:
    return np.isin(np.arange(part.start, part.stop), chosen)


def furthest_first(feature: Features, count: int, seed: int = 0) -> Ints:
    """Choose ``count`` rows of ``feature`` (objects, width): three quarters furthest first, the rest at random."""
    draw = np.random.default_rng(seed)
    first = int(draw.integers(len(feature)))
    picked, nearest = [first], np.square(feature - feature[first]).sum(1)
    while len(picked) < 3 * count // 4:
        picked.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.square(feature - feature[picked[-1]]).sum(1))
    rest = np.setdiff1d(np.arange(len(feature)), picked)
    more = draw.choice(rest, min(len(rest), count - len(picked)), replace=False)
    return np.concatenate([picked, more]).astype(np.int64)
