"""1,000 videos that went wrong: each is refused by name, or gives the pictures that PyAV gives, at its times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from clips import due, reference, write

from brought import brought
from uneven.errors import DataError
from uneven.focus import Video
from uneven.focus.pure.stamps import FrameClock, steady

TIMES_S = [number / 10 for number in range(40)]
EACH = 100
KINDS = {
    "a.mp4": {}, "b.mp4": {"codec": "libx264"}, "c.mp4": {"codec": "libx264", "options": {"movflags": "faststart"}},
    "d.mkv": {"codec": "libx264"}, "e.avi": {}, "f.ts": {"codec": "libx264"}, "g.webm": {"codec": "libvpx-vp9"},
    "h.h264": {"codec": "libx264"}, "i.mjpeg": {"codec": "mjpeg", "pix": "yuvj420p"}, "j.flv": {"codec": "flv1"},
}  # fmt: skip


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Up to four places changed, more often at either end, where containers keep what matters most."""
    made = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.choice([rng.randrange(len(made)), rng.randrange(600), len(made) - 1 - rng.randrange(1200)])
        at = min(max(at, 0), len(made) - 1)
        length = rng.randrange(1, 200)
        match rng.randrange(6):
            case 0:
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at : at + length] = rng.randbytes(rng.randrange(1, 64))
            case 2:
                del made[at : at + length]
            case 3:
                made[at:at] = made[at : at + length]
            case 4:
                made[at : at + length] = bytes(len(made[at : at + length]))
            case 5:
                del made[max(1, at) :]
        made = made or bytearray(1)
    return bytes(made)


def times(path: Path, stamps: list[float | None]) -> list[float]:
    """Times since the beginning, of a row of time stamps that is not whole."""
    with av.open(str(path), metadata_errors="replace") as container:
        stream = container.streams.video[0]
        begins_s = None if stream.start_time is None else float(stream.start_time * stream.time_base)
        step_s = 1 / float(stream.guessed_rate or stream.average_rate or 25)
    clock = FrameClock(0.0, 0.0, None if begins_s is None else -begins_s, begins_s)
    return [clock.read(one, step_s) for one, _ in steady((one, None) for one in stamps)]


@pytest.fixture(autouse=True)
def _errors_are_logged() -> Iterator[None]:
    before = av.logging.get_level()
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)  # else a file whose first error is the last one of the file before reports none
    yield
    av.logging.set_skip_repeated(True)
    av.logging.set_level(before)


ROW = brought("videos", "PyAV", f"damaged files, {EACH} of each of ten kinds; an error if PyAV reads no picture")


@pytest.mark.parametrize("name", [pytest.param(name, marks=ROW) for name in KINDS])
def test_damaged_files_give_what_pyav_gives_or_are_refused(tmp_path: Path, name: str) -> None:
    whole, rng = write(tmp_path / name, TIMES_S, **KINDS[name]).read_bytes(), random.Random(name)
    path, refused, compared = tmp_path / f"mutated-{name}", 0, 0
    for _ in range(EACH):
        path.write_bytes(mutated(whole, rng))
        with av.logging.Capture(local=False) as complaints:
            try:
                every = reference(path)
            except (av.error.FFmpegError, IndexError, ValueError):
                every = []
        try:
            Video(path).length_s(), Video(path).begins()
            frames = list(Video(path).frames(2.0))
        except DataError as error:
            refused, reason = refused + 1, str(error)
        else:
            reason = ""
        if reason:
            assert name in reason
            assert not every, reason
            continue
        times_s = times(path, [time_s for time_s, _ in every])
        if times_s and times_s[-1] > 1e5:  # a damaged frame rate: which frame is due is a matter of rounding
            continue
        wanted = due(times_s, 2.0)
        assert [frame.time_s for frame in frames] == pytest.approx([times_s[place] for place in wanted])
        # In place of lost bytes FFmpeg shows what its memory held before, and reports an error.
        if not complaints:
            compared += 1
            assert all(map(np.array_equal, (one.pixels for one in frames), (every[place][1] for place in wanted)))
    assert refused < EACH
    assert compared
