"""Objects of a stretch of video: where each is, and its crop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice

import numpy as np
import numpy.typing as npt

from uneven.focus.moving import Boxes, Detector, Moving, cut_out, overlaps
from uneven.focus.truth import Crops
from uneven.focus.video import Frame

_BEGINS_WITH = 25
"""Frames of whose median a background is made: what moves through them is not in it."""


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of successive frames, in order.

    Attributes:
        frame: number of each object's frame, int64 [n].
        time_s: its time, float64 [n].
        boxes: int32 [n, 4].
        crops: uint8 [n, side, side, 3].
        frames: how many frames were looked at, with or without objects.
        last: number and time of the last of them; (-1, 0) of none.
        background: of the detector after the last one, if it keeps one.
    """

    frame: npt.NDArray[np.int64]
    time_s: npt.NDArray[np.float64]
    boxes: Boxes
    crops: Crops
    frames: int
    last: tuple[int, float] = (-1, 0.0)
    background: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.frame)

    @classmethod
    def join(cls, parts: list[Objects], side: int) -> Objects:
        """One after another."""
        if not parts:
            return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 4), np.int32),
                       np.zeros((0, side, side, 3), np.uint8), 0)  # fmt: skip
        columns = ("frame", "time_s", "boxes", "crops")
        joined = [np.concatenate([getattr(part, column) for part in parts]) for column in columns]
        return cls(
            joined[0], joined[1], joined[2], joined[3],
            frames=sum(part.frames for part in parts), last=parts[-1].last, background=parts[-1].background,
        )  # fmt: skip


def found(frames: Iterable[Frame], detector: Detector, side: int) -> Iterator[Objects]:
    """The objects of each frame. A background begins as the median of the first frames, and again at another size."""
    for _, alike in groupby(frames, lambda frame: frame.pixels.shape):
        yield from _found(alike, detector, side)


def _found(frames: Iterator[Frame], detector: Detector, side: int) -> Iterator[Objects]:
    first = next(frames)
    frames = chain([first], frames)
    if isinstance(detector, Moving) and not detector.fits(first.pixels):
        held = list(islice(frames, _BEGINS_WITH))
        detector.begin([frame.pixels for frame in held])
        frames = chain(held, frames)
    for frame in frames:
        boxes = np.asarray(detector(frame.pixels), np.int32).reshape(-1, 4)
        background = detector.state() if isinstance(detector, Moving) else None
        yield Objects(
            np.full(len(boxes), frame.number), np.full(len(boxes), frame.time_s), boxes,
            cut_out(frame.pixels, boxes, side), 1, (frame.number, frame.time_s), background,
        )  # fmt: skip


def unchanged(now: Objects, before: Objects, most: float, least_overlap: float = 0.5) -> npt.NDArray[np.int64]:
    """Which object of the frame before each one repeats, -1 for none (*pixel differencing*, [default]s of ours).

    Args:
        most: mean difference of two crops, of 255, up to which they count as the same.
    """
    result = np.full(len(now), -1)
    if not len(now) or not len(before):
        return result
    shared = overlaps(now.boxes, before.boxes)
    nearest = shared.argmax(1)
    for at, one in enumerate(nearest):
        if shared[at, one] >= least_overlap:
            apart = np.abs(now.crops[at].astype(np.int16) - before.crops[one]).mean()
            result[at] = one if apart <= most else -1
    return result
