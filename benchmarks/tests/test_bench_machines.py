"""``uneven bench machines``: which faults are drawn, how each has to end, and that every guard sees what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uneven.cluster.emulate.capabilities import why_no_latency
from uneven_bench.elastic.machines import why_no_machines
from uneven_bench.machines import bench
from uneven_bench.machines.cases import EPOCHS, KINDS, SAMPLES, STORE, SYNCS, MachinesCase, Strike, draw, expected
from uneven_bench.machines.judge import HostEnd, judge

DEATH = MachinesCase(
    seed=1, number=0, sync="bsp", elastic=False, least=1, patient=False,
    strikes=(Strike(kind="die", host=1, step=3),),
)  # fmt: skip
SAID = "error: the exchange of iteration 3: rank 1 did not take part"
ENDED = HostEnd(code=1, said=SAID, took_s=7.0, worker=0)
DIED = HostEnd(code=-9, said="", took_s=0.0, worker=1)
RIGHT = {0: ENDED, 1: DIED, 2: replace(ENDED, worker=2)}
ALL = [(epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES)]
THROUGH = HostEnd(code=0, said="", took_s=7.0, done=True, worker=0, used=frozenset((*one, 0) for one in ALL))
ELASTIC = replace(DEATH, elastic=True)
WENT_ON = {STORE: HostEnd(code=0, said="", took_s=7.0), 0: THROUGH, 1: DIED, 2: replace(THROUGH, worker=2, used=None)}


def test_a_seed_and_a_number_make_a_case_and_together_they_cover_everything() -> None:
    drawn = [draw(3, number) for number in range(1000)]
    assert drawn == [draw(3, number) for number in range(1000)]
    assert drawn[:9] != [draw(4, number) for number in range(9)]
    assert {one.kind for case in drawn for one in case.strikes} == set(KINDS)
    assert {(case.sync, case.elastic) for case in drawn} == {
        (sync, elastic) for sync in SYNCS for elastic in (False, True) if not (elastic and sync.startswith("decoupled"))
    }
    assert {len({one.host for one in case.strikes}) for case in drawn} == {1, 2}
    assert all(f"host {one.host} {one.kind}" in case.words for case in drawn for one in case.strikes)


@pytest.mark.parametrize(
    ("changed", "kind", "host", "lost", "through"),
    [
        ({}, "die", 1, (1,), False),
        ({}, "loss", 1, (), True),
        ({}, "stall", 1, (1,), False),
        ({"patient": True}, "stall", 1, (), True),
        ({"sync": "asp"}, "die", 1, (1,), True),
        ({"sync": "asp"}, "cut", 0, (0,), False),
        ({"elastic": True}, "die", 1, (1,), True),
        ({"elastic": True, "least": 3}, "die", 1, (1,), False),
        ({"elastic": True}, "cut", STORE, (STORE,), False),
        ({"elastic": True}, "hang-save", 1, (1,), True),
        ({"elastic": True}, "hang-journal", 1, (1,), False),
    ],
)
def test_what_has_to_happen_follows_from_the_case(
    changed: dict[str, object], kind: str, host: int, lost: tuple[int, ...], through: bool
) -> None:
    strikes = (Strike(kind=kind, host=host, step=3),)
    found = expected(replace(DEATH, strikes=strikes, **changed))  # type: ignore[arg-type]
    assert (found.lost, found.through) == (lost, through)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, ""),
        ({"code": None}, "host 0 had not ended"),
        ({"code": 0}, "host 0 ends with exit code 0"),
        ({"said": "error: rank 0 has no idea"}, "host 0 names none of hosts [1]"),
        ({"said": "Traceback (most recent call last)\nKeyError: 1"}, "host 0 ends with exit code 1 and a traceback"),
        ({"left": ("a process: python",)}, "host 0 leaves a process: python"),
        ({"code": 0, "done": True}, "host 0 ends with exit code 0"),
    ],
)
def test_the_judge_sees_a_wrong_end(changed: dict[str, object], wrong: str) -> None:
    found = judge(DEATH, {**RIGHT, 0: replace(ENDED, **changed)})  # type: ignore[arg-type]
    assert [one[: len(wrong)] for one in found.wrong] == [wrong] * bool(wrong)


def test_a_run_may_end_that_loses_a_worker_before_another_is_let_in() -> None:
    left = replace(ENDED, said="error: 1 workers are left, and the run needs 2: worker 1 is gone")
    late = replace(ENDED, worker=2, said="error: worker 2 came too late: the run has ended")
    found = judge(replace(ELASTIC, least=2), {STORE: replace(ENDED, worker=None), 0: left, 1: DIED, 2: late})
    assert found.wrong == ()


@pytest.mark.parametrize(
    ("changed", "wrong", "lost", "twice"),
    [
        ({}, "", 0, 0),
        ({"code": 1}, "host 0 ends with exit code 1, not 0", 0, 0),
        ({"done": False}, "host 0 did not come to the end", 0, 0),
        ({"used": THROUGH.used - {(1, 5, 0)}}, "1 samples lost, as (1, 5)", 1, 0),  # type: ignore[operator]
        ({"used": THROUGH.used | {(1, 5, 2)}}, "1 samples twice, as (1, 5)", 0, 1),  # type: ignore[operator]
        ({"taken": ((1, 5), (1, 5))}, "1 samples twice, as (1, 5)", 0, 1),
    ],
)
def test_the_judge_sees_lost_and_doubled_samples(changed: dict[str, object], wrong: str, lost: int, twice: int) -> None:
    found = judge(ELASTIC, {**WENT_ON, 0: replace(THROUGH, **changed)})  # type: ignore[arg-type]
    assert [one[: len(wrong)] for one in found.wrong] == [wrong] * bool(wrong)
    assert (found.lost, found.twice) == (lost, twice)


def test_under_decoupled_only_what_came_last_may_be_unsent() -> None:
    mine = [(epoch, index) for epoch, index in ALL if index % 3 == 1]
    lossy = replace(DEATH, sync="decoupled:every=4", strikes=(Strike(kind="loss", host=0, step=3),))

    def lost(case: MachinesCase, missing: list[tuple[int, int]]) -> int:
        used = frozenset((*one, 0) for one in ALL if one not in missing)
        return judge(case, {0: replace(THROUGH, used=used), 1: replace(THROUGH, worker=1, taken=tuple(mine))}).lost

    assert lost(lossy, mine[-50:]) == 0
    assert lost(lossy, mine[-50:-1]) == 49
    full = replace(lossy, strikes=(Strike(kind="full-journal", host=0, step=3),))
    assert lost(full, mine[-32:]) == 0
    assert lost(full, mine[-50:]) == 18


@pytest.mark.skipif(bool(why_no_machines() or why_no_latency()), reason=why_no_machines() or why_no_latency())
def test_twelve_faults_end_as_they_have_to() -> None:
    result = bench.run(True, lambda phase, what, part: None)
    assert (result["faults"], result["wrong"], result["lost"], result["twice"]) == (12, 0, 0, 0), result["ends"]
    assert result["left"] == []
