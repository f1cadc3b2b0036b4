"""Which settings reach the targets, and which of those is taken. Pure.

A setting is a network, K, T and Skip_th. Recall and precision count frames, against what the truth network says of each
object (section 5 of the paper, *parameter selection*)::

    candidates(X) = clusters whose centroid has X among its K likeliest classes (OTHER, for a class without a name)
    accepted(X)   = candidates whose centroid is X by the truth network, or is so with more confidence than Skip_th
    recall        = share of the frames with X that are returned      precision = share of the returned ones with X
    ingest        = work of the cheap network, as a share of the truth network on all objects
    query         = centroids to check, mean over classes, as a share of all objects

A sample shows what went well in it, and few clusters show little: of twenty without an error one in seven may be wrong
elsewhere. So of the settings that reach the targets those are taken whose leaps are borne out (ours)::

    what K leaves out         of the clusters of X, which have it among the K likeliest     none where K is all outputs
    what Skip_th lets pass    of those accepted unseen, which are X                         none where it is off
    what T puts together      of the objects behind a centroid, which are of its class      none where T is 0
    what verdicts settle      of the clusters settled by another one's, which rightly       none where spread is 0
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from uneven.errors import ConfigError
from uneven.focus.clusters import Clusters
from uneven.focus.spread import NO_PRECEDENTS, Precedents, played

OFF = 1.0
"""Skip_th that no confidence exceeds: every candidate is checked."""

COVERED = 0.95
"""Classes that make up this share of the objects count; the rest is mostly the truth network's errors (the paper)."""

EVEN = 0.5
"""That verdicts spread is borne out with this confidence at least: what is not the paper's is not believed on sight."""


class Policy(enum.Enum):
    """Which of the settings that no other beats in both costs."""

    BALANCE = "balance"
    OPT_INGEST = "opt-ingest"
    OPT_QUERY = "opt-query"


@dataclass(frozen=True, slots=True)
class LabelledObjects:
    """The objects of a stretch of video, in order.

    Attributes:
        frame: where each object is, int64 [n]; never falls.
        label: what the truth network says of it, int64 [n].
        classes: how many classes the truth network has.
    """

    frame: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    classes: int

    def dominant(self) -> tuple[int, ...]:
        """The most frequent classes that together make up :data:`COVERED` of the objects."""
        counts = np.bincount(self.label, minlength=self.classes)
        order = np.argsort(-counts, kind="stable")
        before = np.cumsum(counts[order]) - counts[order]
        return tuple(int(one) for one, passed in zip(order, before, strict=True)
                     if counts[one] and passed < COVERED * len(self.label))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Looked:
    """What a cheap network says of the same objects.

    Attributes:
        named: the class of each of its outputs but the last, which is OTHER.
        confidence: float32 [n, len(named) + 1].
        feature: float32 [n, dim], of its last layer but one.
        work: of one object, in the unit of the truth network's.
    """

    name: str
    named: tuple[int, ...]
    confidence: npt.NDArray[np.float32]
    feature: npt.NDArray[np.float32]
    work: float

    def output(self, label: int) -> int:
        """Which output stands for a class."""
        return self.named.index(label) if label in self.named else len(self.named)


@dataclass(frozen=True, slots=True)
class FocusSetting:
    """What ingest and query go by."""

    network: str
    k: int
    threshold: float
    skip: float = OFF
    spread: float = 0.0
    """How far verdicts hold for others, see :mod:`uneven.focus.spread`."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share that was counted.

    Attributes:
        value: hits of so many trials; 1 of none.
        least: it is at least this, with 95 % confidence (Clopper and Pearson), were the trials independent. Frames are
            not, so trials are appearances: runs of frames without a gap.
    """

    value: float
    least: float

    @classmethod
    def of(cls, hits: float, trials: float, independent: int) -> Share:
        """``hits`` of ``trials``, in which only ``independent`` are so."""
        if trials == 0:
            return cls(1.0, 0.0)
        value = hits / trials
        return cls(value, borne_out(value, independent, 0.95))


@functools.lru_cache(maxsize=65536)
def borne_out(value: float, trials: int, confidence: float) -> float:
    """What a share is at least, with a confidence, where it was counted in so many independent trials; 0 of none."""
    good = value * trials
    return float(beta.ppf(1.0 - confidence, good, trials - good + 1)) if good > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Leap:
    """Where a query goes by something else than the truth network's word.

    Attributes:
        share: of what it returns, or ought to, that hangs on this.
        right: of the trials.
        trials: clusters, of which each is one, however many frames it is in.
    """

    share: float
    right: float
    trials: int

    def risk(self, confidence: float) -> float:
        """The share that may be wrong, with that confidence at most."""
        return self.share * (1.0 - borne_out(self.right, self.trials, confidence)) if confidence else 0.0


@dataclass(frozen=True, slots=True)
class ClassResult:
    """How a query for one class ends."""

    label: int
    recall: Share
    precision: Share
    checked: int
    """Centroids that the truth network looks at."""
    left_out: Leap = Leap(0.0, 1.0, 0)
    unseen: Leap = Leap(0.0, 1.0, 0)
    put_together: Leap = Leap(0.0, 1.0, 0)
    settled: Leap = Leap(0.0, 1.0, 0)

    def risk(self, confidence: float) -> tuple[float, float]:
        """What recall and precision may fall short of 1 by, with that confidence at most."""
        together = self.put_together.risk(confidence) + self.settled.risk(max(confidence, EVEN))
        return self.left_out.risk(confidence) + together, self.unseen.risk(confidence) + together

    def meets(self, recall: float, precision: float) -> bool:
        """Whether it reaches both targets."""
        return self.recall.value >= recall and self.precision.value >= precision


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting, what it costs and how its queries end."""

    setting: FocusSetting
    ingest: float
    query: float
    results: tuple[ClassResult, ...]

    def meets(self, recall: float, precision: float) -> bool:
        """Whether every class reaches both targets."""
        return all(result.meets(recall, precision) for result in self.results)

    def borne_out(self, recall: float, precision: float, confidence: float) -> bool:
        """Whether the sample is large enough to say so with that confidence; at 0 it is, but for spread verdicts."""
        risks = [result.risk(confidence) for result in self.results]
        return all(one <= 1.0 - recall and other <= 1.0 - precision for one, other in risks)


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """What is tried ([default]s of ours; the paper names no values).

    Attributes:
        quantiles: of the distance from an object to the nearest one before it; each is a T, and T = 0 is tried always.
        skips: Skip_th.
        most_k: greatest K below "all outputs", which is tried always.
        spreads: how far verdicts are spread, rising; tried with the :attr:`widened` settings of each network that are
            best without.
    """

    quantiles: tuple[float, ...] = (0.1, 0.25, 0.5, 0.7, 0.85)
    skips: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99, OFF)
    most_k: int = 6
    spreads: tuple[float, ...] = (0.05, 0.1, 0.14, 0.2, 0.28, 0.4)
    widened: int = 3


class Grouped:
    """Objects in clusters: what every K, Skip_th and class needs of one T.

    Args:
        before: what queries know before they ask, by features of the same network; heard where verdicts spread.
    """

    def __init__(
        self, seen: LabelledObjects, looked: Looked, threshold: float, before: Precedents = NO_PRECEDENTS
    ) -> None:
        grown = Clusters(threshold, looked.feature.shape[1]).add(looked.feature)
        self.seen = seen
        self.looked = looked
        self.threshold = threshold
        self.before = before
        self.cluster = grown.cluster
        self.centroid = np.flatnonzero(grown.began)  # of cluster i, the object
        order = np.argsort(-looked.confidence[self.centroid], axis=1, kind="stable")
        self.place = np.argsort(order, axis=1, kind="stable")  # [clusters, outputs]: how many outputs are likelier
        self.verdict = seen.label[self.centroid]
        behind = np.ones(len(seen.label), bool)
        behind[self.centroid] = False  # objects behind a centroid, and whether they are of its class
        self.behind, self.same = behind, seen.label == self.verdict[self.cluster]

    def split(
        self, label: int, k: int, skip: float, spread: float = 0.0, inside: npt.NDArray[np.bool_] | None = None
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which clusters a query for a class accepts, which it asks the truth network about, which pass unseen.

        Args:
            inside: the clusters that it may find, bool [clusters]; by default all.
        """
        output = self.looked.output(label)
        candidate = self.place[:, output] < k if inside is None else inside & (self.place[:, output] < k)
        confidence = self.looked.confidence[self.centroid, output]
        sure = candidate & (confidence > skip)
        sure &= output < len(self.looked.named)  # OTHER says nothing about one class
        is_it, asked = self.verdict == label, candidate & ~sure
        if not spread:
            return sure | (candidate & is_it), asked, sure
        open_ = np.flatnonzero(asked)
        open_ = open_[np.lexsort((-confidence[open_], self.place[open_, output]))]  # as a query takes them
        features, before = self.looked.feature[self.centroid[open_]], (self.before.feature, self.before.label == label)
        accepted = sure.copy()
        accepted[open_], asked[open_] = played(features, is_it[open_], self.threshold, spread, before)
        return accepted, asked, sure

    def ask(self, label: int, k: int, skip: float, spread: float = 0.0) -> ClassResult:
        """One class, on these clusters."""
        accepted, asked, sure = self.split(label, k, skip, spread)
        result = judged(self.seen, label, accepted[self.cluster], int(asked.sum()))
        is_it, near = self.verdict == label, self.place[:, self.looked.output(label)] < k
        behind = self.behind & (sure | is_it)[self.cluster]
        settled = near & ~sure & ~asked & (accepted | is_it)
        return replace(
            result,
            left_out=Leap(0.0 if k > len(self.looked.named) else 1.0, _share((near & is_it).sum(), is_it.sum()),
                          int(is_it.sum())),  # where K is all outputs, no cluster can be left out
            unseen=Leap(_part(sure[self.cluster], accepted[self.cluster]), _share((sure & is_it).sum(), sure.sum()),
                        int(sure.sum())),
            put_together=Leap(_part(behind, (sure | is_it)[self.cluster]),
                              _share(self.same[behind].sum(), behind.sum()), len(np.unique(self.cluster[behind]))),
            settled=Leap(_part(settled, accepted | is_it), _share((accepted & is_it & settled).sum(), settled.sum()),
                         int(settled.sum())),
        )  # fmt: skip


def _part(those: npt.NDArray[np.bool_], whole: npt.NDArray[np.bool_]) -> float:
    return float(those.sum() / max(whole.sum(), 1))


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 1.0


def judged(seen: LabelledObjects, label: int, returned: npt.NDArray[np.bool_], checked: int) -> ClassResult:
    """Recall and precision, in frames, of the objects returned for a class.

    Args:
        returned: bool [n], whether an object's frame is returned on its account.
    """
    truth = np.unique(seen.frame[seen.label == label])
    got = np.unique(seen.frame[returned])
    both = len(np.intersect1d(truth, got, assume_unique=True))
    return ClassResult(
        label, Share.of(both, len(truth), appearances(truth)), Share.of(both, len(got), appearances(got)), checked
    )


def appearances(frames: npt.NDArray[np.int64]) -> int:
    """Runs of successive frames, in frames that rise."""
    return 0 if len(frames) == 0 else 1 + int((np.diff(frames) > 1).sum())


def thresholds(
    feature: npt.NDArray[np.float32], grid: SweepGrid, window: int = 200, most: int = 2000
) -> tuple[float, ...]:
    """T = 0, and quantiles of the distance to the nearest of the ``window`` objects before."""
    picked = np.unique(np.linspace(1, len(feature) - 1, min(most, max(len(feature) - 1, 0))).astype(np.int64))
    nearest = [float(np.sqrt(((feature[max(0, at - window) : at] - feature[at]) ** 2).sum(1).min())) for at in picked]
    if not nearest:
        return (0.0,)
    return tuple(sorted({0.0, *(float(one) for one in np.quantile(nearest, grid.quantiles))}))


def sweep(
    seen: LabelledObjects, networks: Iterable[Looked], truth_work: float, grid: SweepGrid = SweepGrid()
) -> Iterator[Tried]:
    """Every setting of the grid, each with its costs and results.

    Args:
        seen: objects of a part of the video on which no network was trained.
        truth_work: of the truth network for one object.

    Raises:
        ConfigError: there are no objects.
    """
    if len(seen.label) == 0:
        raise ConfigError("nothing moves in the frames sampled to choose the settings: give a longer part of the video")
    labels = seen.dominant()
    for looked in networks:
        outputs = len(looked.named) + 1
        for threshold in thresholds(looked.feature, grid):
            grouped = Grouped(seen, looked, threshold)
            for k in sorted({*range(1, min(grid.most_k, outputs) + 1), outputs}):
                for skip in grid.skips:
                    yield _tried(grouped, labels, FocusSetting(looked.name, k, threshold, skip), truth_work)


def _tried(grouped: Grouped, labels: Sequence[int], setting: FocusSetting, truth_work: float) -> Tried:
    results = tuple(grouped.ask(label, setting.k, setting.skip, setting.spread) for label in labels)
    query = sum(result.checked for result in results) / len(results) / len(grouped.seen.label)
    return Tried(setting, grouped.looked.work / truth_work, query, results)


def widened(
    seen: LabelledObjects, networks: Iterable[Looked], truth_work: float, points: Iterable[Tried], grid: SweepGrid,
    before: Mapping[str, Precedents] = MappingProxyType({}),
) -> Iterator[Tried]:  # fmt: skip
    """Settings once more, with verdicts spread: what a query would ask about then.

    As a margin, the results of each are those of the grid's next wider spread.

    Args:
        points: some of :func:`sweep`'s, such as :func:`promising` ones.
        before: of each network, by name, what queries know before they ask: the verdicts on the part that trains.
    """
    looked = {one.name: one for one in networks}
    labels, groups = seen.dominant(), dict[tuple[str, float], Grouped]()
    for point in points:
        network, threshold = point.setting.network, point.setting.threshold
        if (network, threshold) not in groups:
            groups[network, threshold] = Grouped(
                seen, looked[network], threshold, before.get(network, NO_PRECEDENTS)
            )
        grouped = groups[network, threshold]
        spread = [_tried(grouped, labels, replace(point.setting, spread=one), truth_work) for one in grid.spreads]
        for one, wider in pairwise(spread):
            pairs = zip(one.results, wider.results, strict=True)
            yield replace(one, results=tuple(replace(other, checked=own.checked) for own, other in pairs))


def promising(
    points: Iterable[Tried], recall: float, precision: float, policy: Policy, confidence: float = 0.0
) -> list[Tried]:
    """Those that reach the targets, and that the sample bears out, the best by a policy first.

    Of equal costs, that which risks least; the first one has both costs beaten by no other.
    """

    def order(one: Tried) -> tuple[float, ...]:
        costs = {
            Policy.BALANCE: (one.ingest + one.query, one.ingest), Policy.OPT_INGEST: (one.ingest, one.query),
            Policy.OPT_QUERY: (one.query, one.ingest),
        }  # fmt: skip
        setting = one.setting
        return *costs[policy], setting.spread, -setting.skip, setting.threshold, -setting.k

    good = (one for one in points if one.meets(recall, precision) and one.borne_out(recall, precision, confidence))
    return sorted(good, key=order)


def choose(points: Sequence[Tried], recall: float, precision: float, policy: Policy, confidence: float = 0.0) -> Tried:
    """The setting that a policy takes.

    Args:
        confidence: that the sample bears it out; where it does for none, the setting with the least risk is taken.

    Raises:
        ConfigError: no setting reaches the targets; the message says what can be reached.
    """
    if best := promising(points, recall, precision, policy, confidence):
        return best[0]
    viable = [point for point in points if point.meets(recall, precision)]
    if not viable:
        raise ConfigError(_out_of_reach(points, recall, precision))
    return min(viable, key=lambda point: max(max(one.risk(confidence)) for one in point.results))


def _out_of_reach(points: Sequence[Tried], recall: float, precision: float) -> str:
    def least(point: Tried) -> tuple[float, float]:
        return (min(one.recall.value for one in point.results), min(one.precision.value for one in point.results))

    nearest = max(points, key=lambda point: sum(map(min, least(point), (recall, precision))))
    reached = least(nearest)
    return (
        f"no setting reaches recall {recall:.1%} and precision {precision:.1%} for every class; the nearest reaches "
        f"{reached[0]:.1%} and {reached[1]:.1%}: lower the targets, or widen the grid of K, T and networks"
    )
