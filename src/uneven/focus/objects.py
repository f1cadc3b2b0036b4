"""The objects of a part of a video: their boxes and crops."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.focus.background_subtraction import Boxes, Detector, Moving, cut_out, overlaps
from uneven.focus.truth import Crops
from uneven.focus.video import Frame

_BEGINS_WITH = 25  # number of frames whose median is the first background


@dataclass(frozen=True, slots=True)
class Objects:
    """The n objects of successive frames, in order."""

    frame: npt.NDArray[np.int64]  # number of each object's frame, (n,) int64
    time_s: npt.NDArray[np.float64]  # its time, (n,) float64
    boxes: Boxes  # (n, 4) int32
    crops: Crops  # (n, side, side, 3) uint8
    frames: int  # number of frames examined, with or without objects
    last: tuple[int, float] = (-1, 0.0)  # number and time of the last of them; (-1, 0) if there is none
    background: npt.NDArray[np.float32] | None = None  # the detector's background after the last one, if it has one

    def __len__(self) -> int:
        return len(self.frame)

    @classmethod
    def join(cls, parts: "list[Objects]", side: int) -> "Objects":
        if not parts:
            boxes, crops = np.zeros((0, 4), np.int32), np.zeros((0, side, side, 3), np.uint8)
            return cls(np.zeros(0, np.int64), np.zeros(0), boxes, crops, 0)
        columns = ("frame", "time_s", "boxes", "crops")
        joined: dict[str, Any] = {one: np.concatenate([getattr(part, one) for part in parts]) for one in columns}
        return replace(parts[-1], **joined, frames=sum(part.frames for part in parts))


def found(frames: Iterable[Frame], detector: Detector, side: int) -> Iterator[Objects]:
    """Yield the objects of each frame. The background starts as the median of the first frames, also after a resize."""
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
            np.full(len(boxes), frame.number),
            np.full(len(boxes), frame.time_s),
            boxes,
            cut_out(frame.pixels, boxes, side),
            1,
            (frame.number, frame.time_s),
            background,
        )


def unchanged(now: Objects, before: Objects, most: float, least_overlap: float = 0.5) -> npt.NDArray[np.int64]:
    """Return for each object the index of the one that it repeats in the frame before, (n,) int64; -1 for none.

    This is the paper's *pixel differencing* ([default]s of ours): crops differ by at most ``most`` of 255 on average.
    """
    result = np.full(len(now), -1)
    if not len(now) or not len(before):
        return result
    shared = overlaps(now.boxes, before.boxes)
    nearest = shared.argmax(1)
    for at, one in enumerate(nearest):
        if shared[at, one] >= least_overlap:
            # int16: differences of uint8 would wrap around.
            apart = np.abs(now.crops[at].astype(np.int16) - before.crops[one]).mean()
            result[at] = one if apart <= most else -1
    return result
