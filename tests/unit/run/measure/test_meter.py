"""One iteration's time taken apart, on a clock that the test moves."""

from __future__ import annotations

import math

import pytest

from uneven.run.measure.meter import Meter, MeterReading


class Script:
    """A clock that stands still until the test moves it, and a device that may lag behind the host.

    A mark is (time, processor time).
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.worked = 0.0
        self.reached_s = float("inf")
        self.glances = 0

    def go(self, seconds: float, worked: float | None = None) -> None:
        self.now_s += seconds
        self.worked += seconds if worked is None else worked

    def mark(self) -> tuple[float, float]:
        return self.now_s, self.worked

    def glance(self) -> tuple[float, float]:
        self.glances += 1
        return self.now_s, math.nan

    def passed(self, mark: tuple[float, float]) -> bool:
        return mark[0] <= self.reached_s

    def between(self, earlier: tuple[float, float], later: tuple[float, float]) -> tuple[float, float]:
        return later[0] - earlier[0], later[1] - earlier[1]


@pytest.fixture
def clock() -> Script:
    return Script()


@pytest.fixture
def meter(clock: Script) -> Meter:
    return Meter(clock)


def backward(meter: Meter, clock: Script, compute_s: float, exchange_s: float) -> None:
    clock.go(compute_s)
    meter.ready()
    clock.go(exchange_s)
    meter.done()


def test_compute_exchange_and_data_are_told_apart(meter: Meter, clock: Script) -> None:
    meter.begin(0)
    backward(meter, clock, 2.0, 3.0)
    clock.go(0.5)  # the optimizer
    meter.end()
    clock.go(0.25)  # the next batch is loaded
    meter.begin(1)
    backward(meter, clock, 1.0, 0.125)
    meter.end()
    first, second = meter.timings()
    assert (first.iteration, first.data_s, first.compute_s, first.exchange_s) == (0, 0.0, 2.5, 3.0)
    assert (second.iteration, second.data_s, second.compute_s, second.exchange_s) == (1, 0.25, 1.0, 0.125)
    assert second.local_s == 1.25
    assert meter.timings() == []


def test_nothing_is_lost_and_nothing_counts_twice(meter: Meter, clock: Script) -> None:
    """Data, compute and exchange of all iterations tile the time from the first batch to the last end."""
    for iteration in range(20):
        clock.go(0.125 * (iteration % 3) if iteration else 0.0)
        meter.begin(iteration)
        for part in range(1 + iteration % 3):
            backward(meter, clock, 1.0 + part, 0.5 * part)
        clock.go(0.25)
        meter.end()
    timings = meter.timings()
    assert len(timings) == 20
    assert sum(t.data_s + t.compute_s + t.exchange_s for t in timings) == clock.now_s


def test_several_backward_passes_add_up(meter: Meter, clock: Script) -> None:
    meter.begin(0)
    backward(meter, clock, 1.0, 0.5)
    backward(meter, clock, 2.0, 0.25)
    meter.end()
    assert [(t.compute_s, t.exchange_s) for t in meter.timings()] == [(3.0, 0.75)]


def test_a_loop_without_backward_is_all_compute(meter: Meter, clock: Script) -> None:
    meter.begin(0)
    clock.go(4.0)
    meter.end()
    assert meter.timings() == [MeterReading(iteration=0, data_s=0.0, compute_s=4.0, exchange_s=0.0, local_cpu_s=4.0)]


def test_a_pause_belongs_to_no_iteration(meter: Meter, clock: Script) -> None:
    meter.begin(0)
    clock.go(1.0)
    meter.end()
    clock.go(100.0)  # somebody evaluates between two epochs
    meter.pause()
    meter.begin(1)
    clock.go(1.0)
    meter.end()
    assert [t.local_s for t in meter.timings()] == [1.0, 1.0]


def test_an_exchange_outside_of_any_iteration_is_not_counted(meter: Meter, clock: Script) -> None:
    backward(meter, clock, 1.0, 1.0)
    meter.begin(0)
    clock.go(1.0)
    meter.end()
    assert [(t.compute_s, t.exchange_s) for t in meter.timings()] == [(1.0, 0.0)]


def test_an_exchange_that_never_ended_leaves_no_trace(meter: Meter, clock: Script) -> None:
    meter.begin(0)
    clock.go(1.0)
    meter.ready()  # the exchange failed, and somebody caught it
    meter.end()
    meter.begin(1)
    clock.go(1.0)
    meter.done()
    meter.end()
    assert [t.exchange_s for t in meter.timings()] == [0.0, 0.0]


def test_timings_come_out_in_order_once_the_device_has_passed_them(meter: Meter, clock: Script) -> None:
    clock.reached_s = 0.0
    for iteration in range(3):
        meter.begin(iteration)
        clock.go(1.0)
        meter.end()
    assert meter.timings() == []
    clock.reached_s = 2.0
    assert [t.iteration for t in meter.timings()] == [0, 1]
    clock.reached_s = 3.0
    assert [t.iteration for t in meter.timings()] == [2]


def test_own_work_in_the_exchange_is_told_from_waiting(meter: Meter, clock: Script) -> None:
    """At half a core, 0.25 s of processor time in the exchange are 0.5 s; the rest of the exchange is waiting."""
    meter.begin(0)
    clock.go(4.0, worked=2.0)
    meter.ready()
    clock.go(3.0, worked=0.25)
    meter.done()
    meter.end()
    (timing,) = meter.timings()
    assert (timing.compute_s, timing.exchange_s, timing.transfer_s) == (4.0, 3.0, 0.5)
    assert (timing.local_cpu_s, timing.exchange_cpu_s) == (2.0, 0.25)


def iteration(meter: Meter, clock: Script, number: int, seconds: float, exchange_s: float = 0.0) -> None:
    meter.begin(number)
    clock.go(seconds)
    meter.ready()
    clock.go(exchange_s)
    meter.done()
    meter.end()


def test_what_is_as_usual_can_wait_and_what_is_not_cannot(meter: Meter, clock: Script) -> None:
    assert not meter.ripe()
    iteration(meter, clock, 0, 0.1)
    assert meter.ripe()  # nothing is usual yet
    assert len(meter.timings()) == 1
    for number in range(1, 4):
        iteration(meter, clock, number, 0.11, exchange_s=0.01)
        assert not meter.ripe()
    iteration(meter, clock, 4, 0.14)
    assert meter.ripe()  # slower
    assert [timing.iteration for timing in meter.timings()] == [1, 2, 3, 4]
    iteration(meter, clock, 5, 0.1)
    assert meter.ripe()  # faster
    meter.timings()
    iteration(meter, clock, 6, 0.1, exchange_s=0.3)
    assert not meter.ripe()  # waiting for others is nothing of its own
    iteration(meter, clock, 7, 0.1, exchange_s=0.5)
    assert meter.ripe()  # a second has passed


def test_a_pause_wears_out_no_patience(meter: Meter, clock: Script) -> None:
    iteration(meter, clock, 0, 0.1)
    meter.timings()
    iteration(meter, clock, 1, 0.1)
    meter.pause()
    assert not meter.ripe()
    clock.go(60.0)
    for number in range(2, 6):
        iteration(meter, clock, number, 0.1, exchange_s=0.1)
        assert not meter.ripe()
    iteration(meter, clock, 6, 0.1, exchange_s=0.1)
    assert meter.ripe()  # a second of training has passed
    assert [timing.iteration for timing in meter.timings()] == [1, 2, 3, 4, 5, 6]


def test_a_read_or_a_pause_within_an_iteration_begins_with_it_anew(meter: Meter, clock: Script) -> None:
    for between in (meter.timings, meter.pause):
        iteration(meter, clock, 0, 0.1)
        meter.timings()
        meter.begin(1)
        clock.go(0.1)
        between()
        meter.end()
        assert not meter.ripe()


def test_what_counts_as_usual_follows_the_noise(meter: Meter, clock: Script) -> None:
    read = []
    for number in range(40):
        iteration(meter, clock, number, 0.012 if number % 2 else 0.008)
        read.append(meter.ripe())
        if read[-1]:
            meter.timings()
    assert all(read[:4])
    assert sum(read[20:]) <= 2, "thirty-two at once, or a second"
    iteration(meter, clock, 40, 0.05)
    assert meter.ripe(), "a change is still one"


def test_a_change_that_is_no_larger_than_the_noise_shows_by_lasting(meter: Meter, clock: Script) -> None:
    for number in range(40):
        iteration(meter, clock, number, 0.008 if number % 2 else 0.014)
        if meter.ripe():
            meter.timings()
    usual_s = 0.014
    iteration(meter, clock, 40, usual_s)
    meter.timings()
    iteration(meter, clock, 41, 1.9 * usual_s)
    assert not meter.ripe()
    iteration(meter, clock, 42, usual_s)
    assert not meter.ripe()
    iteration(meter, clock, 43, 1.9 * usual_s)
    assert not meter.ripe()
    iteration(meter, clock, 44, 1.9 * usual_s)
    assert meter.ripe(), "twice in a row"


def test_where_nothing_follows_from_a_change_it_can_wait_too(meter: Meter, clock: Script) -> None:
    for number, local_s in enumerate((0.1, 0.05, 0.2)):
        iteration(meter, clock, number, local_s)
        assert meter.ripe()
        assert not meter.ripe(acts=False)
    iteration(meter, clock, 3, 0.7)
    assert meter.ripe(acts=False)  # a second has passed


def test_thirty_two_iterations_wait_and_a_device_that_is_behind_is_not_waited_for(meter: Meter, clock: Script) -> None:
    iteration(meter, clock, 0, 0.001)
    meter.timings()
    for number in range(1, 32):
        iteration(meter, clock, number, 0.001)
        assert not meter.ripe()
    clock.reached_s = clock.now_s
    iteration(meter, clock, 32, 5.0)
    assert meter.ripe()  # enough of them, whatever the last one took
    assert len(meter.timings()) == 31
    assert not meter.ripe()  # nobody can tell yet what it took
    clock.reached_s = float("inf")
    assert meter.ripe()


def test_without_exchanges_the_processor_time_is_asked_for_now_and_then(meter: Meter, clock: Script) -> None:
    meter.begin(0)
    for iteration in range(1, 12):
        clock.go(2.0, worked=1.0 if iteration < 8 else 0.5)
        meter.end()
        clock.go(0.5, worked=0.25)
        meter.begin(iteration)
    assert clock.glances == 11 + 9, "at each beginning but the first, and at the end of all but 0 and 8"
    told = [timing.local_cpu_s for timing in meter.timings()]
    assert told[:8] == pytest.approx([1.0] + [1.25] * 7), "as when it was measured last"
    assert told[8:] == pytest.approx([2.5 * 9.0 / 20] * 3), "of the eight up to then"
    clock.glances = 3
    backward(meter, clock, 2.0, 3.0)  # the first exchange of all: how long its own side takes is not known yet
    meter.end()
    clock.go(0.5)
    meter.begin(12)
    backward(meter, clock, 2.0, 3.0)
    meter.end()
    first, second = meter.timings()
    assert (first.transfer_s, first.local_cpu_s, first.exchange_cpu_s) == (0.0, pytest.approx(1.125), 3.0)
    assert (second.transfer_s, second.local_cpu_s) == (3.0, 2.5)
    assert clock.glances == 3


def test_what_came_within_an_iteration_tells_nothing_of_the_processor_time(meter: Meter, clock: Script) -> None:
    for number in range(20):
        meter.begin(number)
        if number == 5:
            meter.interrupted()
            clock.go(100.0, worked=0.0)  # others were waited for
        clock.go(1.0, worked=0.5)
        meter.end()
    told = [one.local_cpu_s for one in meter.timings()]
    assert told[:5] + told[6:] == pytest.approx([0.5] * 19)


def test_what_the_script_waits_for_by_itself_is_no_computing(clock: Script, meter: Meter) -> None:
    meter.begin(0)
    clock.go(1.0)
    with meter.waiting():
        clock.go(5.0, worked=0.0)
    clock.go(2.0)
    meter.ready()
    clock.go(0.5, worked=0.0)
    meter.done()
    meter.end()
    (timing,) = meter.timings()
    assert (timing.compute_s, timing.exchange_s) == (3.0, 5.5)


def test_it_ends_also_where_what_was_waited_for_fails(clock: Script, meter: Meter) -> None:
    def wait() -> None:
        with meter.waiting():
            clock.go(5.0, worked=0.0)
            raise RuntimeError

    meter.begin(0)
    with pytest.raises(RuntimeError):
        wait()
    clock.go(1.0)
    meter.end()
    assert meter.timings()[0].exchange_s == 5.0


def test_what_serves_several_iterations_counts_in_each_of_them_alike(meter: Meter, clock: Script) -> None:
    for iteration in range(6):
        meter.begin(iteration)
        backward(meter, clock, 1.0, 0.5)
        if iteration in (1, 4):
            with meter.spread(4):
                clock.go(3.0)
                with meter.spread(2):  # inside of another one it is that one's
                    clock.go(1.0)
                with meter.waiting():
                    clock.go(10.0)
        meter.end()
    found = meter.timings()
    assert [t.compute_s for t in found] == [1.0, 2.0, 2.0, 2.0, 3.0, 2.0]
    assert [t.local_cpu_s for t in found] == [1.0, 2.0, 2.0, 2.0, 3.0, 2.0]
    assert [t.exchange_s for t in found] == [0.5, 10.5, 0.5, 0.5, 10.5, 0.5]
    with meter.spread(3):  # between two iterations it belongs to none
        clock.go(1.0)


def test_own_time_is_what_a_worker_does_by_itself_in_the_newest_iterations() -> None:
    clock = Script()
    meter = Meter(clock)
    assert all(math.isnan(one) for one in meter.own_time)
    for pace in (0.5, 0.1):
        for _ in range(60):
            meter.begin(0)
            clock.go(1.0, pace)
            meter.ready()
            clock.go(2.0, 0.25)
            meter.done()
            meter.end()
            meter.timings()
        assert meter.own_time == pytest.approx((1.0, pace, 0.25), rel=0.01)


def test_own_time_after_other_work_knows_nothing_of_before_nor_of_the_first() -> None:
    clock = Script()
    meter = Meter(clock)

    def work(seconds: float, read: bool = True) -> None:
        meter.begin(0)
        clock.go(seconds)
        meter.end()
        if read:
            meter.timings()

    for _ in range(5):
        work(1.0)
    work(1.0, read=False)
    meter.work_changed()
    assert math.isnan(meter.own_time.local_s)
    work(9.0)  # prepares the others
    assert math.isnan(meter.own_time.local_s)
    for seconds, mean_s in ((2.0, 2.0), (4.0, 3.0), (6.0, 4.0)):
        work(seconds)
        assert meter.own_time.local_s == pytest.approx(mean_s)
