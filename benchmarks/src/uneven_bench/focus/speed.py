"""The speed of ingest on one core over real time, with all stages, decoding too."""

import io
import os
import statistics
import tempfile
import time
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import torch

from uneven.focus import Video
from uneven.focus.index import StreamStore
from uneven.focus.ingest_stream import Ingest
from uneven.focus.networks import LADDER, Candidate
from uneven_bench.harness.data import needed_file
from uneven_bench.harness.threads import threads

_WIDTH, _HEIGHT = 640, 480
_RATE = 30


def speed(rounds: int) -> dict[str, Any]:
    """Ingest the clip of one person after another, made 640 x 480 at 30 frames a second, at 1 frame a second.

    The network is the largest of the ladder, untrained, which has the same cost.

    Returns ``times_real_time`` by processor time and by the clock, on one core; median, least, most.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with threads(), tempfile.TemporaryDirectory(prefix="uneven-bench-focus-") as folder:
            clip, length_s = made(Path(folder) / "clip.mp4")
            spent = [_taken_in(clip, Path(folder) / f"index{one}") for one in range(rounds)]
    finally:
        os.sched_setaffinity(0, cores)
    return {
        "length_s": length_s,
        "processor": _spread([length_s / one for one, _ in spent]),
        "clock": _spread([length_s / one for _, one in spent]),
    }


def _spread(values: list[float]) -> list[float]:
    return [statistics.median(values), min(values), max(values)]


def made(path: Path) -> tuple[Path, float]:
    """Write the clip with each frame repeated up to 30 frames a second, and return its length in s."""
    source = Video(needed_file("videos", "one-by-one-person-detection.mp4"))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=_RATE)
        stream.width, stream.height, stream.pix_fmt = _WIDTH, _HEIGHT, "yuv420p"
        shown = 0
        for frame in source.frames(10.0):
            picture = av.VideoFrame.from_ndarray(frame.pixels, format="rgb24").reformat(_WIDTH, _HEIGHT, "yuv420p")
            while shown < (frame.time_s + 0.1) * _RATE - 1e-6:
                picture.pts, picture.time_base = shown, Fraction(1, _RATE)
                container.mux(stream.encode(picture))
                shown += 1
        container.mux(stream.encode(None))
    return path, shown / _RATE


def _taken_in(clip: Path, folder: Path) -> tuple[float, float]:
    setting, weights = untrained(Candidate(LADDER[0], (0,), 2), threshold=0.5, k=1)
    began = time.process_time(), time.perf_counter()
    made = StreamStore.create(folder, setting, weights, name="clip", side=64, classes=["a", "b"], starts=None)
    with closing(made) as store:
        Ingest(store, Video(clip)).run()
    return time.process_time() - began[0], time.perf_counter() - began[1]


def untrained(candidate: Candidate, threshold: float, k: int) -> tuple[dict[str, Any], bytes]:
    """Return a setting with an untrained network, as an index keeps it."""
    torch.manual_seed(0)
    file = io.BytesIO()
    torch.save(candidate.build().state_dict(), file)
    setting = {
        "network": candidate.name, "threshold": threshold, "k": k, "skip": 1.0, "named": list(candidate.named),
        "classes": candidate.classes, "removed": candidate.rung.removed, "side": candidate.rung.side, "ingest": 1.0,
        "query": 1.0, "results": [], "tried": [],
    }  # fmt: skip
    return setting, file.getvalue()
