"""Frames of a video at a chosen rate: from a file, one that still grows, a pipe, or a camera's address."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError, DataError, install_hint

try:
    import av
except ImportError as error:
    raise ConfigError(f"uneven.focus reads videos with PyAV: {install_hint('.[focus]')}") from error

GROWS_WITHIN_S = 10.0
"""A file that has not grown for so long has ended."""

_LOOK_AGAIN_S = 0.2

_MANY = 8
"""From so many frames for each one wanted on, frames that no other frame is made from are not decoded."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that is looked at.

    Attributes:
        number: how many were due before it, at the chosen rate; also those that no longer exist.
        time_s: since the beginning of the video.
        pixels: uint8 [height, width, 3], red first.
    """

    number: int
    time_s: float
    pixels: npt.NDArray[np.uint8]


class VideoSource(Protocol):
    """Where frames come from. One that is to be taken in by another process can be pickled.

    Attributes:
        name: for people, and the name of the stream in the index.
        live: frames that nobody takes are lost, so whoever falls behind must drop some.
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    @property
    def live(self) -> bool:
        """See above."""
        ...

    def frames(self, per_s: float, first: int = 0) -> Iterator[Frame]:
        """Frames at that rate, from number ``first`` on."""
        ...

    def length_s(self) -> float | None:
        """How long it is, if that is known."""
        ...


@dataclass(frozen=True, slots=True)
class Video:
    """A file, or an address that PyAV opens.

    Args:
        at: a path, or "rtsp://…", "http://…".
        follow: the file still grows; go on until it has not for :data:`GROWS_WITHIN_S`.
        timeout_s: how long an address may be silent.

    Raises:
        DataError: (by its methods) there is no such file, no video in it, or it cannot be decoded.
    """

    at: str | Path
    follow: bool = False
    timeout_s: float = 30.0

    @property
    def name(self) -> str:
        """The file's name without its ending, or the address."""
        return str(self.at) if self._address else Path(self.at).stem

    @property
    def live(self) -> bool:
        """A file waits for its reader, a camera does not."""
        return self._address

    @property
    def _address(self) -> bool:
        return "://" in str(self.at)

    def length_s(self) -> float | None:
        """From the container's head; a stream has none."""
        with self._open() as container:
            return None if container.duration is None or self.follow else container.duration / av.time_base

    def frames(self, per_s: float, first: int = 0) -> Iterator[Frame]:
        """The first frame at or after each moment that is due."""
        due, size = first, 0
        while True:
            size = Path(self.at).stat().st_size if self.follow else size
            for time_s, picture in self._decoded(due / per_s, per_s):
                if time_s + 1e-6 < due / per_s:
                    continue
                # Moments without a frame are passed over: their numbers stay unused.
                number = max(due, math.floor(time_s * per_s + 1e-6))
                yield Frame(number, time_s, np.asarray(picture.to_ndarray(format="rgb24"), np.uint8))
                due = number + 1
            if not self.follow or not _grown(Path(self.at), size):
                return

    def _decoded(self, from_s: float, per_s: float) -> Iterator[tuple[float, av.VideoFrame]]:
        with self._open() as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            if (stream.average_rate or 0) >= _MANY * per_s:
                stream.codec_context.skip_frame = "NONREF"
            begins_s = float((stream.start_time or 0) * (stream.time_base or 0))
            if from_s > 2.0 and not self._address:
                container.seek(int((from_s + begins_s - 1.0) * av.time_base), backward=True)
            try:
                for picture in container.decode(stream):
                    if picture.time is not None:
                        yield picture.time - begins_s, picture
            except av.error.FFmpegError as error:
                if not self.follow:  # what is being written ends in the middle of a picture
                    raise DataError(f"{self.at} cannot be decoded: {error}") from error

    def _open(self) -> av.container.InputContainer:
        try:
            container = av.open(str(self.at), timeout=self.timeout_s if self._address else None)
        except (av.error.FFmpegError, OSError) as error:
            raise DataError(f"cannot open the video {self.at}: {error}") from error
        if not container.streams.video:
            container.close()
            raise DataError(f"{self.at} holds no video stream")
        return container


def _grown(path: Path, size_bytes: int) -> bool:
    """Wait until a file is larger; False if it does not grow."""
    until_s = time.monotonic() + GROWS_WITHIN_S
    while time.monotonic() < until_s:
        if path.stat().st_size > size_bytes:
            return True
        time.sleep(_LOOK_AGAIN_S)  # no system call tells of growth on every kind of file system
    return False
