"""The evaluation of settings against the targets, and the choice among them.

A setting is a network, K, T and Skip_th. Recall and precision count frames, relative to the truth network's labels
(section 5 of the paper, *parameter selection*)::

    candidates(X) = clusters whose centroid has X among its K most likely classes (OTHER if X has no output)
    accepted(X)   = candidates whose centroid is X by the truth network, or by the cheap one with confidence > Skip_th
    recall        = share of the frames with X that are returned      precision = share of the returned ones with X
    ingest        = work of the cheap network, as a share of the truth network on all objects
    query         = centroids to check, mean over classes, as a share of all objects

A small sample proves little: of 20 clusters without an error, one in seven may be wrong elsewhere. So only settings
whose assumptions (leaps) the sample supports statistically are chosen (ours)::

    left out by K             of the clusters of X, those with X among the K most likely    none if K is all outputs
    passed by Skip_th         of those accepted unseen, those that are X                    none if it is off
    put together by T         of the objects behind a centroid, those of its class          none if T is 0
    settled by verdicts       of the clusters settled by another's verdict, the right ones  none if spread is 0
"""

import enum
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from uneven.errors import ConfigError
from uneven.focus.pure.clusters import Clusters
from uneven.focus.pure.verdict_propagation import NO_PRECEDENTS, Precedents, played

OFF = 1.0  # a Skip_th that no confidence exceeds: every candidate is checked
COVERED = 0.95  # the dominant classes make up this share; the rest is mostly the truth network's errors (the paper)
EVEN = 0.5  # minimum confidence for spread verdicts: they are ours, and the paper's evidence does not cover them


class Policy(enum.Enum):
    """The choice among the settings that no other beats in both costs."""

    BALANCE = "balance"  #: the least sum of both costs
    OPT_INGEST = "opt-ingest"  #: the least work at ingest
    OPT_QUERY = "opt-query"  #: the fewest centroids to check


@dataclass(frozen=True, slots=True)
class LabelledObjects:
    """The n objects of a part of a video, in order."""

    frame: npt.NDArray[np.int64]  # of each object, (n,) int64, not decreasing
    label: npt.NDArray[np.int64]  # the truth network's class, (n,) int64
    classes: int  # number of the truth network's classes

    def dominant(self) -> tuple[int, ...]:
        """Return the most frequent classes that together make up :data:`COVERED` of the objects."""
        counts = np.bincount(self.label, minlength=self.classes)
        order = np.argsort(-counts, kind="stable")
        before = np.cumsum(counts[order]) - counts[order]
        return tuple(
            int(one)
            for one, passed in zip(order, before, strict=True)
            if counts[one] and passed < COVERED * len(self.label)
        )


@dataclass(frozen=True, slots=True)
class Looked:
    """A cheap network's outputs for the same n objects."""

    name: str
    named: tuple[int, ...]  # the class of each output except the last, which is OTHER
    confidence: npt.NDArray[np.float32]  # (n, len(named) + 1) float32
    feature: npt.NDArray[np.float32]  # the last layer's input, (n, dim) float32
    work: float  # cost of one object, in the truth network's unit

    def output(self, label: int) -> int:
        return self.named.index(label) if label in self.named else len(self.named)


@dataclass(frozen=True, slots=True)
class FocusSetting:
    """The settings of ingest and query; for ``spread`` see :mod:`uneven.focus.pure.verdict_propagation`."""

    network: str
    k: int
    threshold: float
    skip: float = OFF
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """A measured share."""

    value: float  # hits ÷ trials; 1 without trials
    least: float  # its lower bound at 95 % confidence (Clopper and Pearson)

    @classmethod
    def of(cls, hits: float, trials: float, independent: int) -> "Share":
        """Return ``hits`` of ``trials``, only ``independent`` of them independent."""
        if trials == 0:
            return cls(1.0, 0.0)
        value = hits / trials
        return cls(value, borne_out(value, independent, 0.95))


@functools.lru_cache(maxsize=65536)
def borne_out(value: float, trials: int, confidence: float) -> float:
    """Return the lower confidence bound of a share measured in that many independent trials; 0 without trials."""
    good = value * trials
    return float(betaincinv(good, trials - good + 1, 1.0 - confidence)) if good > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption by which a query replaces the truth network's verdict."""

    share: float  # part of the query's result that depends on it
    right: float  # share of trials in which it is right
    trials: int  # number of clusters, each counted once

    def risk(self, confidence: float) -> float:
        """Return the share that may be wrong, an upper bound at that confidence."""
        return self.share * (1.0 - borne_out(self.right, self.trials, confidence)) if confidence else 0.0


@dataclass(frozen=True, slots=True)
class ClassResult:
    """The result of a query for one class; ``checked`` counts the centroids that the truth network sees."""

    label: int
    recall: Share
    precision: Share
    checked: int
    left_out: Assumption = Assumption(0.0, 1.0, 0)
    unseen: Assumption = Assumption(0.0, 1.0, 0)
    put_together: Assumption = Assumption(0.0, 1.0, 0)
    settled: Assumption = Assumption(0.0, 1.0, 0)

    def risk(self, confidence: float) -> tuple[float, float]:
        """Return upper bounds, at that confidence, of 1 − recall and 1 − precision."""
        together = self.put_together.risk(confidence) + self.settled.risk(max(confidence, EVEN))
        return self.left_out.risk(confidence) + together, self.unseen.risk(confidence) + together

    def meets(self, recall: float, precision: float) -> bool:
        return self.recall.value >= recall and self.precision.value >= precision


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting with its costs and the results of its queries."""

    setting: FocusSetting
    ingest: float
    query: float
    results: tuple[ClassResult, ...]

    def meets(self, recall: float, precision: float) -> bool:
        return all(result.meets(recall, precision) for result in self.results)

    def borne_out(self, recall: float, precision: float, confidence: float) -> bool:
        """Return whether the sample supports that with this confidence; at 0 only spread verdicts need support."""
        risks = [result.risk(confidence) for result in self.results]
        return all(one <= 1.0 - recall and other <= 1.0 - precision for one, other in risks)


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """The values to try ([default]s of ours; the paper names none).

    Attributes:
        quantiles: of the distance from an object to the nearest earlier one; each is a T, and T = 0 is always tried.
        skips: Skip_th.
        most_k: greatest K below "all outputs", which is always tried.
        spreads: spreads of verdicts, increasing; tried with each network's :attr:`widened` best settings.
    """

    quantiles: tuple[float, ...] = (0.1, 0.25, 0.5, 0.7, 0.85)
    skips: tuple[float, ...] = (0.8, 0.9, 0.95, 0.99, OFF)
    most_k: int = 6
    spreads: tuple[float, ...] = (0.05, 0.1, 0.14, 0.2, 0.28, 0.4)
    widened: int = 3


class Grouped:
    """The objects in clusters of one T, which serve every K, Skip_th and class; ``before`` are a query's precedents."""

    def __init__(
        self, seen: LabelledObjects, looked: Looked, threshold: float, before: Precedents = NO_PRECEDENTS
    ) -> None:
        grown = Clusters(threshold, looked.feature.shape[1]).add(looked.feature)
        self.seen = seen
        self.looked = looked
        self.threshold = threshold
        self.before = before
        self.cluster = grown.cluster
        self.centroid = np.flatnonzero(grown.began)  # cluster → object
        order = np.argsort(-looked.confidence[self.centroid], axis=1, kind="stable")
        self.place = np.argsort(order, axis=1, kind="stable")  # (clusters, outputs): number of more likely outputs
        self.verdict = seen.label[self.centroid]
        behind = np.ones(len(seen.label), bool)
        behind[self.centroid] = False  # all other objects
        self.behind = behind
        self.same = seen.label == self.verdict[self.cluster]

    def split(
        self, label: int, k: int, skip: float, spread: float = 0.0, inside: npt.NDArray[np.bool_] | None = None
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return the clusters that a query accepts, asks about, and accepts unseen, each (clusters,) bool like
        ``inside``."""
        output = self.looked.output(label)
        candidate = self.place[:, output] < k if inside is None else inside & (self.place[:, output] < k)
        confidence = self.looked.confidence[self.centroid, output]
        sure = candidate & (confidence > skip)
        sure &= output < len(self.looked.named)  # OTHER is not evidence for one class
        is_it, asked = self.verdict == label, candidate & ~sure
        if not spread:
            return sure | (candidate & is_it), asked, sure
        open_ = np.flatnonzero(asked)
        open_ = open_[np.lexsort((-confidence[open_], self.place[open_, output]))]  # a query's order
        features, before = self.looked.feature[self.centroid[open_]], (self.before.feature, self.before.label == label)
        accepted = sure.copy()
        accepted[open_], asked[open_] = played(features, is_it[open_], self.threshold, spread, before)
        return accepted, asked, sure

    def ask(self, label: int, k: int, skip: float, spread: float = 0.0) -> ClassResult:
        """Return the result of a query for one class."""
        accepted, asked, sure = self.split(label, k, skip, spread)
        result = judged(self.seen, label, accepted[self.cluster], int(asked.sum()))
        is_it, near = self.verdict == label, self.place[:, self.looked.output(label)] < k
        behind = self.behind & (sure | is_it)[self.cluster]
        settled = near & ~sure & ~asked & (accepted | is_it)
        return replace(
            result,
            left_out=Assumption(
                0.0 if k > len(self.looked.named) else 1.0, _share((near & is_it).sum(), is_it.sum()), int(is_it.sum())
            ),  # if K is all outputs, no cluster can be left out
            unseen=Assumption(
                _part(sure[self.cluster], accepted[self.cluster]),
                _share((sure & is_it).sum(), sure.sum()),
                int(sure.sum()),
            ),
            put_together=Assumption(
                _part(behind, (sure | is_it)[self.cluster]),
                _share(self.same[behind].sum(), behind.sum()),
                len(np.unique(self.cluster[behind])),
            ),
            settled=Assumption(
                _part(settled, accepted | is_it),
                _share((accepted & is_it & settled).sum(), settled.sum()),
                int(settled.sum()),
            ),
        )


def _part(those: npt.NDArray[np.bool_], whole: npt.NDArray[np.bool_]) -> float:
    return float(those.sum() / max(whole.sum(), 1))


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 1.0


def judged(seen: LabelledObjects, label: int, returned: npt.NDArray[np.bool_], checked: int) -> ClassResult:
    """Return recall and precision, in frames, of the objects ``returned`` (n,) bool for a class."""
    # Successive frames are not independent trials; appearances (runs of frames without a gap) are, roughly.
    truth = np.unique(seen.frame[seen.label == label])
    got = np.unique(seen.frame[returned])
    both = len(np.intersect1d(truth, got, assume_unique=True))
    return ClassResult(
        label, Share.of(both, len(truth), appearances(truth)), Share.of(both, len(got), appearances(got)), checked
    )


def appearances(frames: npt.NDArray[np.int64]) -> int:
    """Return the number of runs of consecutive frames in increasing frame numbers (n,)."""
    return 0 if len(frames) == 0 else 1 + int((np.diff(frames) > 1).sum())


def thresholds(
    feature: npt.NDArray[np.float32], grid: SweepGrid, window: int = 200, most: int = 2000
) -> tuple[float, ...]:
    """Return T = 0 and quantiles of the distance of features (n, dim) to the nearest of the ``window`` earlier ones."""
    picked = np.unique(np.linspace(1, len(feature) - 1, min(most, max(len(feature) - 1, 0))).astype(np.int64))
    nearest = [float(np.sqrt(((feature[max(0, at - window) : at] - feature[at]) ** 2).sum(1).min())) for at in picked]
    if not nearest:
        return (0.0,)
    return tuple(sorted({0.0, *(float(one) for one in np.quantile(nearest, grid.quantiles))}))


def sweep(
    seen: LabelledObjects, networks: Iterable[Looked], truth_work: float, grid: SweepGrid = SweepGrid()
) -> Iterator[Tried]:
    """Yield every setting of the grid with its costs and results; raise ConfigError if there are no objects."""
    # `seen` must be a part of the video on which no network was trained, or its results would be too good.
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
    seen: LabelledObjects,
    networks: Iterable[Looked],
    truth_work: float,
    points: Iterable[Tried],
    grid: SweepGrid,
    before: Mapping[str, Precedents] = MappingProxyType({}),
) -> Iterator[Tried]:
    """Yield :func:`promising` settings again with spread verdicts, given each network's precedents."""
    looked = {one.name: one for one in networks}
    labels, groups = seen.dominant(), dict[tuple[str, float], Grouped]()
    for point in points:
        network, threshold = point.setting.network, point.setting.threshold
        if (network, threshold) not in groups:
            groups[network, threshold] = Grouped(seen, looked[network], threshold, before.get(network, NO_PRECEDENTS))
        grouped = groups[network, threshold]
        spread = [_tried(grouped, labels, replace(point.setting, spread=one), truth_work) for one in grid.spreads]
        # As a margin, each spread gets the results of the grid's next wider one, with its own cost.
        for one, wider in pairwise(spread):
            pairs = zip(one.results, wider.results, strict=True)
            yield replace(one, results=tuple(replace(other, checked=own.checked) for own, other in pairs))


def promising(
    points: Iterable[Tried], recall: float, precision: float, policy: Policy, confidence: float = 0.0
) -> list[Tried]:
    """Return the settings that reach the targets and that the sample supports, in the policy's order."""

    def order(one: Tried) -> tuple[float, ...]:
        costs = {
            Policy.BALANCE: (one.ingest + one.query, one.ingest),
            Policy.OPT_INGEST: (one.ingest, one.query),
            Policy.OPT_QUERY: (one.query, one.ingest),
        }
        # Among equal costs the setting with the least risk comes first. The first of all is Pareto-optimal.
        setting = one.setting
        return *costs[policy], setting.spread, -setting.skip, setting.threshold, -setting.k

    good = (one for one in points if one.meets(recall, precision) and one.borne_out(recall, precision, confidence))
    return sorted(good, key=order)


def choose(points: Sequence[Tried], recall: float, precision: float, policy: Policy, confidence: float = 0.0) -> Tried:
    """Return the policy's choice, or the least risk without sufficient confidence; ConfigError if out of reach."""
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
