"""A synthetic stream for experiments with known results: pictures that move through a fixed scene."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from uneven.focus.video import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Sprites:
    """A :class:`~uneven.focus.video.VideoSource` whose objects are pictures of known classes.

    Every frame is computed from the seed and its number.

    Attributes:
        pictures: (n, height, width, 3) uint8.
        labels: class of each, (n,) int.
        often: relative frequency of each class; by default a Zipf law, class 0 most often.
        seconds: length in seconds.
        every: interval between pictures on each lane, in frames.
        stays: minimum and maximum number of frames of an appearance.
        size: height and width of a frame, in pixels.
        scale: enlargement of the pictures.
        seed: determines classes, times and places.
        name: the name of the stream.
        live: True to act as a camera.
    """

    pictures: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    often: Sequence[float] = ()
    seconds: int = 3600
    every: int = 24
    stays: tuple[int, int] = (5, 20)
    size: tuple[int, int] = (240, 320)
    scale: int = 2
    seed: int = 0
    name: str = "sprites"
    live: bool = field(default=False)

    def length_s(self) -> float:
        """Return the length in seconds."""
        return float(self.seconds)

    def frames(self, per_s: float, first: int = 0) -> Iterator[Frame]:
        """Yield frames of shape (height, width, 3) at ``per_s`` frames a second, from number ``first`` on."""
        scene = self._scene()
        for number in range(first, int(self.seconds * per_s)):
            yield Frame(number, number / per_s, self._drawn(scene, number))

    def shown(self, number: int) -> list[tuple[int, tuple[int, int, int, int]]]:
        """Return the class and box of each picture in frame ``number``."""
        return [(int(self.labels[one]), box) for one, box, _ in self._there(number)]

    def _there(self, number: int) -> Iterator[tuple[int, tuple[int, int, int, int], float]]:
        height, width = (side * self.scale for side in self.pictures.shape[1:3])
        lanes = max(1, (self.size[0] - 8) // (height + 8))
        for lane in range(lanes):
            slot = number // self.every
            # Seeded by lane and time slot, so that any frame can be computed without those before it.
            draw = np.random.default_rng((self.seed, lane, slot))
            stays = int(draw.integers(self.stays[0], min(self.stays[1], self.every - 2) + 1))
            begin = slot * self.every + int(draw.integers(0, self.every - stays))
            if not begin <= number < begin + stays:
                continue
            weights = np.asarray(self.often or 1 / (1 + np.arange(int(self.labels.max()) + 1)))
            label = int(draw.choice(len(weights), p=weights / weights.sum()))
            picture = int(draw.choice(np.flatnonzero(self.labels == label)))
            step = (self.size[1] - width) / max(stays, 1)
            left = int((number - begin) * step + draw.uniform(0, max(step, 1)))
            top = 8 + lane * (height + 8)
            left = min(left, self.size[1] - width)
            bright = float(np.random.default_rng((self.seed, lane, number)).uniform(0.9, 1.1))
            yield picture, (left, top, left + width, top + height), bright

    def _scene(self) -> npt.NDArray[np.uint8]:
        draw = np.random.default_rng(self.seed)
        rows, columns = np.mgrid[: self.size[0], : self.size[1]]
        grey = 110 + 25 * np.sin(rows / 37) + 25 * np.cos(columns / 53)
        return np.clip(grey[..., None] + draw.normal(0, 3, (*self.size, 3)), 0, 255).astype(np.uint8)

    def _drawn(self, scene: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.uint8]:
        noise = np.random.default_rng((self.seed, number)).integers(-3, 4, scene.shape, np.int8)
        frame = np.clip(scene.astype(np.int16) + noise, 0, 255).astype(np.uint8)
        for picture, (left, top, right, bottom), bright in self._there(number):
            large = self.pictures[picture].repeat(self.scale, 0).repeat(self.scale, 1)
            frame[top:bottom, left:right] = np.clip(large * bright, 0, 255).astype(np.uint8)
        return frame
