"""``uneven bench faults``: which faults are drawn, how each has to end, and that every guard sees what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from uneven.errors import ConfigError
from uneven_bench.faults import bench
from uneven_bench.faults.cases import (
    KINDS,
    LOOP,
    POLICIES,
    SAMPLES,
    SERVED,
    TOGETHER,
    FaultCase,
    borne,
    draw,
    expected,
)
from uneven_bench.faults.judge import Line, RunEnd, doubled, judge, names, once
from uneven_bench.faults.play import PlayedFault

KILLED = FaultCase(
    seed=1, number=0, sync="bsp", balance="even", workers=3, servers=0, kind="kill", rank=1, moment="forward", step=3,
    save_every=2, ahead=False, resumed=2,
)  # fmt: skip
SAID = "error: rank 1 (process 4711) was killed by SIGKILL, so the run has been ended; … out of memory"
RIGHT = RunEnd(code=137, said=SAID, struck=True, finished=())
ALL = list(range(SAMPLES))


def test_a_seed_and_a_number_make_a_case_and_together_they_cover_everything() -> None:
    drawn = [draw(3, number) for number in range(2000)]
    assert drawn == [draw(3, number) for number in range(2000)]
    assert drawn[:9] != [draw(4, number) for number in range(9)]
    assert {(one.kind, one.moment) for one in drawn} == {(kind, one) for kind, them in KINDS.items() for one in them}
    assert {one.sync for one in drawn} == set(POLICIES)
    assert {one.resumed for one in drawn} == {2, 3, 5}
    assert {one.workers for one in drawn} == {2, 3, 4}
    for one in drawn:
        assert one.rank < one.workers
        assert one.servers == 0 or one.sync in SERVED
        assert one.balance == "even" or one.sync in TOGETHER
        assert f"rank {one.rank} {one.kind} at {one.moment}" in one.words


@pytest.mark.parametrize(
    ("changed", "codes", "others"),
    [
        ({}, (137,), False),
        ({"kind": "exit-3", "moment": "closed"}, (3,), None),
        ({"kind": "launcher-int"}, (130,), False),
        ({"kind": "break"}, (1,), False),
        ({"kind": "late"}, (0,), True),
        ({"sync": "asp"}, (0,), True),
        ({"sync": "asp", "rank": 0}, (137,), False),
        ({"sync": "asp", "rank": 0, "servers": 1}, (137,), True),
        ({"sync": "asp", "moment": "first"}, (137,), False),
        ({"sync": "asp", "kind": "break"}, (0,), True),
        ({"sync": "asp", "kind": "stop"}, None, None),
        ({"sync": "asp", "kind": "exit-0", "rank": 0}, (0,), True),
        ({"sync": "shadow:ma", "kind": "nan"}, (1,), False),
    ],
)
def test_what_has_to_happen_follows_from_the_case(
    changed: dict[str, object], codes: tuple[int, ...] | None, others: bool | None
) -> None:
    found = expected(replace(KILLED, **changed))  # type: ignore[arg-type]
    assert (found.codes, found.others) == (codes, others)


def test_only_the_shared_copy_lets_the_others_go_on() -> None:
    assert {sync for sync in POLICIES if borne(replace(KILLED, sync=sync))} == set(SERVED)
    assert all(borne(replace(KILLED, sync="asp", moment=moment)) for moment in (*LOOP, "evaluated", "last"))
    assert not borne(replace(KILLED, sync="asp", moment="batch", step=1)), "while the first batch is being read"


def test_who_ends_as_he_has_to_is_right() -> None:
    assert judge(KILLED, RIGHT) == []
    assert judge(KILLED, replace(RIGHT, code=-9)) == []
    assert judge(replace(KILLED, kind="nan"), replace(RIGHT, code=1, said="error: a NaN")) == ["does not name rank 1"]
    never = replace(RIGHT, code=0, said="", struck=False, finished=(0, 1, 2))
    assert judge(KILLED, never) == [], "there was no fault"


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"code": None}, "had not ended 60 s after the fault and the time-out"),
        ({"code": 1}, "exit code 1, not 137"),
        ({"said": SAID.replace("rank 1", "rank 2")}, "does not name rank 1"),
        ({"finished": (0, 2)}, "not all others should have come to the end; there are: 0, 2"),
        ({"processes": ("process 7",)}, "left running: process 7"),
        ({"files": ("uneven-x",)}, "left behind: uneven-x"),
        ({"struck": False, "code": 0, "said": "", "finished": (0, 2)}, "all others should have come"),
    ],
)
def test_every_guard_sees_what_is_wrong(changed: dict[str, object], wrong: str) -> None:
    assert any(wrong in one for one in judge(KILLED, replace(RIGHT, **changed)))  # type: ignore[arg-type]


def test_memory_is_blamed_for_nothing_but_a_kill() -> None:
    stopped = replace(KILLED, kind="stop")
    assert judge(stopped, RIGHT) == ["blames memory"]
    assert judge(stopped, replace(RIGHT, said=SAID.replace("out of memory", ""))) == []
    assert judge(stopped, replace(RIGHT, code=0, said="error: rank 1 x")) == ["exit code 0, not anything but 0"]


def test_files_that_a_dead_process_cannot_remove_may_stay() -> None:
    held = replace(KILLED, sync="asp", rank=0)
    left = replace(RIGHT, said=SAID.replace("rank 1", "rank 0"), files=("uneven-copy-1", "other"))
    assert judge(held, left) == ["left behind: other"]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("error: rank 1 (process 7) was killed", True),
        ("rank 1 (process 7) was killed; the others continue\nuneven: the run has finished", True),
        ("rank 1 is slow\nerror: rank 0 (process 7) ended: rank 2 did not take part", False),
        ("error: rank 0 ended: rank 2 did not take part (noticed by rank 1: closed)", False),
        ("error: rank 0 ended: rank 1, 2 did not come", False),
        ("error: rank 0 ended: rank 11 did not come", False),
        ("error: rank 0 ended: rank 1 of 2 did not come within 8 s", True),
        ("error: rank 1 of 2 could not join the others", False),
        ("[rank0]: uneven.errors.PeerError: rank 1 did not take part\nerror: rank 0 ended; its error is above", True),
        ("rank 1 is slow\nerror: rank 0 (process 7) ended with exit code 1; its error is above", False),
    ],
)
def test_the_culprit_alone_is_named(said: str, named: bool) -> None:
    assert names("rank", 1, said) == named


def test_every_sample_is_used_once_or_it_is_said() -> None:
    held = [(0, ALL), (1, ALL[:12])]

    def wrong(second: list[Line], epochs: int = 3, lost: bool = False, anywhere: bool = False) -> list[str]:
        return once(held, second, epochs, lost=lost, anywhere=anywhere)

    assert wrong([(1, 1, ALL[12:]), (2, 1, ALL)]) == []
    assert wrong([(1, 1, ALL[24:]), (2, 1, ALL)]) == ["resumed: in epoch 1 12 samples too seldom, 0 too often"]
    assert wrong([(1, 1, ALL[24:]), (2, 1, ALL)], lost=True) == []
    assert wrong([(1, 1, ALL)], 2, lost=True) == ["resumed: in epoch 1 0 samples too seldom, 12 too often"]
    assert wrong([(1, 1, ALL[12:]), (2, 1, ALL)], 2) == ["resumed: epoch 2 was trained, of 2"]
    later: list[Line] = [(2, 1, ALL[12:]), (2, 2, ALL)]
    assert wrong(later, anywhere=True) == []
    assert len(wrong(later)) == 2
    assert wrong(later[:1], anywhere=True) == ["resumed: in 3 epochs 102 samples too seldom, 0 too often"]


def test_a_run_that_is_not_resumed_uses_no_sample_twice_and_a_whole_one_leaves_none_out() -> None:
    part: list[Line] = [(0, 1, ALL[:5]), (0, 1, ALL[5:9])]
    assert doubled(part, 1, whole=False) == []
    assert doubled(part, 1, whole=True) == [f"in epoch 0 {SAMPLES - 9} samples never"]
    assert doubled([*part, (0, 2, ALL[:2])], 1, whole=False) == ["in epoch 0 2 samples more than once"]


def test_some_can_be_played_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def played(cases: Sequence[FaultCase], progress: object, play: object) -> list[PlayedFault]:
        asked.extend(case.number for case in cases)
        return [PlayedFault(case=cases[0], struck=True, resumed=False, wrong=(), took_s=1.0, said="")]

    monkeypatch.setattr(bench, "play_all", played)
    for only in ("17", "3-5"):
        bench.run(True, lambda *_: None, only=only)
    assert asked == [17, 3, 4, 5]
    for only in ("-1", "5-3", "5-", "x", ""):
        with pytest.raises(ConfigError, match=f"--only {only}: cases are numbered from 0"):
            bench.run(True, lambda *_: None, only=only)
