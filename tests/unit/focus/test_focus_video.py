"""Frames of the videos that cameras, phones and programs write: those that PyAV gives, with their times."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clips import due, pixels, reference, write

from brought import brought, refusal
from uneven.errors import DataError
from uneven.focus import Moving, Video
from uneven.focus import video as module
from uneven.focus.objects import found
from uneven.focus.pure.stamps import FrameClock, seconds, steady

STEADY = [number / 10 for number in range(40)]
UNEVEN = [0, 0.1, 0.2, 0.9, 1.0, 3.3, 3.35, 3.4, 7.7, 7.8]
ONE = 1 << 16
TURNED = {  # matrix: what becomes of the white corner at the top left
    "90°": (0, ONE, 0, -ONE, 0), "180°": (-ONE, 0, 0, 0, -ONE), "270°": (0, -ONE, 0, ONE, 0),
    "mirrored": (-ONE, 0, 0, 0, ONE),
}  # fmt: skip


def video(what: str, peer: str = "PyAV") -> pytest.MarkDecorator:
    return brought("videos", peer, what)


def as_pyav(path: Path, per_s: float) -> None:
    """Number, time and pixels of each frame are those of the pictures that PyAV gives."""
    every = reference(path)
    times_s = [time_s - every[0][0] for time_s, _ in every]
    wanted, frames = due(times_s, per_s), list(Video(path).frames(per_s))
    assert [frame.time_s for frame in frames] == pytest.approx([times_s[place] for place in wanted])
    assert [frame.number for frame in frames] == [int(times_s[place] * per_s + 1e-6) for place in wanted]
    assert len({frame.pixels.tobytes() for frame in frames}) > 1
    for frame, place in zip(frames, wanted, strict=True):
        np.testing.assert_array_equal(frame.pixels, every[place][1])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("a.mp4", {}, marks=video("MPEG-4 in `.mp4`")),
        pytest.param("b.mkv", {"codec": "libx264"}, marks=video("H.264 with B-frames in `.mkv`")),
        pytest.param("b.ts", {"codec": "libx264"}, marks=video("a transport stream that begins at any timestamp")),
        pytest.param("c.mp4", {"codec": "libx264", "times_s": UNEVEN}, marks=video("a variable frame rate, with gaps")),
        pytest.param("c.webm", {"codec": "libvpx-vp9", "times_s": UNEVEN}, marks=video("VP9 in `.webm`")),
        pytest.param("d.mp4", {"codec": "libx264", "pix": "yuv420p10le"}, marks=video("10-bit colour")),
        pytest.param("d.mkv", {"codec": "ffv1", "pix": "gray16le"}, marks=video("16-bit grey (thermal cameras)")),
        pytest.param("e.mov", {"codec": "qtrle", "pix": "argb"}, marks=video("pictures with alpha")),
        pytest.param("e.gif", {"codec": "gif", "pix": "rgb8"}, marks=video("`.gif`")),
        pytest.param("f.mkv", {"codec": "ffv1", "size": (49, 67), "pix": "yuv444p"}, marks=video("odd sizes")),
        pytest.param(
            "g.mp4", {"codec": "libx264", "options": {"x264-params": "tff=1"}}, marks=video("interlaced pictures")
        ),
        pytest.param(
            "h.mp4", {"codec": "libx264", "format": "mp4", "options": {"movflags": "frag_keyframe+empty_moov"}},
            marks=video("fragmented `.mp4`", "frigate"),
        ),
        pytest.param("i.mjpeg", {"codec": "mjpeg", "pix": "yuvj420p"}, marks=video("raw `.mjpeg`", "OpenCV")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("per_s", [1.0, 4.0])
def test_frames_are_those_of_pyav(tmp_path: Path, name: str, settings: dict[str, object], per_s: float) -> None:
    as_pyav(write(tmp_path / name, **{"times_s": STEADY, **settings}), per_s)


@video("raw `.h264` and `.hevc`, without timestamps")
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_pictures_without_time_stamps_come_at_the_streams_rate(tmp_path: Path, codec: str) -> None:
    path = write(tmp_path / ("a.h264" if codec == "libx264" else "a.hevc"), STEADY, codec=codec, bit_rate=200_000)
    every = reference(path)
    assert {time_s for time_s, _ in every} == {None}
    rate = len(every) / Video(path).length_s()
    for first in (0, 3):  # nothing can be sought here, so going on reads all again
        frames = list(Video(path).frames(1.0, first))
        assert [frame.number for frame in frames] == list(range(first, int(len(every) / rate - 1e-6) + 1))
        for frame in frames:
            np.testing.assert_array_equal(frame.pixels, every[round(frame.time_s * rate)][1])


@pytest.mark.parametrize("how", [pytest.param(one, marks=video(f"a phone's video: {one}", "OpenCV")) for one in TURNED])
def test_pictures_stand_as_the_display_matrix_says(tmp_path: Path, how: str) -> None:
    path = turned(write(tmp_path / "a.mp4", STEADY), TURNED[how])
    plain = reference(path)[0][1]
    upright = {
        "90°": np.rot90(plain, -1), "180°": np.rot90(plain, 2), "270°": np.rot90(plain), "mirrored": plain[:, ::-1]
    }  # fmt: skip
    frame = next(Video(path).frames(1.0))
    np.testing.assert_array_equal(frame.pixels, upright[how])
    assert frame.pixels.flags["C_CONTIGUOUS"]


@brought("videos", "PyAV", "a display matrix that is not a quarter turn", refused=True)
def test_a_picture_that_leans_is_refused(tmp_path: Path) -> None:
    path = turned(write(tmp_path / "a.mp4", STEADY), (46341, 46341, 0, -46341, 46341))
    with refusal("turned by 45°.*encode it again"):
        next(Video(path).frames(1.0))


def turned(path: Path, matrix: tuple[int, ...]) -> Path:
    """The same file with another display matrix."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    data[at : at + 36] = struct.pack(">9i", *matrix, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


@video("packets that cannot be decoded: the others are ingested, a warning counts them")
def test_a_damaged_packet_costs_what_it_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.mov", STEADY, codec="png", pix="rgb24")
    whole = reference(path)
    data = bytearray(path.read_bytes())
    for place in (7, 20):
        at = data.index(bytes(packets(path)[place]))
        data[at : at + 40] = bytes(40)
    path.write_bytes(data)
    every = reference(path)
    assert 0 < len(every) < len(whole)
    frames = list(Video(path).frames(10.0))
    assert [frame.time_s for frame in frames] == pytest.approx([time_s for time_s, _ in every])
    assert frames[-1].time_s == pytest.approx(STEADY[-1])
    assert f"a.mov: {len(whole) - len(every)} packets cannot be decoded" in caplog.text


def packets(path: Path) -> list[bytes]:
    with module.av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


@video("timestamps that restart (joined recordings)", "frigate")
def test_time_stamps_that_begin_again_go_on(tmp_path: Path) -> None:
    parts = [write(tmp_path / f"{first}.ts", STEADY, codec="libx264", first=first).read_bytes() for first in (0, 40)]
    (tmp_path / "both.ts").write_bytes(b"".join(parts))
    every, frames = reference(tmp_path / "both.ts"), list(Video(tmp_path / "both.ts").frames(10.0))
    assert len(every) == len(frames) == 80
    assert [frame.time_s for frame in frames] == pytest.approx([number / 10 for number in range(80)])
    later = list(Video(tmp_path / "both.ts").frames(10.0, 60))
    assert [frame.number for frame in later] == list(range(60, 80))
    np.testing.assert_array_equal(later[0].pixels, frames[60].pixels)


def test_times_of_day_before_the_beginning_are_those_of_the_next_day() -> None:
    assert seconds(("01:00", "02:00"), "22:00") == (10800.0, 14400.0)
    assert seconds(("23:00", "02:00"), "22:00") == (3600.0, 14400.0)
    assert seconds(("21:30", "22:30"), "22:00") == (-1800.0, 1800.0)
    assert seconds((-7200.0, -3600.0), "22:00") == (-7200.0, -3600.0)
    assert seconds(("01:00", "02:00"), None) == (3600.0, 7200.0)


@video("timestamps that jump, are missing, negative or huge")
@pytest.mark.parametrize(
    ("stamps", "times_s"),
    [
        ([0, 1, 2, 1e12, 4, 5], [0, 1, 2, 3, 4, 5]),
        ([0, 1, 2, -50, 4, 5], [0, 1, 2, 3, 4, 5]),
        ([0, 1, None, 3, None], [0, 1, 2, 3, 4]),
        ([0, 1, 2, 1e12, 1e12 + 1], [0, 1, 2, 3, 4]),
        ([0, 1, 500, 501], [0, 1, 500, 501]),
        ([7, 8, 0, 1], [0, 1, 2, 3]),
        ([-3, -2, -1], [0, 1, 2]),
        ([0, 0.4, 0.2, 0.6], [0, 0.4, 0.2, 0.6]),
    ],
)
def test_times_by_stamps(stamps: list[float | None], times_s: list[float]) -> None:
    clock = FrameClock(0.0)
    assert [clock.read(one, 1.0) for one, _ in steady((one, None) for one in stamps)] == times_s


def test_another_size_in_the_same_stream_begins_another_background(tmp_path: Path) -> None:
    sizes = [(48, 64), (96, 128), (48, 64)]
    parts = [
        write(tmp_path / f"{place}.mjpeg", STEADY, codec="mjpeg", pix="yuvj420p", size=size).read_bytes()
        for place, size in enumerate(sizes)
    ]
    (tmp_path / "all.mjpeg").write_bytes(b"".join(parts))
    frames = list(Video(tmp_path / "all.mjpeg").frames(25.0))
    assert [frame.pixels.shape[:2] for frame in frames] == [size for size in sizes for _ in STEADY]
    seen = list(found(frames, Moving(), 16))
    assert [one.last[0] for one in seen] == list(range(120))
    for part in range(3):
        assert sum(map(len, seen[40 * part : 40 * (part + 1)])) > 20


def ruled_out(name: str, data: bytes | None, match: str, what: str) -> Any:
    return pytest.param(name, data, match, marks=brought("videos", "PyAV", what, refused=True))


@pytest.mark.parametrize(
    ("name", "data", "match"),
    [
        ruled_out("a.mp4", b"", "cannot open the video .*a.mp4: Invalid data", "an empty file"),
        ruled_out("a.mp4", None, "cannot open the video .*a.mp4: Invalid data", "`.mp4` without its `moov`"),
        ruled_out("a.bin", bytes(range(256)), "cannot open the video .*a.bin: Invalid data", "other files"),
        ruled_out("a.wav", b"sound", "a.wav has no video stream", "audio only"),
        ruled_out("a.mp3", b"cover", "a.mp3 has no video stream", "audio with a cover picture"),
    ],
)  # fmt: skip
def test_what_holds_no_video_is_refused(tmp_path: Path, name: str, data: bytes | None, match: str) -> None:
    path = tmp_path / name
    if data is None:
        whole = write(path, STEADY).read_bytes()
        path.write_bytes(whole[: whole.index(b"moov")])
    elif data in (b"sound", b"cover"):
        sound(path, cover=data == b"cover")
    else:
        path.write_bytes(data)
    for asked in (Video(path).length_s, Video(path).begins, lambda: list(Video(path).frames(1.0))):
        with refusal(rf"^(?!.*{path}.*{path}).*{match}"):  # the path once
            asked()


def sound(path: Path, cover: bool) -> None:
    with module.av.open(str(path), "w") as container:
        stream = container.add_stream("libmp3lame" if cover else "pcm_s16le", rate=16000, layout="mono")
        if cover:
            picture = container.add_stream("mjpeg", rate=1)
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuvj420p"
            picture.disposition = module.Disposition.attached_pic
            frame = module.av.VideoFrame.from_ndarray(pixels(0), format="rgb24")
            container.mux([*picture.encode(frame), *picture.encode(None)])
        silence = module.av.AudioFrame.from_ndarray(np.zeros((1, 1152), np.int16), format="s16", layout="mono")
        silence.sample_rate = 16000
        container.mux([*stream.encode(silence), *stream.encode(None)])


@contextmanager
def camera(*connections: bytes) -> Iterator[str]:
    """A server that sends so much to the first, second, … that connects, and hangs up; then it is gone."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            with suppress(OSError):  # the test has ended
                for data in connections:
                    line, _ = server.accept()
                    with line:
                        line.sendall(data)
                        line.shutdown(socket.SHUT_WR)
                        while line.recv(4096):
                            pass
                server.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", (0.0,))


def shown(tmp_path: Path) -> tuple[list[bytes], Callable[[np.ndarray], int]]:
    """Two transport streams whose time stamps begin alike, and the number of the picture in a frame."""
    parts = [write(tmp_path / f"{first}.ts", STEADY, codec="libx264", first=first) for first in (0, 100)]
    return [part.read_bytes() for part in parts], lambda frame: round(float(frame[40:, 2:14].mean())) - 30


@pytest.mark.parametrize(
    ("scheme", "head"),
    [
        pytest.param("tcp", b"", marks=video("a camera that is interrupted (MPEG-TS over TCP)", "frigate")),
        pytest.param(
            "http",
            b"HTTP/1.0 200 OK\r\n\r\n",
            marks=video("a camera that is interrupted (MPEG-TS over HTTP)", "frigate"),
        ),
    ],
)
def test_a_camera_that_is_interrupted_is_opened_again_and_nothing_is_waited_for(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture, scheme: str, head: bytes
) -> None:
    (one, two), number = shown(tmp_path)
    with camera(head + one, head + one[:0], head + two) as address:
        frames = Video(f"{scheme}://{address}").frames(10.0)
        taken = [next(frames) for _ in range(75)]
        frames.close()
    assert [frame.number for frame in taken] == sorted({frame.number for frame in taken})
    seen = [number(frame.pixels) for frame in taken]
    assert sum(one < 60 for one in seen) == 40
    assert sum(one > 90 for one in seen) == 35
    assert "was interrupted" in caplog.text


@video("a camera whose timestamps restart or jump in one connection", "frigate")
def test_a_camera_that_begins_again_in_one_connection_goes_on(tmp_path: Path) -> None:
    (one, two), number = shown(tmp_path)
    with camera(one + two) as address:
        frames = Video(f"tcp://{address}").frames(10.0)
        taken = [next(frames) for _ in range(75)]
        frames.close()
    assert sum(number(frame.pixels) > 90 for frame in taken) >= 35


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("mjpeg", {"codec": "mjpeg", "pix": "yuvj420p"}, marks=video("cameras: MJPEG over HTTP", "OpenCV")),
        pytest.param("h264", {"codec": "libx264"}, marks=video("cameras: raw H.264 over HTTP", "OpenCV")),
    ],
)
def test_a_camera_without_time_stamps_goes_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, str]
) -> None:
    data = write(tmp_path / f"a.{name}", STEADY, **settings).read_bytes()
    head = b"HTTP/1.0 200 OK\r\n\r\n"
    if name == "mjpeg":
        head = head.replace(b"\r\n\r\n", b"\r\nContent-Type: multipart/x-mixed-replace;boundary=next\r\n\r\n")
        part = b"--next\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%s\r\n"
        data = b"".join(part % (len(one), one) for one in packets(tmp_path / "a.mjpeg"))
    ticks = itertools.count()  # half a second passes whenever the time is asked for, twice a picture
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 2))
    with camera(head + data) as address:
        frames = Video(f"http://{address}").frames(2.0)
        taken = [next(frames) for _ in range(30)]
        frames.close()
    assert [frame.time_s for frame in taken] == [number / 2 for number in range(30)]


@video("a camera that is ingested again later: continues with its newest picture")
def test_a_camera_that_is_taken_in_again_shows_its_first_picture_at_once(tmp_path: Path) -> None:
    (_, two), number = shown(tmp_path)
    with camera(two) as address:
        frame = next(Video(f"tcp://{address}").frames(10.0, 4000))
    assert (frame.number, number(frame.pixels) > 90) == (4000, True)


@video("a recording at a URL is read once, to its end")
def test_an_address_with_a_length_is_no_camera(tmp_path: Path) -> None:
    one = shown(tmp_path)[0][0]
    head = f"HTTP/1.0 200 OK\r\nContent-Length: {len(one)}\r\n\r\n".encode()
    with camera(head + one, head + one) as address:
        assert len(list(Video(f"http://{address}").frames(10.0))) == 40


def test_a_camera_that_stays_away_fails_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = shown(tmp_path)[0][0]
    monkeypatch.setattr(module, "AGAIN_S", (31.0,))  # the next try would be too late
    with camera(one) as address, pytest.raises(DataError, match=r"has sent no frame for 30 s: it ended"):
        list(Video(f"tcp://{address}", timeout_s=30).frames(10.0))
    with pytest.raises(DataError, match=r"cannot open the video tcp://.*refused"):
        list(Video(f"tcp://{address}").frames(10.0))


@pytest.mark.parametrize(
    ("at", "name"),
    [
        ("rtsp://127.0.0.1:9/cam", "rtsp://127.0.0.1:9/cam"),
        ("rtsp://me:secret@127.0.0.1:9/cam", "rtsp://127.0.0.1:9/cam"),
        ("rtsp://me:se@cr/secret@127.0.0.1:9/cam", "rtsp://127.0.0.1:9/cam"),
        ("http://[::1]:9/cam@1", "http://[::1]:9/cam@1"),
        ("http://127.0.0.1:9/v?user=me&pwd=secret&cam=1", "http://127.0.0.1:9/v?user=me&pwd=…&cam=1"),
        ("http://127.0.0.1:9/v?cam=1&access_token=secret", "http://127.0.0.1:9/v?cam=1&access_token=…"),
    ],
)
def test_a_password_is_in_no_name_and_no_message(at: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    camera = Video(at, timeout_s=0.1)
    assert camera.name == name
    for first in (0, 5):
        with pytest.raises(DataError) as caught:
            next(camera.frames(1.0, first))
        assert name in str(caught.value)
        said = f"{caught.value!r} {camera!r} {caught.value.__cause__!r} {caplog.text}"
        assert "secret" not in said


@video("recordings without a length in the header")
def test_a_file_without_a_length_is_measured(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mkv", STEADY, format="matroska", options={"live": "1"})
    assert Video(path).length_s() == pytest.approx(4.0, abs=0.2)
    assert Video(write(tmp_path / "a.h264", STEADY, codec="libx264")).length_s() > 1.0


def test_a_video_that_has_grown_begins_as_before_and_another_one_does_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ts", STEADY, codec="libx264")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    half = Video(path).begins()
    path.write_bytes(whole[: len(whole) // 9])
    less = Video(path).begins()
    path.write_bytes(whole)
    assert 0 < less[0] < half[0] == 16
    assert (Video(path).begins(half[0]), Video(path).begins(less[0])) == (half, less)
    other = write(tmp_path / "b.ts", STEADY, codec="libx264", first=20)
    assert Video(other).begins(half[0]) != half
