"""Queries to an index: find clusters that may hold a class, ask the truth network about their centroids, return
frames."""

import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from uneven.errors import CheckpointError, ConfigError, DataError, UnknownNameError
from uneven.focus.index import OTHER, ClusterRow, StreamStore, feature_of
from uneven.focus.networks import run
from uneven.focus.pure.stamps import Moment, seconds
from uneven.focus.pure.verdict_propagation import ROUND, Spreading
from uneven.focus.truth import Crops, Truth, as_input
from uneven.focus.tune import restored

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Embedding:
    """A user's network that maps pictures and texts to one space.

    ::

        clip = Embedding(model.encode_image, lambda text: model.encode_text(tokenize(text)), name="ViT-B-32", side=224)

    Args:
        picture: (n, 3, side, side) float32 in 0 … 1 → (n, d). It normalizes pictures itself if necessary.
        text: a text → (d,).
        name: its embeddings of centroids are stored under this name.
        side: side of its input in pixels; None for the stored size of centroids.
        batch: centroids at a time.
    """

    picture: Callable[[torch.Tensor], Any]
    text: Callable[[str], Any]
    name: str
    side: int | None = None
    batch: int = 64

    def of_text(self, text: str) -> Rows:
        """Return the embedding of a text, (d,), of length 1.

        Raises:
            DataError: the network returns no finite numbers, or only zeros.
        """
        with torch.inference_mode():
            return _rows(self.text(text), 1, f"the text {text!r}")[0]

    def of_crops(self, crops: Crops) -> Rows:
        """Return the embeddings of crops (n, side, side, 3) as (n, d), each of length 1.

        Raises:
            DataError: as :meth:`of_text`, or another number of rows.
        """
        with torch.inference_mode():
            pictures = as_input(crops)
            if self.side is not None and self.side != crops.shape[1]:
                pictures = F.interpolate(pictures, (self.side, self.side), mode="bilinear", antialias=True)
            return _rows(self.picture(pictures), len(crops), "pictures")


def nearness(store: StreamStore, by: Embedding, clusters: list[int], wanted: Rows) -> tuple[Rows, int]:
    """Return the cosine of each centroid and a text's embedding (d,), as (clusters,), and the number newly embedded.

    Raises DataError if pictures and text differ in width.
    """
    fresh = len(clusters) - len(store.numbers(by.name, clusters))
    rows = store.once(by.name, clusters, by.of_crops, by.batch)
    other = [len(row) for row in rows if len(row) != len(wanted)]
    if other:
        raise DataError(
            f"embedding {by.name!r} gives {len(wanted)} numbers for a text and {other[0]} for centroids of "
            f"{store.folder}: if another network had that name, give this one its own name"
        )
    return np.stack(rows) @ wanted, fresh


def _rows(found: Any, count: int, what: str) -> Rows:
    rows = np.asarray(found.detach().cpu() if isinstance(found, torch.Tensor) else found, np.float32)
    rows = rows.reshape(1, -1) if rows.ndim == 1 and count == 1 else rows
    length = np.linalg.norm(rows, axis=-1, keepdims=True) if rows.ndim == 2 else np.zeros(1)
    if rows.ndim != 2 or len(rows) != count or not np.isfinite(length).all() or not length.all():
        raise DataError(
            f"for {what} the embedding network gives {rows.shape}: {count} rows are needed, none of them all 0"
        )
    return rows / length


# A cheap network for one query: (n, side, side, 3) uint8 → (n,) bool, True if the truth network need not see the crop.
Reject = Callable[[Crops], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Hit:
    """An object of the requested class.

    Attributes:
        stream: its camera or file.
        frame: number of its frame, at the ingest's rate.
        time_s: seconds since the stream began.
        box: left, top, right, bottom, in the frame's pixels.
        confidence: the truth network's for its centroid, or the cheap network's if that sufficed; in a text search, the
            cosine of text and centroid.
        cluster: number of its cluster in the stream.
    """

    stream: str
    frame: int
    time_s: float
    box: tuple[int, int, int, int]
    confidence: float
    cluster: int


@dataclass(slots=True)
class QueryCost:
    """The cost of an index's queries since it was opened; all counts but the first and last are parts of the first."""

    candidates: int = 0  # clusters that could hold the class
    sure: int = 0  # accepted by the cheap network without the truth network
    known: int = 0  # judged by an earlier query
    alike: int = 0  # accepted or rejected by the verdict on a nearby centroid
    rejected: int = 0  # rejected by a query's own filter
    checked: int = 0  # judged by the truth network
    embedded: int = 0  # centroids processed by an embedding network
    seconds: float = 0.0


@dataclass(slots=True)
class VideoIndex:
    """The index of one or more ingested streams.

    Args:
        folder: the folder with a folder for each stream.
        truth: the truth network of the ingest; without it, only results settled by earlier queries are found.
        cost: counts of the work of queries so far.

    Raises:
        CheckpointError: there is no index, or the truth network has other classes.
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
                f"{self.folder} is not an index; make one with `uneven focus ingest VIDEO --into {self.folder}`"
            )
        self.streams = {path.name: StreamStore(path) for path in found}
        for store in self.streams.values():
            check_truth(store, self.truth)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that can be queried."""
        return tuple(next(iter(self.streams.values())).fact("classes"))

    def query(
        self,
        name: str,
        between: tuple[Moment, Moment] | None = None,
        streams: Sequence[str] | None = None,
        *,
        reject: Reject | None = None,
        skip: float | None = None,
    ) -> Iterator[Hit]:
        """Yield every object of a class, cluster by cluster, as soon as each is known.

        Args:
            name: the class.
            between: start and end (exclusive): seconds since the stream began, or a time of day such as "08:00".
            streams: the streams to query; by default all.
            reject: rejects centroids before the truth network sees them; wrong rejections are not found.
            skip: Skip_th instead of the tuned one; 1 has every candidate checked.

        Raises:
            UnknownNameError: no class or stream of that name; the message offers the nearest.
            ConfigError: an invalid time, or the truth network is needed and was not given.
        """
        if name not in self.classes:
            raise UnknownNameError("class", name, self.classes)
        label, chosen = self.classes.index(name), self._chosen(streams, between)
        return chain.from_iterable(
            self._hits(stream, between_s, self._accepted(stream, label, between_s, reject, skip))
            for stream, between_s in chosen
        )

    def search(
        self,
        text: str,
        by: Embedding,
        *,
        most: int = 20,
        between: tuple[Moment, Moment] | None = None,
        streams: Sequence[str] | None = None,
    ) -> Iterator[Hit]:
        """Yield objects whose pictures are nearest to a text, cluster by cluster, nearest first.

        Each centroid is embedded once and the result stored. A search has no recall target and does not use the truth
        network.

        Args:
            text: the text to search for.
            by: the embedding of pictures and texts.
            most: maximum number of clusters.
            between, streams: as in :meth:`query`.

        Returns:
            Hits whose confidence is the cosine of text and centroid.

        Raises:
            UnknownNameError, ConfigError: as :meth:`query`; or ``most`` is below 1.
            DataError: the network's outputs are not numeric rows of one width.
        """
        if most < 1:
            raise ConfigError(f"most = {most!r}: give at least 1")
        chosen = self._chosen(streams, between)
        wanted = by.of_text(text)
        found: list[tuple[float, int, int]] = []
        began_s = time.perf_counter()
        for place, (stream, between_s) in enumerate(chosen):
            store = self.streams[stream]
            if clusters := store.within(between_s):
                near, embedded = nearness(store, by, clusters, wanted)
                self.cost.embedded += embedded
                found += [(float(-near[at]), place, clusters[at]) for at in np.argsort(-near, kind="stable")[:most]]
        self.cost.seconds += time.perf_counter() - began_s
        nearest = [(chosen[place], cluster, -far) for far, place, cluster in sorted(found)[:most]]
        return chain.from_iterable(self._hits(*one, [(cluster, near)]) for one, cluster, near in nearest)

    def _chosen(
        self, streams: Sequence[str] | None, between: tuple[Moment, Moment] | None
    ) -> list[tuple[str, tuple[float, float]]]:
        for stream in streams or ():
            if stream not in self.streams:
                raise UnknownNameError("stream", stream, self.streams)
        return [(one, seconds(between, self.streams[one].fact("starts"))) for one in streams or self.streams]

    def _hits(self, stream: str, between_s: tuple[float, float], found: Iterable[tuple[int, float]]) -> Iterator[Hit]:
        for cluster, confidence in found:
            for frame, time_s, box in self.streams[stream].members(cluster, between_s):
                yield Hit(stream, frame, time_s, box, confidence, cluster)

    def _accepted(
        self, stream: str, label: int, between_s: tuple[float, float], reject: Reject | None, skip: float | None
    ) -> Iterator[tuple[int, float]]:
        """Yield the clusters whose centroid is of the class, each with its confidence."""
        store = self.streams[stream]
        for number, setting in store.networks().items():
            open_: list[ClusterRow] = []
            named = label in setting["named"]
            enough = setting["skip"] if skip is None else skip
            for cluster in store.find(label, label if named else OTHER, number, setting["k"], between_s):
                self.cost.candidates += 1
                if cluster.verdict is not None:
                    self.cost.known += 1
                    if cluster.verdict[0] == label:
                        yield cluster.id, cluster.verdict[1]
                elif named and cluster.confidence > enough:
                    self.cost.sure += 1
                    yield cluster.id, cluster.confidence
                else:
                    open_.append(cluster)
            open_.sort(key=lambda one: (one.place, -one.confidence))  # the most likely first, for early hits
            if reject is not None and open_:
                rejected = np.asarray(reject(store.crops([one.id for one in open_])), bool)
                self.cost.rejected += int(rejected.sum())
                open_ = [one for one, gone in zip(open_, rejected, strict=True) if not gone]
            if open_:
                yield from self._settled(stream, label, number, setting, [one.id for one in open_])

    def _settled(
        self, stream: str, label: int, number: int, setting: dict[str, Any], clusters: list[int]
    ) -> Iterator[tuple[int, float]]:
        """Judge centroids in rounds until verdicts cover the others; yield accepted clusters immediately."""
        began_s, store = time.perf_counter(), self.streams[stream]
        spread = setting.get("spread", 0.0)  # missing in older indexes
        before = store.precedents(number)
        said = zip(before.cluster.tolist(), before.label.tolist(), before.score.tolist(), strict=True)
        verdicts = {one: (verdict, score) for one, verdict, score in said}

        def look(crops: Crops) -> npt.NDArray[np.float32]:  # older indexes store no features
            return run(restored(setting, store.weights(number))[1], crops)[1]

        features, is_it = np.stack(store.once(feature_of(number), clusters, look)), before.label == label
        spreading = Spreading(features, setting["threshold"], spread, (before.feature, is_it))
        while rows := spreading.ask(ROUND if spread or self.truth is None else self.truth.at_once):
            if self.truth is None:
                raise ConfigError(
                    f"the truth network has not classified some candidate centroids of {stream}: open the index with it"
                )
            # A round may be larger than a batch. Only the judged part is reported back; `ask` offers the rest again.
            part = [clusters[row] for row in rows[: self.truth.at_once]]
            labels, scores = self.truth.label(store.crops(part))
            store.keep_verdicts(part, labels, scores)
            spreading.tell(rows[: len(part)], (labels == label).tolist())
            verdicts |= dict(zip(part, zip(labels.tolist(), scores.tolist(), strict=True), strict=True))
            self.cost.checked += len(part)
            self.cost.seconds += time.perf_counter() - began_s
            # The time that the caller spends on hits does not count.
            yield from ((one, verdicts[one][1]) for one in part if verdicts[one][0] == label)
            began_s = time.perf_counter()
        names = np.concatenate([np.array(clusters), before.cluster[::-1]])  # precedent i has index -1 - i
        speakers = zip(clusters, names[spreading.speakers()].tolist(), strict=True)
        leaders = {one: led for one, led in speakers if led != one}
        store.keep_settled(label, leaders)
        self.cost.alike += len(leaders)
        self.cost.seconds += time.perf_counter() - began_s
        yield from ((one, verdicts[led][1]) for one, led in leaders.items() if verdicts[led][0] == label)

    def close(self) -> None:
        """Close the index's files."""
        for store in self.streams.values():
            store.close()


def check_truth(store: StreamStore, truth: Truth | None) -> None:
    """Raise CheckpointError if the truth network's classes differ from those of the stream's ingest."""
    if truth is None or truth.identity == store.fact("truth"):
        return
    before = tuple(store.fact("classes"))
    lost, new = sorted(set(before) - set(truth.classes)), sorted(set(truth.classes) - set(before))
    changed = f"without {', '.join(lost)}" if lost else f"with {', '.join(new)}" if new else "in another order or size"
    hint = difflib.get_close_matches(lost[0], new, n=1) if lost and new else []
    raise CheckpointError(
        f"the truth network names other classes than the one of {store.folder}: "
        f"{changed}{f' (is {hint[0]!r} the former {lost[0]!r}?)' if hint else ''}; ingest into another folder"
    )
