"""Several streams into one index: what is wrong with one of them is its own."""

from __future__ import annotations

import io
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from colours import Colours, sprites
from rich.console import Console

from brought import brought, refusal
from uneven import focus
from uneven.errors import ConfigError, TrainingError
from uneven.focus.index import StreamStore
from uneven.focus.ingest_stream import Ingest
from uneven.focus.networks import LadderRung
from uneven.focus.start import Update
from uneven.focus.supervise import _HEADS, table

QUICK = focus.Wanted(sample_s=160, epochs=4, ladder=(LadderRung(4, 16),), named=(3,), devices=1, confidence=0)


def recorded(path: Path, source: focus.Sprites, still: bool = False) -> Path:
    """The source as a file, without loss."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=1)
        stream.height, stream.width, stream.pix_fmt = *source.size, "bgr0"
        for frame in source.frames(1.0):
            picture = av.VideoFrame.from_ndarray(frame.pixels * (not still), format="rgb24")
            picture.pts = frame.number
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def ingest(into: Path, *videos: Any, told: list[Update] | None = None, **options: float) -> focus.VideoIndex:
    show = (lambda update: None) if told is None else told.append
    return focus.ingest(
        list(videos), focus.Truth(Colours(), side=16), into=into, wanted=QUICK, devices=1, show=show,
        options=focus.IngestOptions(**options),
    )  # fmt: skip


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Update], str]:
    """Three cameras, of which one shows nothing that moves and one is not there."""
    folder = tmp_path_factory.mktemp("focus")
    recorded(folder / "good.mkv", sprites(200))
    recorded(folder / "still.mkv", sprites(200), still=True)
    told: list[Update] = []
    with pytest.raises(TrainingError) as caught:
        ingest(folder / "index", *(folder / f"{name}.mkv" for name in ("still", "good", "none")), told=told)
    return folder, told, str(caught.value)


@brought("videos", "frigate", "one silent or missing camera of several: the others are ingested, the error names it")
def test_a_stream_that_fails_leaves_the_others_alone(streams: tuple[Path, list[Update], str]) -> None:
    folder, told, error = streams
    index = focus.load_index(folder / "index")
    assert list(index.streams) == ["good"]
    assert index.streams["good"].progress()[0]["done"]
    assert index.streams["good"].progress()[0]["frames"] == 200
    assert "still: " in error
    assert "none: cannot open the video" in error
    assert [(one.stream, one.reason in error) for one in told if one.step == "failed"] == [
        ("still", True), ("none", True)
    ]  # fmt: skip


@brought("videos", "frigate", "another video, or another rate, under an ingested name", refused=True)
def test_two_videos_are_not_mixed_in_one_stream(streams: tuple[Path, list[Update], str], tmp_path: Path) -> None:
    folder, *_ = streams
    shutil.copytree(folder / "index" / "good", tmp_path / "index" / "good")
    before = focus.load_index(tmp_path / "index").streams["good"].progress()
    ingest(tmp_path / "index", folder / "good.mkv")  # nothing is left to do
    other = recorded(tmp_path / "good.mkv", sprites(300, seed=5))
    with refusal(r"good\.mkv is not the video of .*good: rename it, or give another --into"):
        ingest(tmp_path / "index", other)
    with refusal(r"was ingested with 1 frames/s, not 2: give the same rate \(--per-s\)"):
        ingest(tmp_path / "index", folder / "good.mkv", per_s=2.0)
    after = focus.load_index(tmp_path / "index").streams["good"].progress()
    assert after[0]["frames"] == before[0]["frames"] == 200
    longer = recorded(tmp_path / "good.mkv", sprites(260))  # the same, which has grown
    ingest(tmp_path / "index", longer)
    assert focus.load_index(tmp_path / "index").streams["good"].progress()[0]["frames"] == 260


class Later:
    """A camera that is taken in again."""

    name, live = "good", True

    def __init__(self) -> None:
        self.first: list[int] = []

    def length_s(self) -> None:
        return None

    def frames(self, per_s: float, first: int = 0) -> Any:
        self.first.append(first)
        return iter([focus.Frame(first, first / per_s, np.zeros((96, 128, 3), np.uint8))])


def test_a_camera_that_is_taken_in_again_goes_on_at_the_time_of_day(
    streams: tuple[Path, list[Update], str], tmp_path: Path
) -> None:
    shutil.copytree(streams[0] / "index" / "good", tmp_path / "good")
    with sqlite3.connect(tmp_path / "good" / "index.db") as db:
        db.execute("UPDATE progress SET counts = json_set(counts, '$.at_s', json_extract(counts, '$.at_s') - 3600)")
    camera, store = Later(), StreamStore(tmp_path / "good")
    counts = Ingest(store, camera).run()
    store.close()
    assert camera.first[0] >= 200 + 3600
    assert counts.next_frame == camera.first[0] + 1


def test_the_headings_of_the_table_fit_a_terminal(streams: tuple[Path, list[Update], str], tmp_path: Path) -> None:
    shutil.copytree(streams[0] / "index" / "good", tmp_path / "rtsp:__camera-of-the-yard.example.org_stream1")
    shutil.copytree(streams[0] / "index" / "good", tmp_path / "cam2")
    with sqlite3.connect(tmp_path / "cam2" / "index.db") as db:  # of two days
        db.execute("UPDATE progress SET counts = json_set(counts, '$.time_s', 172800, '$.frames', 172800)")
    screen = io.StringIO()
    Console(file=screen, width=80).print(table(focus.load_index(tmp_path)))
    shown = screen.getvalue()
    for word in (*" ".join(_HEADS).split(), "172800"):
        assert word in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_an_index_of_a_camera_remembers_no_password(streams: tuple[Path, list[Update], str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the same name"):
        ingest(tmp_path / "index", "rtsp://me:secret@h/cam", "rtsp://me:other@h/cam")
    with pytest.raises(TrainingError) as caught:
        ingest(tmp_path / "index", "tcp://me:secret@127.0.0.1:9", "tcp://me:secret@127.0.0.1:10")
    assert "secret" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if "secret" in path.name]
