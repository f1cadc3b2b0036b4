"""The rate and the latency between two machines: over the loopback, and the answers to malformed questions."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from uneven.errors import LaunchError
from uneven.runtime.link_probe import LinkMeasurement, listen, measure


@contextmanager
def listener() -> Iterator[int]:
    bound: list[int] = []
    there, stop = threading.Event(), threading.Event()

    def ready(port: int) -> None:
        bound.append(port)
        there.set()

    thread = threading.Thread(target=listen, args=("127.0.0.1", 0, ready), kwargs={"timeout_s": 5.0, "stop": stop})
    thread.start()
    assert there.wait(10)
    try:
        yield bound[0]
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()


def test_both_ways_are_measured_by_one_connection_and_by_several() -> None:
    with listener() as port:
        found = measure("127.0.0.1", port, seconds=0.2, flows=3)
    assert found.up_bit_per_s >= found.flow_up_bit_per_s > 1e6
    assert found.down_bit_per_s >= found.flow_down_bit_per_s > 1e6
    assert 0 < found.round_trip_s < 1
    assert found.jitter_s >= 0


def test_a_question_that_is_none_gets_no_answer_and_the_next_one_is_answered() -> None:
    with listener() as port:
        for said in (b"GET / HTTP/1.0\r\n", b"uneven\x00\x01U\x00\x00\x00\x7f\x80\x00\x00", b"short"):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
                line.sendall(said)
                line.shutdown(socket.SHUT_WR)
                assert line.recv(1) == b""
        assert measure("127.0.0.1", port, seconds=0.1, flows=1).up_bit_per_s > 0


def test_a_silent_machine_is_named_after_the_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"127\.0\.0\.1:{port}: .*--listen"):
            measure("127.0.0.1", port, timeout_s=0.1)
    with pytest.raises(LaunchError, match=rf"127\.0\.0\.1:{port}: Connection refused: start"):
        measure("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"cannot listen on 203\.0\.113\.1:0: .* give an address of this machine"):
        listen("203.0.113.1", 0, lambda port: None, timeout_s=1.0, stop=threading.Event())


def test_lines_name_the_limit_of_a_connection_only_if_it_limits() -> None:
    def lines(one: float) -> list[str]:
        return LinkMeasurement(
            flows=8, up_bit_per_s=10e9, down_bit_per_s=9e9, flow_up_bit_per_s=one, flow_down_bit_per_s=one,
            round_trip_s=0.002, jitter_s=0.0,
        ).lines()  # fmt: skip

    assert lines(9e9) == [
        "up_bit_per_s = 1e+10",
        "down_bit_per_s = 9e+09",
        "achieved = 1.0  # the rates are payload",
        "latency_s = 0.0005  # a quarter of the round trip",
    ]
    assert "flow_bit_per_s = 5e+09" in lines(5e9)
