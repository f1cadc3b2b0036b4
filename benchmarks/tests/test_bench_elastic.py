"""``uneven bench elastic``: its judges on written logs, and that each sees what is wrong."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from pathlib import Path

import pytest
import torch

from uneven.errors import ConfigError, DataError, JournalError, UnknownNameError
from uneven_bench.elastic import arms, bench, cases, figures, judge, logs, merges, trace, updates
from uneven_bench.elastic.judge import SampleCounts
from uneven_bench.elastic.logs import LoggedStep, WorkerLog
from uneven_bench.elastic.merges import LoggedMerge, MergeLog
from uneven_bench.elastic.play import FaultEvent, Played
from uneven_bench.elastic.replay import error, replay, replay_merges
from uneven_bench.elastic.spot import machines
from uneven_bench.elastic.workload import CountedWorkload, counted, weights

SAMPLES, BATCH = 12, 4
SMALL = CountedWorkload(model_bytes=8 * 120, double=True, samples=SAMPLES, global_batch=BATCH)


def log(pid: int, steps: list[LoggedStep], *, life: float = 0.0, digest: str = "") -> WorkerLog:
    return WorkerLog(pid=pid, parent=1, life=life, began_s=0.0, steps=tuple(steps), digest=digest)


def plain(first: int = 0, last: int = 6, *, begin_s: float = 0.0, step_s: float = 0.1) -> list[LoggedStep]:
    """Steps of a run in which nothing happens: three an epoch, four samples each."""
    return [
        LoggedStep(
            begin_s + (number - first + 1) * step_s, number, number // 3, tuple(range(SAMPLES)[number % 3 * 4 :][:4])
        )
        for number in range(first, last)
    ]


def test_a_log_is_read_as_it_was_written() -> None:
    step = LoggedStep(1.5, 7, 2, (3, 3, 5))
    lines = [
        logs.first_line(11, 1, 0.0, 0.5),
        logs.step_line(step),
        logs.struck_line(1.6, inside=True),
        logs.last_line("abc"),
    ]
    read = logs.read(lines)
    assert read == WorkerLog(
        pid=11, parent=1, life=0.0, began_s=0.5, steps=(step,), struck_s=1.6, inside=True, digest="abc"
    )
    assert logs.read([]) is None


def test_a_line_that_a_killed_worker_did_not_finish_is_left_out_and_a_strange_one_is_refused() -> None:
    first = logs.first_line(11, 1, 0.0, 0.5)
    read = logs.read([first, logs.step_line(LoggedStep(1.0, 0, 0, (1,)))[:9]])
    assert read is not None
    assert read.steps == ()
    with pytest.raises(JournalError, match="which no worker writes"):
        logs.read([first, '{"what": 1}\n'])


def test_the_ledger_of_a_run_without_faults_is_even() -> None:
    assert judge.ledger(plain(last=7), SAMPLES, BATCH) == SampleCounts(lost=0, twice=0, more=0)


def test_a_lost_sample_is_seen() -> None:
    steps = plain(last=7)
    steps[1] = replace(steps[1], ids=(4, 5, 6))
    assert judge.ledger(steps, SAMPLES, BATCH) == SampleCounts(lost=1, twice=0, more=0)
    assert judge.ledger(steps[:3], SAMPLES, BATCH).lost == 0, "the epoch is not over: it may still come"


@pytest.mark.parametrize("ids", [(4, 5, 6, 7, 0), (4, 5, 6, 7, 7)])
def test_a_doubled_sample_is_seen_in_another_step_and_in_the_same_one(ids: tuple[int, ...]) -> None:
    steps = plain(last=7)
    steps[1] = replace(steps[1], ids=ids)
    assert judge.ledger(steps, SAMPLES, BATCH) == SampleCounts(lost=0, twice=1, more=0)


def test_a_step_more_than_the_least_is_counted() -> None:
    steps = plain(last=3)
    late = [replace(steps[2], ids=(8, 9)), LoggedStep(0.4, 3, 0, (10, 11)), LoggedStep(0.5, 4, 1, (0, 1, 2, 3))]
    assert judge.ledger([*steps[:2], *late], SAMPLES, BATCH) == SampleCounts(lost=0, twice=0, more=1)


def test_what_survivors_took_again_counts_and_not_what_the_dead_one_wrote() -> None:
    dead = log(11, [*plain(last=2), LoggedStep(0.3, 2, 0, (8, 9, 10, 11))])
    again = [LoggedStep(0.5, 2, 0, (8, 9)), LoggedStep(0.6, 3, 0, (10, 11)), LoggedStep(0.7, 4, 1, (0,))]
    survivor = log(12, [*plain(last=2), *again])
    steps = logs.history([dead, survivor])
    assert judge.ledger(steps, SAMPLES, BATCH) == SampleCounts(lost=0, twice=0, more=1)
    assert judge.disagreements([dead, survivor]) == [], "the dead one did not go on from its step"


def test_what_one_that_was_stopped_takes_when_it_wakes_up_does_not_count() -> None:
    survivor = log(12, [*plain(last=2), LoggedStep(0.5, 2, 0, (8, 9)), LoggedStep(0.6, 3, 0, (10, 11))])
    stopped = log(11, [*plain(last=2), LoggedStep(99.0, 2, 0, (8, 9, 10, 11))])
    assert [step.ids for step in logs.history([survivor, stopped])[2:]] == [(8, 9), (10, 11)]


def test_a_later_life_undoes_what_an_earlier_one_did_after_its_checkpoint() -> None:
    before, after = log(11, plain(last=5)), log(12, plain(3, 4, begin_s=9.0), life=8.0)
    assert [step.number for step in logs.history([after, before])] == [0, 1, 2, 3]
    assert logs.history([after, before])[3].at_s > 9.0


def test_workers_that_hold_different_samples_to_be_in_a_step_are_seen() -> None:
    one, other = plain(last=4), plain(last=4)
    other[1] = replace(other[1], ids=(4, 5, 6))
    assert judge.disagreements([log(1, one), log(2, plain(last=4))]) == []
    assert judge.disagreements([log(1, one), log(2, other)]) == [1]
    assert judge.unequal([log(1, one, digest="a"), log(2, one, digest="a"), log(3, one)]) == 0
    assert judge.unequal([log(1, one, digest="a"), log(2, one, digest="b")]) == 1
    assert judge.gaps([step for step in one if step.number != 2]) == [2]


def test_a_pause_is_the_longest_step_after_a_fault_beyond_the_usual_one() -> None:
    went_on = [*plain(last=4), *(replace(one, at_s=one.at_s + 0.7) for one in plain(last=8)[4:])]
    moments = judge.progress([log(1, went_on), log(2, went_on)])
    assert judge.pause_s(moments, 0.45, 1.5) == pytest.approx(0.7)
    assert judge.pause_s(moments, 0.45, 0.46) == pytest.approx(0.7), "the step under way is the one that it hits"
    assert judge.pause_s(moments, 1.25, 1.5) == pytest.approx(0.0), "a later one is not to blame"
    assert judge.pause_s(moments[:4], 0.45, 1.5) == math.inf
    assert judge.step_s(moments) == pytest.approx(0.1)
    assert math.isnan(judge.step_s(moments[:1]))
    with pytest.raises(ValueError, match="no two steps before"):
        judge.pause_s(moments, 0.15, 1.5)


def test_a_step_is_taken_when_the_last_worker_has_and_victims_do_not_count() -> None:
    slow = [replace(step, at_s=step.at_s + 0.04) for step in plain(last=3)]
    late = log(3, [*plain(last=2), replace(plain(last=3)[2], at_s=99.0)])
    workers = [log(1, plain(last=3)), log(2, slow), late]
    assert judge.progress(workers, [(3, 0.25, 100.0)])[2] == (pytest.approx(0.34), 2)
    assert judge.progress(workers, [(3, 0.25, 98.0)])[2] == (99.0, 2)
    again = log(4, plain(1, 4, begin_s=5.0), life=4.0)
    moments = judge.progress([log(1, plain(last=3)), again])
    assert moments[2:] == [(pytest.approx(0.3), 2), (pytest.approx(5.3), 3)], "what is done again is no progress"


def test_what_a_worker_did_before_it_was_hurt_counts() -> None:
    first, second = log(1, plain(last=5)), log(2, plain(3, 8, begin_s=0.3))
    moments = judge.progress([first, second], [(1, 0.55, 9.0), (2, 0.95, 9.0)])
    assert [number for _, number in moments] == list(range(8)), "both have died in the end"


def test_goodput_is_useful_samples_of_the_capacity_that_was_there() -> None:
    rate = judge.between({2: 100.0, 4: 180.0})
    assert [rate(count) for count in (1, 2, 3, 4, 8)] == [50.0, 100.0, 140.0, 180.0, 360.0]
    assert judge.capacity([(0.0, 2), (1.0, 4), (3.0, 3)], 4.0, rate) == pytest.approx(100 + 2 * 180 + 140)
    steps = plain(last=6)
    assert judge.useful(steps, 0.0, 1.0) == 24
    assert judge.useful(steps, 0.15, 0.35) == 8
    assert judge.useful([*steps, replace(steps[0], at_s=0.7)], 0.0, 1.0) == 24, "used twice is useful once"


def trained(steps: list[LoggedStep]) -> list[torch.Tensor]:
    return replay(SMALL, steps)


def test_a_replay_finds_a_gradient_that_was_not_in_the_sum() -> None:
    steps = plain(last=6)
    found = trained(steps)
    assert error(found, trained(steps)) == 0.0
    assert error(found, trained([*steps[:2], replace(steps[2], ids=(8, 9, 10)), *steps[3:]])) > 1e-6
    assert error(found, trained([*steps[:2], replace(steps[2], ids=(11, 10, 9, 8)), *steps[3:]])) < 1e-12


def merging() -> tuple[list[WorkerLog], list[MergeLog]]:
    """Two workers merge after two steps each, and after two more; 1 dies before the third merge, and 2 has come."""
    each = {
        0: [(0, 1), (2, 3), (4, 5), (0,), (6, 7), (8, 9)],
        1: [(4,), (5, 6), (7, 8), (9, 10, 11), (1,)],
        2: [(10, 11), (2, 3), (4,)],
    }
    first = {0: 0, 1: 0, 2: 4}
    wrote = [
        log(10 + one, [LoggedStep(n / 10, n, 0, ids) for n, ids in enumerate(own, first[one])], digest="x" * (one != 1))
        for one, own in each.items()
    ]
    kept = [LoggedMerge(0, 2, (0, 1), "a"), LoggedMerge(1, 4, (0, 1), "b"), LoggedMerge(2, 6, (0, 2), "c")]
    of = {0: kept, 1: kept[:2], 2: kept[2:]}
    books = [MergeLog(pid=10 + one, worker=one, since=2 * (one == 2), donor=0 if one == 2 else -1,
                      merges=tuple(of[one])) for one in each]  # fmt: skip
    return wrote, books


def test_the_samples_of_a_merge_are_those_of_who_is_in_it() -> None:
    wrote, books = merging()
    found = merges.merged(wrote, books)
    assert [step.ids for step in merges.history(found, merges.in_the_end(found, books, (10, 12)))] == [
        (0, 1, 2, 3, 4, 5, 6), (4, 5, 0, 7, 8, 9, 10, 11), (6, 7, 8, 9, 10, 11, 2, 3)
    ]  # fmt: skip
    assert merges.held(books, (10, 12)) == {one.number: [one] for one in books[0].merges}
    lines = [logs.line((10, 0, 0, -1)), *(logs.line(astuple(one)) for one in books[0].merges)]
    assert merges.read([*lines, lines[-1][:9]]) == books[0]
    assert merges.read([]) is None


def test_who_dies_right_after_a_merge_does_not_say_who_was_in_it() -> None:
    wrote, books = merging()
    alone = LoggedMerge(2, 6, (0, 1, 2), "d")
    dead = replace(books[1], merges=(*books[1].merges, alone))
    assert merges.merged(wrote, [books[0], dead, books[2]]) == merges.merged(wrote, books)
    other = replace(books[2], merges=(alone,))
    held = merges.held([books[0], dead, other], (10, 12))
    assert len(held[2]) == 2, "two that went on from it"


def test_what_a_group_was_lost_with_is_in_no_model() -> None:
    """0 and 1 meet, and 2 and 3. Both of these die: what is left of theirs is what 0 and 1 had of them before."""
    wrote = [log(10 + one, [LoggedStep(0.1, 0, 0, (one,)), LoggedStep(0.2, 1, 0, (4 + one,))],
                 digest="x" * (one < 2)) for one in range(4)]  # fmt: skip
    first, second = ((0, 2), (1, 3)), ((0, 1), (2, 3))
    books = []
    for one in range(4):
        group = [next(those for those in groups if one in those) for groups in (first, second)]
        mine = [LoggedMerge(0, 1, (0, 1, 2, 3), str(group[0]), first, group[0]),
                LoggedMerge(1, 2, (0, 1, 2, 3), str(group[1]), second, group[1])]  # fmt: skip
        lines = [logs.line((10 + one, one, 0, -1)), *(logs.line(astuple(it)) for it in mine)]
        books.append(book := merges.read(lines))
        assert book.merges == tuple(mine)
    assert all(len(those) == 1 for those in merges.held(books, (10, 11, 12, 13)).values())
    found = merges.merged(wrote, books)
    assert merges.in_the_end(found, books, (10, 11)) == {(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)}
    assert [step.ids for step in merges.history(found, {(2, 0), (1, 1)})] == [(2,), (5,)]
    both = replay_merges(SMALL, "shuffle:ma:every=1", wrote, books, found)
    assert error(both[10], both[11]) == 0.0
    wrong = [replace(one, merges=(replace(one.merges[0], groups=second), one.merges[1])) for one in books]
    other = replay_merges(SMALL, "shuffle:ma:every=1", wrote, wrong, merges.merged(wrote, wrong))
    assert error(both[10], other[10]) > 1e-6
    odd = [replace(books[0], merges=(replace(books[0].merges[0], digest="?"), books[0].merges[1])), *books[1:]]
    assert len(merges.held(odd, (10, 11, 12, 13))[0]) == 2, "two of one group hold different things"


def test_a_replay_of_merges_finds_a_replica_that_was_not_in_one() -> None:
    wrote, books = merging()
    found = replay_merges(SMALL, "ma:every=2", wrote, books, merges.merged(wrote, books))
    assert set(found) == {10, 12}
    assert error(found[10], found[12]) > 1e-6, "2 has taken one more step"
    other = replay_merges(SMALL, "ma:every=2", wrote, books, merges.merged(wrote, books), backwards=True)
    assert error(found[10], other[10]) < 1e-12
    wrong = [replace(one, merges=tuple(replace(it, workers=(0,)) if it.number == 1 else it for it in one.merges))
             for one in books]  # fmt: skip
    assert error(found[10], replay_merges(SMALL, "ma:every=2", wrote, wrong, merges.merged(wrote, wrong))[10]) > 1e-6


def test_what_counts_at_ones_own_pace_is_in_an_update_that_has_arrived() -> None:
    """Worker 1 has sent its last update when it dies, worker 2 has not."""
    lines = [[updates.GIVES, 1, 2], [updates.GAVE, 1], [updates.GIVES, 2, 3]]
    said = [[updates.LOST, 1, 2], [updates.LOST, 2, 1]]
    books = []
    for one in range(3):
        more = [*said, [updates.GAVE, 2]] if one == 0 else []
        whole = [[10 + one, one, 0], *lines, *more]
        books.append(book := updates.read([*map(logs.line, whole), '["gives", 9']))
        assert book is not None
    taken = [[LoggedStep(one / 10, step, 0, (10 * one + step,)) for step in range(4)] for one in range(3)]
    wrote = [log(10 + one, steps) for one, steps in enumerate(taken)]
    kept = [book for book in books if book is not None]
    ids = [step.ids[0] for step in updates.history(wrote, kept)]
    assert ids == [0, 1, 2, 10, 11, 12, 20, 21]
    assert updates.disputed(kept) == []
    kept[1].lost[2] = 2
    assert updates.disputed(kept) == [2]
    assert updates.read([]) is None


def test_the_gradient_of_the_ledger_says_which_samples_are_in_a_sum() -> None:
    model, data = SMALL.model(), SMALL.data()
    assert counted(model) == []
    for ids, weight in (((1, 2, 5), 3 / 5), ((5, 7), 2 / 5)):
        (model(*data[list(ids)]) * weight).backward()
    assert counted(model) == [1, 2, 5, 5, 7]
    SMALL.optimizer(model).step()
    assert not model.ledger.any()
    assert any(bool((one != other).any()) for one, other in zip(weights(model), weights(SMALL.model()), strict=True))


def test_a_seed_makes_the_faults_and_turns_share_them_out() -> None:
    for quick in (False, True):
        drawn = [cases.case(name, 5, quick) for name in cases.PLAYED]
        assert drawn == [cases.case(name, 5, quick) for name in cases.PLAYED]
        assert drawn != [cases.case(name, 6, quick) for name in cases.PLAYED]
    whole = cases.case("faults", 5, False)
    for kind in ("kill", "leave"):
        assert sum(one.kind == kind for one in whole.faults) >= 5
    assert {one.moment for one in whole.faults if one.kind == "kill"} == set(cases.MOMENTS) - {"join"}
    assert {(one.kind, one.moment, one.victims) for one in cases.case(cases.RANDOM, 5, False).faults} >= {
        *(("kill", moment, 1) for moment in ("exchange", "between", "any")), ("stop", "any", 1), ("leave", "any", 1),
        *(("kill", moment, 2) for moment in ("exchange", "any", "join")),
    }  # fmt: skip
    assert {one.victims for one in whole.faults} == {1, 2}
    syncs = cases.case(cases.RANDOM, 5, False).syncs
    names = "asp backup blocks bmuf bsp diloco easgd local ma shadow shuffle ssp"
    assert sorted(one.partition(":")[0] for one in syncs) == names.split()
    assert sum(len(part) for _, part in cases.turns(cases.case(cases.RANDOM, 5, False))) == cases.RANDOM_FAULTS
    assert [cases.steps_apart(one) for one in ("bsp", "blocks:every=5,merge=mean")] == [1, 5]
    played = cases.turns(whole)
    assert [arm for arm, _ in played] == [*whole.arms, *whole.arms]
    assert sorted(one.words for arm, part in played if arm == cases.OURS for one in part) == sorted(
        one.words for one in whole.faults
    )
    again = cases.case("torchft-ddp", 5, False)
    assert cases.turns(again) == [("torchft-ddp", again.faults)] * 5, "each time all of it, as nobody may be left"
    assert set(cases.QUICK) <= set(cases.NAMES)


def test_checkpoints_are_as_far_apart_as_young_says() -> None:
    assert cases.checkpoint_every(save_s=0.02, step_s=0.1, between_faults_s=25.0) == 10
    assert cases.checkpoint_every(save_s=1e-6, step_s=0.1, between_faults_s=1.0) == 1


def test_a_stretch_of_a_record_has_the_comings_and_goings_that_are_wanted() -> None:
    series = [(1, 1, 1, 1, 0, 1, 0, 0), (0, 0, 0, 0, 0, 1, 1, 1)]
    assert trace.window(series, 4, 3) == 2
    played = trace.play(series, 2, 4, seconds=8.0, stay=2, seed=1)
    assert [(one.at_s, one.machine, one.comes) for one in played.changes] == [
        (4.0, 0, False), (6.0, 0, True), (6.0, 1, True)
    ]  # fmt: skip
    assert (played.first, played.present) == ((0,), [(0.0, 3), (4.0, 2), (6.0, 3), (6.0, 4)])
    assert played.most == 4
    assert trace.window([(0, 1, 0, 1)], 2, 0) == 0
    with pytest.raises(DataError, match="a stretch of 9 is wanted"):
        trace.window(series, 9, 4)
    many = [trace.play(series, 0, 8, seconds=8.0, stay=2, seed=seed) for seed in range(20)]
    assert {one.notice for each in many for one in each.changes if not one.comes} == {True, False}


def test_without_recorded_data_the_shipped_record_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    series, record = machines()
    assert "the description spot" in record
    assert [one[:20].count(1.0) for one in series] == [8, 0, 0, 14]
    assert [one[:20].count(1.0) for one in machines("spot")[0]][:3] == [14, 8, 16]
    with pytest.raises(ConfigError, match="nobody comes or goes in demo4"):
        machines("demo4")
    assert trace.sampled([True], [[2.0, 5.0]], 2.0, 4) == [(1.0, 0.0, 1.0, 1.0)]


def played(**changed: object) -> Played:
    steps = [*plain(last=4), *(replace(one, at_s=one.at_s + 0.7) for one in plain(last=8)[4:])]
    kill = FaultEvent(kind="kill", moment="exchange", at_s=0.45, until_s=1.5, victims=(3,), inside=True)
    whole = Played(
        logs=(log(1, steps, digest="a"), log(2, steps, digest="a"), log(3, steps[:4])), events=(kill,),
        woke={"joined again": 0, "ended": 0, "hung": 0}, left=0, over=True,
    )  # fmt: skip
    return replace(whole, **changed)  # type: ignore[arg-type]


SINGLE = replace(SMALL, double=False)


def test_figures_of_a_run_are_those_of_its_logs(tmp_path: Path) -> None:
    told = figures.told([figures.of(played(), SINGLE, tmp_path)])
    assert told["wrong"] == []
    assert told["pause_s"]["kill"] == {"count": 1, "median": pytest.approx(0.7), "worst": pytest.approx(0.7),
                                       "without_end": 0}  # fmt: skip
    found = {"faults": {"uneven": told}, "spot-uneven": {"goodput": 0.9, "lost": 0, "twice": 0},
             "spot-torchft": {"goodput": 0.5}, "overhead": {"4MB": {"ratio": 1.01}}}  # fmt: skip
    short = figures.summary(found)
    assert short == {
        "faults": 1, "lost": 0, "twice": 0, "replay_error": None,
        "pause_s": {"kill": pytest.approx(0.7), "stop": None, "cut": None, "leave": None, "join": None},
        "overhead": {"demo": None, "4MB": 1.01, "100MB": None, "bare 4MB": None}, "goodput": 0.9,
        "goodput_vs_torchrun": None, "goodput_vs_torchft": pytest.approx(1.8),
    }  # fmt: skip
    join = {**told["events"][0], "kind": "join", "victims": 0}
    assert figures.summary({"faults": {"uneven": {**told, "events": [join]}}})["faults"] == 0, "a join is no fault"


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"over": False}, "it did not come to its end"),
        ({"left": 2}, "2 processes left"),
        ({"woke": {"joined again": 0, "ended": 0, "hung": 1}}, "1 stopped workers hung when they were let go on"),
        ({"logs": (log(1, plain(), digest="a"), log(2, plain(), digest="b"))},
         "2 different sets of parameters in the end"),
        ({"logs": (log(1, [*plain(last=4), *plain(5, 8)]),)}, "nobody wrote down 1 steps, the first is 4"),
        ({"logs": (log(1, plain()), log(2, [plain()[0], replace(plain()[1], ids=(1,)), *plain()[2:]]))},
         "workers hold different samples to be in 1 steps, the first is 1"),
    ],
)  # fmt: skip
def test_every_guard_sees_what_is_wrong(changed: dict[str, object], wrong: str, tmp_path: Path) -> None:
    assert wrong in figures.of(played(events=(), **changed), SINGLE, tmp_path).wrong


def test_a_run_that_nobody_goes_on_with_has_no_pause_and_says_so(tmp_path: Path) -> None:
    died = played(over=False, logs=(log(1, plain(last=4)),))
    died = replace(died, events=(replace(died.events[0], went_on=False, ended=2),))
    told = figures.told([figures.of(died, SINGLE, tmp_path)])
    assert told["pause_s"]["kill"] == {"count": 1, "median": None, "worst": None, "without_end": 1}
    assert told["survivors_ended"] == 2


def test_the_weights_at_the_end_are_compared_with_the_replay(tmp_path: Path) -> None:
    steps = plain(last=4)
    wrong = trained([*steps[:2], replace(steps[2], ids=(8, 9, 10)), *steps[3:]])
    for pid, found in ((1, trained(steps)), (2, trained(steps))):
        torch.save(found, tmp_path / f"weights-{pid}.pt")
    run = played(logs=(log(1, steps, digest="a"), log(2, steps, digest="a")), events=())
    assert figures.of(run, SMALL, tmp_path).replay_error == 0.0
    torch.save(wrong, tmp_path / "weights-2.pt")
    assert (figures.of(run, SMALL, tmp_path).replay_error or 0.0) > 1e-6


def test_a_case_that_does_not_exist_is_refused_and_a_rival_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="faults"):
        bench.run(True, lambda *_: None, case="fault")
    monkeypatch.setattr(bench, "overhead", lambda *_: {})
    monkeypatch.setattr(arms.importlib.util, "find_spec", lambda name: None)
    result = bench.run(True, lambda *_: None, case="overhead")
    assert result["left_out"].keys() == {"torchft"}
    assert set(result["overhead"].values()) == {None}
