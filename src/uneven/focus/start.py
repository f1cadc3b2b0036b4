"""The entry point ``focus.ingest``: choose the settings of each stream, then ingest it in a separate process."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, UnevenError
from uneven.focus.index import FileHold, StreamStore
from uneven.focus.ingest_stream import Counts, IngestOptions
from uneven.focus.pure.sweep import Policy
from uneven.focus.query import VideoIndex, check_truth
from uneven.focus.supervise import Cameras, supervise
from uneven.focus.truth import Truth
from uneven.focus.tune import Tuned, Wanted, sampled, tune
from uneven.focus.video import Video, VideoSource
from uneven.runtime.jobs.devices import Devices
from uneven.runtime.jobs.engines import place_for
from uneven.runtime.jobs.processes import usable_cores


@dataclass(frozen=True, slots=True)
class Update:
    """A progress report of an ingest.

    Attributes:
        stream: the name of the stream.
        step: "tune", "ingest" or "failed".
        counts: of the stream, during its ingest.
        tuned: the chosen settings, after "tune".
        reason: the reason of the failure.
    """

    stream: str
    step: str
    counts: Counts | None = None
    tuned: Tuned | None = None
    reason: str = ""


Show = Callable[[Update], None]


def ingest(
    videos: str | Path | VideoSource | Sequence[str | Path | VideoSource],
    truth: Truth | Callable[..., Any],
    *,
    into: str | Path = "index",
    recall: float = 0.99,
    precision: float = 0.99,
    policy: str | Policy = Policy.BALANCE,
    starts: str | None = None,
    wanted: Wanted | None = None,
    options: IngestOptions | None = None,
    show: Show = lambda update: None,
    engine: str = "local",
    devices: Devices | None = None,
) -> VideoIndex:
    """Ingest videos, each in a separate process, so that they can be queried.

    The ingest may be interrupted at any time, by Ctrl-C or ``kill -9``. The same call continues from the last write, at
    most a second of work earlier. A video that has grown continues from its former end. If a stream fails, the others
    continue; ``show`` gets the reason immediately, and the error at the end names it.

    Args:
        videos: files, addresses, or objects with ``frames``; one or several.
        truth: the expensive network: a :class:`Truth`, or a callable with an attribute ``classes``.
        into: the folder of the index, with a folder for each stream.
        recall, precision: targets, in frames, for every dominant class; see :class:`Wanted` for more.
        policy: "balance", "opt-ingest" or "opt-query".
        starts: time of day at which the videos begin, for queries by time of day.
        wanted: all targets and settings to try, instead of ``recall``, ``precision`` and ``policy``.
        options: of the ingest, such as frames per second.
        show: called with each :class:`Update`.
        engine: "local", or "ray" for the machines of a Ray cluster, which must all reach ``into`` and the videos.
            Streams are assigned by their measured cost and the machines' measured speeds, and moved if a machine is
            lost.
        devices: number of streams ingested at a time, one core each; by default all cores. A device ingests one file at
            a time.

    Raises:
        ConfigError: invalid settings, targets out of reach, another ingest into the same stream, missing machines, or
            another video under the name of an ingested one.
        DataError: a video cannot be read, or a disk is full; earlier writes are kept.
        TrainingError: some of several streams failed, a process was killed repeatedly, or a machine's speed could not
            be measured.
    """
    judge = truth if isinstance(truth, Truth) else Truth(truth)
    wishes = wanted or Wanted(recall=recall, precision=precision, policy=policy_named(policy))
    sources = {source.name: source for source in map(_source, _several(videos))}
    if len(sources) < len(_several(videos)):
        raise ConfigError("two videos have the same name: rename one")
    with contextlib.ExitStack() as owned:
        folders = {name: Path(into) / name.replace("/", "_") for name in sources}
        failed: dict[str, str] = {}
        for name, source in sources.items():
            try:
                owned.enter_context(contextlib.closing(FileHold(folders[name] / "owner")))
                _prepare(source, folders[name], judge, wishes, options or IngestOptions(), starts, show)
            except UnevenError as error:
                if len(sources) == 1:
                    raise
                failed[name] = f"{name}: {error}"
                show(Update(name, "failed", reason=failed[name]))
        sources = {name: source for name, source in sources.items() if name not in failed}
        every: Devices = "auto" if engine == "ray" else usable_cores()
        where = owned.enter_context(contextlib.closing(place_for(engine, every if devices is None else devices)))
        if not where.shares_memory:
            where.enter(Path(into))  # checks that all machines reach it
        cameras = Cameras(
            sources=sources,
            folders=folders,
            options=options or IngestOptions(),
            cost={name: _cost(folders[name]) for name in sources},
            failed=failed,
        )
        supervise(
            cameras,
            where,
            lambda name, counts: show(Update(name, "ingest", counts)),
            lambda name, reason: show(Update(name, "failed", reason=reason)),
        )
    return VideoIndex(Path(into), judge)


def load_index(into: str | Path, truth: Truth | Callable[..., Any] | None = None) -> VideoIndex:
    """Open an existing index.

    Args:
        into: the folder of the index.
        truth: the truth network of the ingest; without it, only results settled by earlier queries are found.

    Raises:
        CheckpointError: there is no index, or the network has other classes.
    """
    return VideoIndex(Path(into), truth if truth is None or isinstance(truth, Truth) else Truth(truth))


def retune(
    index: VideoIndex, source: VideoSource, wanted: Wanted | None = None, options: IngestOptions | None = None
) -> Tuned:
    """Choose a stream's settings again on fresh frames. They apply to later ingests; the existing index is not rebuilt.

    Args:
        index: the index, opened with the truth network.
        source: fresh video of a stream of that name.
        options: of the ingest.
        wanted: the settings to try and the sample's length; the targets remain those of the stream.

    Raises:
        ConfigError: the index was opened without the truth network, the stream is being ingested, or no setting reaches
            the targets.
    """
    store = index.streams[source.name]
    if index.truth is None:
        raise ConfigError("choosing the settings needs the truth network: open the index with it")
    same = replace(
        wanted or Wanted(),
        recall=store.fact("recall"),
        precision=store.fact("precision"),
        policy=Policy(store.fact("policy")),
        confidence=store.fact("confidence"),
    )
    with contextlib.closing(FileHold(store.folder / "owner")):
        chosen = _tuned(source, store.side, index.truth, same, options or IngestOptions())
        store.add_network(chosen.setting(), chosen.weights(), chosen.before)
    return chosen


def _prepare(
    source: VideoSource,
    folder: Path,
    truth: Truth,
    wanted: Wanted,
    options: IngestOptions,
    starts: str | None,
    show: Show,
) -> None:
    if (folder / "index.db").exists():
        with contextlib.closing(StreamStore(folder)) as store:
            check_truth(store, truth)
            _check_same(store, source, options)
        return
    show(Update(source.name, "tune"))
    chosen = _tuned(source, truth.side, truth, wanted, options)
    store = StreamStore.create(
        folder, chosen.setting(), chosen.weights(), chosen.before, name=source.name, side=truth.side,
        classes=list(truth.classes), truth=truth.identity, starts=starts, per_s=options.per_s, recall=wanted.recall,
        precision=wanted.precision, policy=wanted.policy.value, confidence=wanted.confidence, price=dict(chosen.price),
        truth_work=truth.work(), begins=source.begins() if isinstance(source, Video) and not source.live else None,
    )  # fmt: skip
    store.close()
    show(Update(source.name, "tune", tuned=chosen))


def _check_same(store: StreamStore, source: VideoSource, options: IngestOptions) -> None:
    """Raise ConfigError instead of mixing two videos, or two rates, in one stream."""
    if store.fact("per_s") != options.per_s:
        raise ConfigError(
            f"{store.folder} was ingested with {store.fact('per_s'):g} frames/s, not {options.per_s:g}: give the "
            "same rate (--per-s), or another --into"
        )
    known = store.fact("begins")  # None in older indexes and for cameras
    if known and isinstance(source, Video) and list(source.begins(known[0])) != known:
        raise ConfigError(f"{source.at} is not the video of {store.folder}: rename it, or give another --into")


def _tuned(source: VideoSource, side: int, truth: Truth, wanted: Wanted, options: IngestOptions) -> Tuned:
    # The cost of reading the sample predicts that of the ingest, by which the stream gets a machine.
    began_s = time.process_time()
    learn, check = sampled(source, options.per_s, wanted, side, options.detector)
    spent_s, video_s = time.process_time() - began_s, (learn.frames + check.frames) / options.per_s
    found = tune(learn, check, truth, wanted)
    return replace(found, price={**found.price, "a_second_s": spent_s / max(video_s, 1.0)})


def _cost(folder: Path) -> float:
    """Return the core seconds that a second of a stream costs: measured during ingest, or else on the sample."""
    with contextlib.closing(StreamStore(folder)) as store:
        counts, _ = store.progress()
        if counts:
            return max(math.fsum(counts["seconds"].values()) / max(counts["time_s"], 1.0), 1e-9)
        return max(float(store.fact("price").get("a_second_s", 1.0)), 1e-9)


def policy_named(policy: str | Policy) -> Policy:
    """Return a policy by its name; raise ConfigError if there is none."""
    try:
        return Policy(policy)
    except ValueError:
        raise ConfigError(f"policy {policy!r}: give {', '.join(one.value for one in Policy)}") from None


def _several(videos: Any) -> list[Any]:
    return list(videos) if isinstance(videos, (list, tuple)) else [videos]


def _source(video: str | Path | VideoSource) -> VideoSource:
    return Video(video) if isinstance(video, (str, Path)) else video
