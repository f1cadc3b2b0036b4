"""The HTML page about one stream: the settings tried and chosen, the cost of each step, the pictures of classes."""

import base64
from collections.abc import Sequence
from typing import Any

import av
import numpy as np

from uneven.errors import UnknownNameError
from uneven.focus.index import StreamStore
from uneven.focus.query import VideoIndex
from uneven.focus.truth import Crops
from uneven.journal.report.page import Page, PageTable
from uneven.journal.report.pure.draw import Figure, colour, layout

_MOST_PICTURES = 60


def page(index: VideoIndex, stream: str, classes: Sequence[str] = ()) -> str:
    """Return one HTML file that needs no network access.

    Args:
        classes: classes to illustrate with the centroids that the truth network has judged; by default all.

    Raises:
        UnknownNameError: no such stream or class.
    """
    if stream not in index.streams:
        raise UnknownNameError("stream", stream, index.streams)
    for name in classes:
        if name not in index.classes:
            raise UnknownNameError("class", name, index.classes)
    store = index.streams[stream]
    counts, _ = store.progress()
    setting = list(store.networks().values())[-1]
    found = Page(
        f"Focus: {stream}",
        f"Chosen for recall {store.fact('recall'):.1%} and precision "
        f"{store.fact('precision'):.1%}, policy {store.fact('policy')}.",
    )
    found.cards(_cards(counts, setting))
    found.figure(
        "Settings that reach the targets",
        _tried(setting),
        "One point for each setting that was tried. Points to the lower left are cheaper. A cost of 1 is the truth "
        "network on every object.",
    )
    found.table(
        "Recall and precision of queries",
        _results(index, setting),
        "In frames of the sample that no network was trained on. At least: the bound with 95 % confidence, if "
        "appearances are independent.",
    )
    found.table("Cost of each step", _prices(store, counts, setting))
    for name in classes or index.classes:
        centroids = store.judged(index.classes.index(name))
        if centroids:
            found.pictures(f"{name}: {len(centroids)} clusters", _pictures(store.crops(centroids[:_MOST_PICTURES])))
    return found.html()


def _cards(counts: dict[str, Any], setting: dict[str, Any]) -> list[tuple[str, str]]:
    wall_s = counts.get("wall_s", 0.0)
    return [
        (f"{counts.get('frames', 0):,}", "frames"), (f"{counts.get('objects', 0):,}", "objects"),
        (f"{counts.get('clusters', 0):,}", "clusters"), (f"{1 / setting['ingest']:.0f} ×", "less work at ingest"),
        (f"{counts.get('time_s', 0.0) / wall_s:.0f} ×" if wall_s else "–", "as fast as the video"),
        (f"{counts.get('dropped', 0):,}", "frames dropped"),
    ]  # fmt: skip


def _tried(setting: dict[str, Any]) -> Figure:
    drawn = layout("centroids to check ÷ objects", x_title="cheap network ÷ truth network", height=380)
    for axis in ("xaxis", "yaxis"):
        drawn[axis]["type"] = "log"
    points = [point for point in setting["tried"] if min(point) > 0]
    chosen = [setting["ingest"], setting["query"]]
    marks = [(points, "reaches the targets", 0, 6), ([chosen], "chosen", 1, 13)]
    data = [
        {"type": "scatter", "mode": "markers", "name": name, "x": [one[0] for one in those],
         "y": [one[1] for one in those], "marker": {"size": size, "color": colour(tint, 2)}}
        for those, name, tint, size in marks
    ]  # fmt: skip
    return {"data": data, "layout": drawn}


def _results(index: VideoIndex, setting: dict[str, Any]) -> PageTable:
    rows = [
        (
            index.classes[one["label"]],
            *(f"{one[what][which]:.1%}" for what in ("recall", "precision") for which in ("value", "least")),
            str(one["checked"]),
        )
        for one in setting["results"]
    ]
    return PageTable(("class", "recall", "at least", "precision", "at least", "centroids checked"), rows)


def _prices(store: StreamStore, counts: dict[str, Any], setting: dict[str, Any]) -> PageTable:
    tuned, seconds, objects = store.fact("price"), counts.get("seconds", {}), max(1, int(counts.get("objects", 0)))
    calls, judged, looked = int(tuned.get("truth_calls", 0)), store.judgements(), int(counts.get("looked", 0))
    lines: list[tuple[str, float | None, int, float | None]] = [
        ("choose: truth network on the sample", tuned.get("label_s"), calls, calls / objects),
        ("choose: train the candidates", tuned.get("train_s"), 0, None),
        ("choose: sweep", tuned.get("sweep_s"), 0, None),
        ("ingest: decode", seconds.get("decode"), 0, None),
        ("ingest: find moving objects", seconds.get("find"), 0, None),
        ("ingest: cheap network", seconds.get("look"), 0, setting["ingest"] * looked / objects),
        ("ingest: cluster, index", seconds.get("cluster"), 0, None),
        ("queries: truth network on centroids", None, judged, judged / objects),
    ]
    rows = [
        (
            step,
            "–" if spent_s is None else f"{spent_s:.2f}",
            f"{asked:,}" if asked else "–",
            "–" if share is None else f"{share:.2%}",
        )
        for step, spent_s, asked, share in lines
    ]
    return PageTable(("step", "s", "calls of the truth network", "of its work on every object"), rows)


def _pictures(crops: Crops) -> list[str]:
    return ["data:image/png;base64," + base64.b64encode(_png(crop)).decode() for crop in crops]


def _png(crop: Crops) -> bytes:
    codec = av.CodecContext.create("png", "w")
    assert isinstance(codec, av.VideoCodecContext)
    codec.height, codec.width = crop.shape[:2]
    codec.pix_fmt = "rgb24"
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(crop), format="rgb24")
    return b"".join(bytes(packet) for packet in (*codec.encode(frame), *codec.encode(None)))
