"""Small videos, each as some camera or program writes it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

BASE = Fraction(1, 1000)


def pixels(number: int, size: tuple[int, int] = (48, 64)) -> npt.NDArray[np.uint8]:
    """One frame, brighter than the one before, with a white corner at the top left and a square that moves."""
    picture = np.full((*size, 3), 30 + number % 200, np.uint8)
    picture[:8, :16] = 255
    across = number * 3 % (size[1] - 16)
    picture[20:36, across : across + 16] = [220, 30, 30]
    return picture


def write(
    path: Path, times_s: Sequence[float], *, codec: str = "mpeg4", format: str | None = None, rate: int = 10,
    pix: str = "yuv420p", size: tuple[int, int] = (48, 64), first: int = 0, options: dict[str, str] | None = None,
    **settings: Any,
) -> Path:  # fmt: skip
    """A frame at each of these times.

    Args:
        first: number of the first picture.
        settings: of the stream.
    """
    with av.open(str(path), "w", format=format) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.height, stream.width, stream.pix_fmt = *size, pix
        for name, value in settings.items():
            setattr(stream.codec_context, name, value)
        stream.codec_context.time_base = stream.time_base = BASE if codec != "mpeg4" else Fraction(1, rate)
        for number, time_s in enumerate(times_s, first):
            picture = av.VideoFrame.from_ndarray(pixels(number, size), format="rgb24")
            picture.time_base, picture.pts = BASE, round(time_s * 1000)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def reference(path: Path) -> list[tuple[float | None, npt.NDArray[np.uint8]]]:
    """PyAV's own answer: times and pictures of the first video stream, past packets that cannot be decoded."""
    found = []
    with av.open(str(path), metadata_errors="replace") as container:
        stream = container.streams.video[0]
        for packet in container.demux(stream):
            try:
                found += [(one.time, one.to_ndarray(format="rgb24")) for one in packet.decode()]
            except av.error.FFmpegError:
                continue
    return found


def due(times_s: Sequence[float], per_s: float) -> list[int]:
    """Which pictures are looked at: the first at or after each moment."""
    chosen, moment = [], 0
    for place, time_s in enumerate(times_s):
        if time_s + 1e-6 >= moment / per_s:
            chosen.append(place)
            moment = int(time_s * per_s + 1e-6) + 1
    return chosen
