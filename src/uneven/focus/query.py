"""Asking an index: which clusters may hold a class, what the truth network says of their centroids, which frames."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uneven.errors import CheckpointError, ConfigError, UnknownNameError
from uneven.focus.clusters import leaders
from uneven.focus.moment import Moment, seconds
from uneven.focus.networks import run
from uneven.focus.store import OTHER, ClusterRow, StreamStore
from uneven.focus.truth import Crops, Truth
from uneven.focus.tune import restored
from uneven.focus.words import Embedding, nearness

Reject = Callable[[Crops], npt.NDArray[np.bool_]]
"""A cheap network for one query: uint8 [n, side, side, 3] → bool [n], True for what the truth network need not see."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One object of the class that was asked for.

    Attributes:
        stream: its camera or file.
        frame: number of its frame, at the rate of ingest.
        time_s: since the stream began.
        box: left, top, right, bottom, in the frame's pixels.
        confidence: the truth network's for its centroid, or the cheap network's where that was sure enough; of a search
            in words, the cosine of text and centroid.
    """

    stream: str
    frame: int
    time_s: float
    box: tuple[int, int, int, int]
    confidence: float
    cluster: int


@dataclass(slots=True)
class QueryCost:
    """What the queries of an index have cost since it was opened.

    Attributes:
        candidates: clusters that could hold the class.
        sure: of these, accepted on the cheap network's word.
        known: of these, judged by an earlier query.
        alike: of these, as near to the centroid of another one as the members of a cluster, and judged with it.
        rejected: of these, by a query's own filter.
        checked: of these, seen by the truth network.
        embedded: centroids seen by an embedding network.
    """

    candidates: int = 0
    sure: int = 0
    known: int = 0
    alike: int = 0
    rejected: int = 0
    checked: int = 0
    embedded: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A query, checked.

    Attributes:
        label: the class's number.
        between_s: from, until; since each stream began.
    """

    label: int
    between_s: tuple[float, float]
    reject: Reject | None = None
    skip: float | None = None


@dataclass(slots=True)
class VideoIndex:
    """One or more streams that were taken in.

    Args:
        folder: with a folder for each stream.
        truth: the network that was the truth when they were taken in; without it only what earlier queries have settled
            is found.

    Raises:
        CheckpointError: nothing was taken in there, or with a truth network of other classes.
    """

    folder: Path
    truth: Truth | None = None
    cost: QueryCost = field(default_factory=QueryCost)
    streams: dict[str, StreamStore] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        found = sorted(path.parent for path in self.folder.glob("*/index.db"))
        if not found:
            raise CheckpointError(
                f"{self.folder} holds no index; `uneven focus ingest VIDEO --into {self.folder}` makes one"
            )
        self.streams = {path.name: StreamStore(path) for path in found}
        for store in self.streams.values():
            check_truth(store, self.truth)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names that can be asked for."""
        return tuple(next(iter(self.streams.values())).fact("classes"))

    def query(
        self, name: str, between: tuple[Moment, Moment] | None = None, streams: Sequence[str] | None = None,
        *, reject: Reject | None = None, skip: float | None = None,
    ) -> Iterator[Hit]:  # fmt: skip
        """Every object of a class, cluster by cluster, as soon as each is known.

        Args:
            name: of the class.
            between: from, until (not included): seconds since the stream began, or "08:00" on the clock of the stream.
            streams: only these.
            reject: rejects centroids before the truth network sees them; what it rejects wrongly is not found.
            skip: Skip_th instead of the one that was tuned; 1 has every candidate checked.

        Raises:
            UnknownNameError: no class or stream of that name; the message offers the nearest.
            ConfigError: a time that is none, or the truth network is needed and was not given.
        """
        if name not in self.classes:
            raise UnknownNameError("class", name, self.classes)
        label, chosen = self.classes.index(name), self._chosen(streams)
        asked = {stream: Asked(label, seconds(between, store.fact("starts")), reject, skip) for stream, store in chosen}
        return self._hits(chosen, asked)

    def search(
        self, text: str, by: Embedding, *, most: int = 20, between: tuple[Moment, Moment] | None = None,
        streams: Sequence[str] | None = None,
    ) -> Iterator[Hit]:  # fmt: skip
        """Objects whose pictures are nearest to a text, cluster by cluster, the nearest first.

        Each centroid is embedded once and kept; there is no target that a search has to reach, and the truth network is
        not asked.

        Args:
            by: embeds pictures and texts.
            most: clusters to return.

        Returns:
            Hits whose confidence is the cosine of text and centroid.

        Raises:
            UnknownNameError, ConfigError: as :meth:`query`; or ``most`` is below 1.
            DataError: the network's answers are no rows of numbers of one width.
        """
        if most < 1:
            raise ConfigError(f"most = {most!r}: a search returns at least 1 cluster")
        chosen = [(stream, store, seconds(between, store.fact("starts"))) for stream, store in self._chosen(streams)]
        wanted = by.of_text(text)
        found: list[tuple[float, int, int]] = []
        began_s = time.perf_counter()
        for place, (_, store, between_s) in enumerate(chosen):
            if clusters := store.within(between_s):
                near = nearness(store, by, clusters, wanted, self._count_embedded)
                found += [(float(-near[at]), place, clusters[at]) for at in np.argsort(-near, kind="stable")[:most]]
        self.cost.seconds += time.perf_counter() - began_s
        return self._near(chosen, sorted(found)[:most])

    def _near(
        self, chosen: Sequence[tuple[str, StreamStore, tuple[float, float]]], found: Sequence[tuple[float, int, int]]
    ) -> Iterator[Hit]:
        for far, place, cluster in found:
            stream, store, between_s = chosen[place]
            for member in store.members(cluster, between_s):
                yield Hit(stream, member.frame, member.time_s, member.box, -far, cluster)

    def _count_embedded(self, centroids: int) -> None:
        self.cost.embedded += centroids

    def _chosen(self, streams: Sequence[str] | None) -> list[tuple[str, StreamStore]]:
        for stream in streams or ():
            if stream not in self.streams:
                raise UnknownNameError("stream", stream, self.streams)
        return [(stream, self.streams[stream]) for stream in streams or self.streams]

    def _hits(self, chosen: Sequence[tuple[str, StreamStore]], asked: dict[str, Asked]) -> Iterator[Hit]:
        for stream, store in chosen:
            one = asked[stream]
            for cluster, confidence in self._accepted(stream, store, one):
                for member in store.members(cluster, one.between_s):
                    yield Hit(stream, member.frame, member.time_s, member.box, confidence, cluster)

    def _accepted(self, stream: str, store: StreamStore, asked: Asked) -> Iterator[tuple[int, float]]:
        """Clusters whose centroid is of the class, with how sure that is."""
        known: list[ClusterRow] = []
        open_: list[ClusterRow] = []
        for number, setting in store.networks().items():
            named = asked.label in setting["named"]
            skip = setting["skip"] if asked.skip is None else asked.skip
            for cluster in store.find(asked.label if named else OTHER, number, setting["k"], asked.between_s):
                self.cost.candidates += 1
                if cluster.verdict is not None:
                    self.cost.known += 1
                    known += [cluster] if cluster.leader is None else []
                    if cluster.verdict[0] == asked.label:
                        yield cluster.id, cluster.verdict[1]
                elif named and cluster.confidence > skip:
                    self.cost.sure += 1
                    yield cluster.id, cluster.confidence
                else:
                    open_.append(cluster)
        if open_:
            open_.sort(key=lambda one: (one.place, -one.confidence))  # the likeliest first, so that hits come early
            began_s = time.perf_counter()
            groups = _together(store, known, open_)
            self.cost.seconds += time.perf_counter() - began_s
            yield from self._judged(stream, store, asked, groups)

    def _judged(
        self, stream: str, store: StreamStore, asked: Asked, groups: dict[ClusterRow, list[int]]
    ) -> Iterator[tuple[int, float]]:
        """Group by group: one centroid is looked at, and speaks for the others. Verdicts are kept batch by batch."""
        known = {one: groups.pop(one) for one in list(groups) if one.verdict is not None}
        if any(known.values()):
            store.keep_verdicts([], [], [], {one.id: alike for one, alike in known.items()})
        for one, alike in known.items():
            self.cost.alike += len(alike)
            if one.verdict is not None and one.verdict[0] == asked.label:
                yield from ((cluster, one.verdict[1]) for cluster in alike)
        if not groups:
            return
        if self.truth is None:
            raise ConfigError(
                f"{len(groups)} centroids of {stream} were never judged: open the index with its truth network"
            )
        every, size = list(groups), self.truth.at_once
        for part in (every[at : at + size] for at in range(0, len(every), size)):
            began_s = time.perf_counter()
            crops = store.crops([one.id for one in part])
            if asked.reject is not None:
                keep = ~np.asarray(asked.reject(crops), bool)
                self.cost.rejected += int((~keep).sum())
                part, crops = [one for one, kept in zip(part, keep, strict=True) if kept], crops[keep]
            labels, scores = self.truth.label(crops)
            alike_of = {one.id: groups[one] for one in part}
            store.keep_verdicts(list(alike_of), labels, scores, alike_of)
            self.cost.checked += len(part)
            self.cost.seconds += time.perf_counter() - began_s
            for one, label, score in zip(part, labels, scores, strict=True):
                self.cost.alike += len(groups[one])
                if label == asked.label:
                    yield from ((cluster, float(score)) for cluster in (one.id, *groups[one]))

    def close(self) -> None:
        """Let go of the files."""
        for store in self.streams.values():
            store.close()


def _together(
    store: StreamStore, known: Sequence[ClusterRow], open_: Sequence[ClusterRow]
) -> dict[ClusterRow, list[int]]:
    """Clusters by the one whose verdict is theirs, too; those that were judged themselves speak first.

    Sealing saves memory while a stream is taken in; what comes again afterwards begins another cluster. Here those
    whose centroids are at most T apart are one again.
    """
    found: dict[ClusterRow, list[int]] = {}
    for number in sorted({one.network for one in open_}):
        first = [one for one in known if one.network == number]
        rows = [*first, *(one for one in open_ if one.network == number)]
        setting = store.networks()[number]
        _, model = restored(setting, store.weights(number))
        _, features = run(model, store.crops([one.id for one in rows]))
        for row, leader in zip(rows, leaders(features, setting["threshold"], len(first)), strict=True):
            group = found.setdefault(rows[leader], [])
            if row is not rows[leader]:
                group.append(row.id)
    return found


def check_truth(store: StreamStore, truth: Truth | None) -> None:
    """Refuse a truth network that names other classes than the one a stream was taken in with.

    Raises:
        CheckpointError: it does.
    """
    if truth is None or truth.identity == store.fact("truth"):
        return
    before = tuple(store.fact("classes"))
    lost, new = sorted(set(before) - set(truth.classes)), sorted(set(truth.classes) - set(before))
    changed = f"without {', '.join(lost)}" if lost else f"with {', '.join(new)}" if new else "in another order or size"
    hint = difflib.get_close_matches(lost[0], new, n=1) if lost and new else []
    raise CheckpointError(
        f"the truth network names other classes than the one of {store.folder}: {changed}"
        f"{f' (is {hint[0]!r} the former {lost[0]!r}?)' if hint else ''}; take the stream in anew, in another folder"
    )
