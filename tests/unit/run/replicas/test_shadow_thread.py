"""The thread beside the training: it holds nobody up, and it ends when all are through."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from uneven.errors import PeerError, TrainingError
from uneven.run.replicas.background_thread import BackgroundThread, OverheadBudget


class Worker:
    """One of the workers that meet, with its thread."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.thread = BackgroundThread()
        self._meet = partial(meeting.meet, rank)

    def launch(self, order: str) -> None:
        self.thread.launch(partial(self._meet, order, resting=False))

    def rest(self, order: str) -> None:
        self.thread.rest(partial(self._meet, order, resting=True))


class Meeting:
    """Where the shadows of several workers meet, in place of an all-reduce; notes who came with which order."""

    def __init__(self, size: int) -> None:
        self.rounds: list[dict[int, tuple[str, bool]]] = []
        self._here: dict[int, tuple[str, bool]] = {}
        self._barrier = threading.Barrier(size, self._close, timeout=20)

    def _close(self) -> None:
        self.rounds.append(dict(self._here))

    def meet(self, rank: int, order: str, resting: bool) -> bool:
        self._here[rank] = order, resting
        self._barrier.wait()
        return all(rests for _, rests in self.rounds[-1].values())


def test_it_holds_nobody_up_and_takes_one_order_at_a_time() -> None:
    meeting = Meeting(2)
    first, second = Worker(meeting, 0), Worker(meeting, 1)
    assert first.thread.free()
    first.launch("a")
    for _ in range(1000):  # the other one does not come
        assert not first.thread.free()
    assert meeting.rounds == []
    second.launch("x")
    resting = threading.Thread(target=second.rest, args=("z",))
    resting.start()
    first.rest("b")
    resting.join()
    assert meeting.rounds[0] == {0: ("a", False), 1: ("x", False)}
    assert meeting.rounds[-1] == {0: ("b", True), 1: ("z", True)}
    first.thread.close()
    second.thread.close()


def test_who_is_through_serves_the_others_until_the_last_one_is() -> None:
    meeting = Meeting(3)
    shadows = [Worker(meeting, rank) for rank in range(3)]
    early = [threading.Thread(target=shadows[rank].rest, args=("done",)) for rank in (0, 1)]
    for thread in early:
        thread.start()
    for step in range(5):
        shadows[2].launch(f"step {step}")
        shadows[2].thread.wait()
    assert all(thread.is_alive() for thread in early)
    shadows[2].rest("done")
    for thread in early:
        thread.join()
    assert [one[2] for one in meeting.rounds] == [*((f"step {step}", False) for step in range(5)), ("done", True)]
    assert all(one[0] == ("done", True) for one in meeting.rounds)

    for shadow in shadows:  # and training may go on
        assert shadow.thread.free()
        shadow.launch("again")
    for shadow in shadows:
        shadow.thread.wait()
    assert len(meeting.rounds) == 7
    for shadow in shadows:
        shadow.thread.close()


class _Heard(OverheadBudget):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet: list[bool] = []

    def stepped(self, took_s: float, quiet_s: float) -> None:
        self.quiet.append(quiet_s > 0.0)
        super().stepped(took_s, quiet_s)


def test_to_wait_for_the_others_counts_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = _Heard()
    monkeypatch.setattr("uneven.run.replicas.background_thread.OverheadBudget", lambda _: heard)
    come, met, over = threading.Event(), threading.Event(), threading.Event()

    def meet() -> bool:
        met.set()
        return over.wait()

    shadow = BackgroundThread()
    shadow.stepped()
    shadow.launch(meet, come.wait)
    shadow.stepped()
    come.set()
    met.wait()
    shadow.stepped()
    over.set()
    assert shadow.wait()
    shadow.stepped()
    shadow.close()
    assert heard.quiet == [True, False, True]


def test_steps_are_timed_from_when_the_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, told = [100.0], []
    monkeypatch.setattr("uneven.run.replicas.background_thread.time.perf_counter", lambda: now_s[0])
    shadow = BackgroundThread()
    monkeypatch.setattr(shadow._budget, "stepped", lambda took_s, quiet_s: told.append(took_s))
    shadow.stepped()  # nobody knows how long it took
    now_s[0] += 1.0
    shadow.stepped()
    shadow.paused()
    now_s[0] += 60.0
    shadow.resumed()
    now_s[0] += 0.5
    shadow.stepped()
    assert told == [1.0, 0.5]
    shadow.close()


def test_what_goes_wrong_in_it_is_raised_where_the_training_is() -> None:
    def fail() -> bool:
        raise PeerError("rank 1 is gone")

    shadow = BackgroundThread()
    shadow.launch(fail)
    with pytest.raises(PeerError, match="rank 1 is gone"):
        shadow.rest(fail)
    with pytest.raises(PeerError, match="rank 1 is gone"):
        _ = shadow.free()
    shadow.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_ours_in_it_does_not_let_the_training_wait_for_ever() -> None:
    def fail() -> bool:
        raise ZeroDivisionError

    shadow = BackgroundThread()
    with pytest.raises(TrainingError, match="the background exchange has ended"):
        shadow.rest(fail)
    shadow.close()


def test_a_delayed_exchange_runs_beside_and_is_merged_when_it_is_needed() -> None:
    thread, go, merged = BackgroundThread(), threading.Event(), []
    thread.launch(lambda: go.wait() and 16)
    thread.hold(thread.wait, merged.append)
    assert not thread.free(), "under way, and the training goes on"
    go.set()
    thread.arrive()
    thread.arrive()
    assert merged == [16], "once"
    thread.launch(lambda: 17)
    thread.hold(thread.wait, merged.append)
    thread.arrive(drop=True)
    assert (merged, thread.free()) == ([16], True)
    thread.close()


def test_a_delayed_exchange_that_fails_is_told_where_it_is_waited_for() -> None:
    def fail() -> int:
        raise PeerError("rank 1 is gone")

    thread = BackgroundThread()
    thread.launch(fail)
    thread.hold(thread.wait, lambda sent_bytes: None)
    while not thread._ended:
        pass
    assert not thread.failed, "or the end of the run would not say it"
    with pytest.raises(PeerError, match="rank 1 is gone"):
        thread.arrive()
    assert not thread.failed, "the training may go on after it, and the end of the run is as of any other"
    merged: list[int] = []
    thread.launch(lambda: 16)
    thread.hold(thread.wait, merged.append)
    thread.arrive()
    assert merged == [16]
    thread.close()


def test_after_an_interrupted_wait_the_next_exchange_waits_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    thread, go, order = BackgroundThread(), threading.Event(), []
    thread.launch(lambda: order.append(f"first {go.wait()}"))
    thread.hold(interrupted, order.append)
    with pytest.raises(KeyboardInterrupt):
        thread.arrive()
    wait_for = thread._changed.wait_for
    monkeypatch.setattr(thread._changed, "wait_for", lambda done: (go.set(), wait_for(done)))
    thread.launch(lambda: order.append("second"))
    thread.wait()
    assert order == ["first True", "second"]
    thread.close()


def test_it_is_exchanging_once_all_have_started_and_not_while_it_rests() -> None:
    thread, seen = BackgroundThread(), []

    def job() -> bool:
        seen.append(thread.exchanging)
        return True

    thread.launch(job, lambda: seen.append(thread.exchanging))
    thread.wait()
    thread.rest(job, lambda: seen.append(thread.exchanging))
    assert seen == [False, True, False, False]
    thread.close()
