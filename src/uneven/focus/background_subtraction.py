"""Detection of moving objects before a fixed camera: a running background, and boxes around differences from it.

The paper subtracts the average of each hour's frames. Here the average is updated with every frame, so a stream needs
no initial hour. It adapts slowly under moving objects, so an object that stops temporarily is still detected (our
choice).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy import ndimage

from uneven.errors import DataError

Boxes = npt.NDArray[np.int32]  # (n, 4): left, top, right, bottom; the last two are exclusive


class Detector(Protocol):
    """A callable that finds the objects of a frame; a custom one can handle cameras that move."""

    def __call__(self, pixels: npt.NDArray[np.uint8]) -> Boxes:
        """Return the boxes (n, 4) of a frame, (height, width, 3) uint8."""


@dataclass(frozen=True, slots=True)
class MovingOptions:
    """The parameters of the background and of differences from it ([default]s of ours).

    Attributes:
        width: frames are reduced to about this width first, in pixels.
        learns: weight of a new frame in the background.
        learns_under: the same under moving objects.
        differs: minimum difference in brightness, of 255.
        least: minimum area of an object, as a share of the frame.
        joins: gaps up to this many reduced pixels do not split an object.
    """

    width: int = 320
    learns: float = 0.05
    learns_under: float = 0.005
    differs: float = 18.0
    least: float = 0.0008
    joins: int = 2


class Moving:
    """A :class:`Detector` with a running background and ``options``; it takes frames in order."""

    def __init__(self, options: MovingOptions = MovingOptions()) -> None:
        self._options = options
        self._background: npt.NDArray[np.float32] | None = None

    def __call__(self, pixels: npt.NDArray[np.uint8]) -> Boxes:
        """Return the boxes (n, 4) of a frame (height, width, 3) uint8, top first; DataError if the frame's size has
        changed."""
        step = self._step(pixels)
        grey = _narrow(pixels, step)
        if self._background is None:
            self._background = grey
        if not self.fits(pixels):
            raise DataError(
                f"a frame of {pixels.shape[1]} x {pixels.shape[0]} differs from earlier ones: use a detector per stream"
            )
        moves = np.abs(grey - self._background) > self._options.differs
        # Opening removes spots narrower than two pixels, mostly camera noise.
        moves = ndimage.binary_opening(moves, structure=np.ones((2, 2), bool))
        self._learn(grey, moves)
        return self._boxes(moves, step, pixels.shape[:2])

    def begin(self, frames: list[npt.NDArray[np.uint8]]) -> None:
        """Use the median of frames, each (height, width, 3), as background: moving objects are not part of it."""
        step = self._step(frames[0])
        self._background = np.median(np.stack([_narrow(one, step) for one in frames]), axis=0).astype(np.float32)

    def fits(self, pixels: npt.NDArray[np.uint8]) -> bool:
        """Return whether there is a background of the size of the frame ``pixels``, (height, width, 3)."""
        size = tuple(edge // self._step(pixels) for edge in pixels.shape[:2])
        return self._background is not None and self._background.shape == size

    def _step(self, pixels: npt.NDArray[np.uint8]) -> int:
        return max(1, round(pixels.shape[1] / self._options.width))

    def state(self) -> npt.NDArray[np.float32] | None:
        """Return the background, (height, width) float32 of reduced frames, or None before the first frame."""
        return self._background

    def load(self, state: npt.NDArray[np.float32] | None) -> None:
        """Continue with ``state``, a background (height, width) float32 of :meth:`state`."""
        self._background = state

    def _learn(self, grey: npt.NDArray[np.float32], moves: npt.NDArray[np.bool_]) -> None:
        assert self._background is not None
        rate = np.where(moves, np.float32(self._options.learns_under), np.float32(self._options.learns))
        # Not in place: `state` returns the array itself.
        self._background = self._background + rate * (grey - self._background)

    def _boxes(self, moves: npt.NDArray[np.bool_], step: int, size: tuple[int, ...]) -> Boxes:
        joined = ndimage.binary_dilation(moves, iterations=self._options.joins) if self._options.joins else moves
        labels, count = ndimage.label(joined, structure=np.ones((3, 3), int))
        if count == 0:
            return np.zeros((0, 4), np.int32)
        areas = ndimage.sum_labels(moves, labels, index=np.arange(1, count + 1))
        large = areas >= self._options.least * moves.size
        found = [where for where, keep in zip(ndimage.find_objects(labels), large, strict=True) if keep]
        boxes = [(x.start, y.start, x.stop, y.stop) for y, x in found]
        # Dilation has joined parts and enlarged the boxes by `joins`; undo the latter.
        shrunk = np.array(boxes, np.int32).reshape(-1, 4) + np.array([1, 1, -1, -1], np.int32) * self._options.joins
        return np.clip(shrunk * step, 0, [size[1], size[0], size[1], size[0]]).astype(np.int32)


def _narrow(pixels: npt.NDArray[np.uint8], step: int) -> npt.NDArray[np.float32]:
    """Return the brightness, the mean of each ``step`` x ``step`` block."""
    height, width = pixels.shape[0] // step * step, pixels.shape[1] // step * step
    green = pixels[:height, :width, 1]  # dominates brightness, at a third of the work
    return green.reshape(height // step, step, width // step, step).mean(axis=(1, 3), dtype=np.float32)


def cut_out(pixels: npt.NDArray[np.uint8], boxes: Boxes, side: int, margin: float = 0.1) -> npt.NDArray[np.uint8]:
    """Return squares around the ``boxes`` (n, 4) of a frame (height, width, 3), as (n, side, side, 3) uint8."""
    result = np.zeros((len(boxes), side, side, 3), np.uint8)
    frame = torch.from_numpy(pixels)
    for place, (left, top, right, bottom) in enumerate(boxes.tolist()):
        half = max(right - left, bottom - top) * (0.5 + margin)  # the margin is a share of the longer side
        x, y = (left + right) / 2, (top + bottom) / 2
        columns = slice(max(0, round(x - half)), min(pixels.shape[1], round(x + half) + 1))
        rows = slice(max(0, round(y - half)), min(pixels.shape[0], round(y + half) + 1))
        part = frame[rows, columns].permute(2, 0, 1)[None]
        scaled = F.interpolate(part, (side, side), mode="bilinear", antialias=True)
        result[place] = scaled[0].permute(1, 2, 0).numpy()
    return result


def overlaps(boxes: Boxes, before: Boxes) -> npt.NDArray[np.float64]:
    """Return the intersection over union of ``boxes`` (n, 4) with those of another frame (m, 4), as (n, m) float64."""
    low = np.maximum(boxes[:, None, :2], before[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], before[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [(one[:, 2:] - one[:, :2]).prod(axis=1) for one in (boxes, before)]
    return shared / np.maximum(areas[0][:, None] + areas[1][None] - shared, 1)
