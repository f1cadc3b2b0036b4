"""The frames of a video at a chosen rate: from a file, a growing file, a pipe, or a camera's address."""

import contextlib
import hashlib
import logging
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import av
import numpy as np
import numpy.typing as npt
from av.stream import Disposition
from av.video.stream import VideoStream

from uneven.errors import DataError
from uneven.focus.pure.stamps import FrameClock, steady

GROWS_WITHIN_S = 10.0  # a file that has not grown for this time has ended
AGAIN_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # pauses before an interrupted camera is reopened; the last one repeats

_LOOK_AGAIN_S = 0.2
_SILENT_S = 30.0
_BURST_S = 10.0  # a camera's time stamps may run ahead of the clock this far when it sends buffered frames

_NO_STAMPS, _BEGIN_AGAIN = 0x0080, 0x0200  # FFmpeg's AVFMT_NOTIMESTAMPS, AVFMT_TS_DISCONT
_BROKEN = (av.error.FFmpegError, OSError, ValueError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame to process.

    Attributes:
        number: the number of frames due before it at the chosen rate, including missing ones.
        time_s: seconds since the beginning of the video.
        pixels: (height, width, 3) uint8, RGB.
    """

    number: int
    time_s: float
    pixels: npt.NDArray[np.uint8]


class VideoSource(Protocol):
    """A source of frames; picklable, because another process may ingest it."""

    @property
    def name(self) -> str:
        """The name of the stream in the index."""

    @property
    def live(self) -> bool:
        """True if frames that are not taken in time are lost, so a slow consumer must drop some."""

    def frames(self, per_s: float, first: int = 0) -> Iterator[Frame]:
        """Yield frames at ``per_s`` frames/s from number ``first`` on; a live stream's next frame has that number."""

    def length_s(self) -> float | None:
        """Return its length, or None if unknown."""


@dataclass(frozen=True, slots=True)
class Video:
    """A file, or an address that PyAV opens.

    Pictures are rotated according to the display matrix. Packets that cannot be decoded are skipped, and a warning
    counts them. An address without an end is a camera, which is reopened after an interruption, with growing pauses.

    Args:
        at: a path, or an address (``rtsp://…``, ``http://…``); its passwords are not shown.
        follow: the file still grows; continue until it has not for :data:`GROWS_WITHIN_S`.
        timeout_s: how long a camera that has shown pictures may be silent or unreachable.

    Raises:
        DataError: (by its methods) there is no such file, no video in it, or it cannot be decoded.
    """

    at: str | Path = field(repr=False)
    follow: bool = False
    timeout_s: float = 600.0

    @property
    def name(self) -> str:
        """The file's name without its suffix, or the address without passwords."""
        return self._shown if self.live else Path(self.at).stem

    @property
    def live(self) -> bool:
        """True for a camera: unlike a file, it does not wait for its reader."""
        return "://" in self._at

    @property
    def _at(self) -> str:
        return str(self.at).removeprefix("file://")

    @property
    def _shown(self) -> str:
        return _without_password(self._at)

    def length_s(self) -> float | None:
        """Return its length from the container's header or a file's packets; None for live or growing videos."""
        with self._open() as container:
            stream = self._stream(container)
            if self.follow or (self.live and not container.duration):
                return None
            if (container.duration or 0) > 0:
                return float(container.duration or 0) / av.time_base
            times = [_seconds(packet.pts, stream) for packet in _packets(container, stream) if packet.size]
            stamped = [one for one in times if one is not None]
            return max(stamped) - min(stamped) if stamped else len(times) / _rate(stream)

    def begins(self, packets: int = 16) -> tuple[int, str]:
        """Return the number and the digest of the first packets, which a grown video still begins with."""
        with self._open() as container:
            found = (bytes(packet) for packet in _packets(container, self._stream(container)) if packet.size)
            first = list(islice(found, packets + 1))[:-1]  # the last one may be incomplete
        return len(first), hashlib.sha256(b"".join(first)).hexdigest()

    def frames(self, per_s: float, first: int = 0) -> Iterator[Frame]:
        """Yield the first frame at or after each due moment, at ``per_s`` frames/s, from number ``first`` on."""
        due, clock = first, FrameClock(first / per_s)
        for time_s, picture in self._watched(clock) if self.live else self._recorded(clock):
            if time_s + 1e-6 >= clock.due_s:
                # The numbers of moments without a frame stay unused.
                number = max(due, math.floor(time_s * per_s + 1e-6))
                yield Frame(number, time_s, self._upright(picture))
                due = number + 1
                clock.due_s = due / per_s

    def _recorded(self, clock: FrameClock) -> Iterator[tuple[float, av.VideoFrame]]:
        again = False
        while True:
            size = Path(self._at).stat().st_size if self.follow else 0
            with self._open() as container:
                stream = self._stream(container)
                self._find(container, stream, clock, again)
                for raw_s, picture in steady(self._pictures(container, stream, clock)):
                    again = True
                    yield clock.read(raw_s, 1 / _rate(stream)), picture
            if self.follow and _grown(Path(self._at), size):
                continue
            if not again and clock.due_s == 0:
                raise DataError(f"{self._shown} has no frames: name a video that FFmpeg can read")
            return

    def _find(
        self, container: av.container.InputContainer, stream: VideoStream, clock: FrameClock, again: bool
    ) -> None:
        """Seek to a key frame before the due time, or read from the start if time stamps may have restarted."""
        flags, begins_s = container.format.flags, _seconds(stream.start_time, stream)
        unsure = _NO_STAMPS | (0 if again else _BEGIN_AGAIN)
        shift_s = clock.shift_s if again else -(begins_s or 0.0)
        if clock.due_s > 2.0 and not flags & unsure and shift_s is not None:
            with contextlib.suppress(av.error.FFmpegError):  # a pipe cannot seek: read all
                container.seek(int((clock.due_s - 1.0 - shift_s) * av.time_base), backward=True)
                clock.shift_s, clock.raw_s = shift_s, None
                return
        clock.next_s, clock.raw_s, clock.shift_s = 0.0, begins_s, None if begins_s is None else -begins_s

    def _watched(self, clock: FrameClock) -> Iterator[tuple[float, av.VideoFrame]]:
        """Yield a camera's pictures; gaps between connections are measured by the wall clock."""
        tries, heard_s, shown, reason = 0, time.monotonic(), clock.due_s > 0, "it ended"
        clock.next_s = clock.due_s
        while True:
            try:
                with self._open() as container:
                    if container.duration or container.size > 0:
                        break  # a file behind an address
                    stream, clock.shift_s = self._stream(container), None
                    counted = container.format.flags & _NO_STAMPS  # FFmpeg invents the rate
                    for raw_s, picture in self._pictures(container, stream, clock):
                        gap_s = time.monotonic() - heard_s if shown else 0.0
                        tries, shown, heard_s = 0, True, time.monotonic()
                        clock.next_s += gap_s
                        yield clock.read(None if counted else raw_s, 0.0, gap_s + _BURST_S), picture
            except DataError as error:
                if not shown:
                    raise
                reason = str(error)
            pause_s = AGAIN_S[min(tries, len(AGAIN_S) - 1)]
            if time.monotonic() + pause_s > heard_s + self.timeout_s:
                raise DataError(f"{self._shown} has sent no frame for {self.timeout_s:g} s: {reason}")
            _log.warning("%s was interrupted (%s); reopening in %g s", self._shown, reason, pause_s)
            tries += 1
            time.sleep(pause_s)
        yield from self._recorded(clock)  # the address of a file

    def _pictures(
        self, container: av.container.InputContainer, stream: VideoStream, clock: FrameClock
    ) -> Iterator[tuple[float | None, av.VideoFrame]]:
        """Yield every picture with its time stamp, except early ones that no other picture depends on."""
        lost, shown, reason = 0, 0, ""
        for packet in _packets(container, stream):
            raw_s = _seconds(packet.pts, stream)
            early = raw_s is not None and clock.early(raw_s)
            # Before the due time, decode only pictures that later ones refer to.
            stream.codec_context.skip_frame = "NONREF" if early else "DEFAULT"
            try:
                pictures = packet.decode()
            except av.error.EOFError:
                continue
            except _BROKEN as error:
                lost, reason = lost + 1, _words(error)
                continue
            shown += len(pictures)
            for picture in pictures:
                yield picture.time, picture
        if lost and not shown:
            raise DataError(f"{self._shown} cannot be decoded: {reason}")
        if lost:
            _log.warning("%s: %d packets cannot be decoded and are skipped (%s)", self._shown, lost, reason)

    def _upright(self, picture: av.VideoFrame) -> npt.NDArray[np.uint8]:
        try:
            pixels = np.asarray(picture.to_ndarray(format="rgb24"), np.uint8)
        except _BROKEN as error:
            raise DataError(f"{self._shown}: frames of format {picture.format.name}: {_words(error)}") from None
        matrix: Any = picture.side_data.get("DISPLAYMATRIX")
        if matrix is None:
            return pixels
        # FFmpeg's 3x3 matrix in 16.16 fixed point; quarter turns and mirrors have either (a, d) or (b, c).
        a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
        if (a or d) and (b or c):
            raise DataError(f"{self._shown} is turned by {-picture.rotation}°, not a multiple of 90°: encode it again")
        if b or c:
            pixels, a, d = pixels.swapaxes(0, 1), c, b
        return np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])

    def _stream(self, container: av.container.InputContainer) -> VideoStream:
        for stream in container.streams.video:
            # Cover pictures are video streams, too.
            if stream.codec_context is not None and not stream.disposition & Disposition.attached_pic:
                return stream
        raise DataError(f"{self._shown} has no video stream that FFmpeg can decode")

    def _open(self) -> av.container.InputContainer:
        within_s = min(_SILENT_S, self.timeout_s) if self.live else None
        try:
            return av.open(self._at, timeout=within_s, metadata_errors="replace")
        except _BROKEN as error:
            raise DataError(f"cannot open the video {self._shown}: {_words(error)}") from None


def _packets(container: av.container.InputContainer, stream: VideoStream) -> "Iterator[av.Packet[Any]]":
    """Yield all packets; skip one error after each packet read. The last one, empty, flushes the decoder."""
    broken = False
    while True:
        try:
            for packet in container.demux(stream):
                broken = False
                yield packet
            return
        except _BROKEN as error:
            if broken:
                last: av.Packet[Any] = av.Packet()
                last.stream, last.time_base = stream, stream.time_base or Fraction(1)
                yield last  # flushes pictures that the decoder still holds
                raise DataError(f"{_without_password(container.name)} cannot be read: {_words(error)}") from None
            broken = True


def _seconds(stamp: int | None, stream: VideoStream) -> float | None:
    return None if stamp is None or stream.time_base is None else float(stamp * stream.time_base)


def _rate(stream: VideoStream) -> float:
    return float(stream.guessed_rate or stream.average_rate or 25)


def _words(error: Exception) -> str:
    """Return FFmpeg's message without the address, which may hold a password."""
    silent = isinstance(error, av.error.ExitError)
    return "it sends no data" if silent else getattr(error, "strerror", None) or type(error).__name__


def _without_password(at: str) -> str:
    """Return an address without user, password and keys, also if the password has unescaped special characters."""
    found = re.match(r"(\w[\w+.-]*:/+)(.*)", at, re.DOTALL)
    if not found:
        return at
    scheme, rest = found.groups()
    if not re.match(r"([^@:/?#]*|\[[^@/]*\])(:\d*)?([/?#]|$)", rest):
        rest = rest.rpartition("@")[2]
    return scheme + re.sub(r"(?i)((?:pass|pwd|token|secret|key|auth|sig)\w*=)[^&;/\s]*", r"\1…", rest)


def _grown(path: Path, size_bytes: int) -> bool:
    """Wait until a file is larger; return False if it does not grow."""
    until_s = time.monotonic() + GROWS_WITHIN_S
    while time.monotonic() < until_s:
        if path.stat().st_size > size_bytes:
            return True
        time.sleep(_LOOK_AGAIN_S)  # polling, because inotify does not work on network file systems
    return False
