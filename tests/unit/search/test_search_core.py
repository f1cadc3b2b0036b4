"""Spaces, searchers, the core, placing and planning; no process, no clock."""

import math
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import fields

import pytest

from uneven.errors import CheckpointError, ConfigError, UnknownNameError
from uneven.fleet.pure.planning.rates import Rates
from uneven.search.data import TrialData
from uneven.search.pure.core import Happened, SearchCore
from uneven.search.pure.decisions import Move
from uneven.search.pure.paces import Paces
from uneven.search.pure.placing import Dispatch, Placer, Placing, Plan, flotilla, flotilla_of_all, one_each
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import NoneNow, searchers
from uneven.search.pure.simulated_search import simulate
from uneven.search.pure.space import (
    Domain,
    FloatRange,
    IntRange,
    Space,
    choice,
    domain_of,
    grid,
    integer,
    loguniform,
    uniform,
)  # fmt: skip
from uneven.search.pure.trial_records import SearchTerms, TrialRecord, TrialStatus
from uneven.search.search_spec import SearchOptions, SearchPlan


def core(scheduler: str = "fifo", searcher: str = "random", **terms: object) -> SearchCore:
    asked = SearchTerms(metric="accuracy", **{"trials": 4, **terms})  # type: ignore[arg-type]
    space = Space({"rate": loguniform(1e-4, 1e-1), "width": choice(32, 64), "fixed": "yes"})
    return SearchCore(asked, space, schedulers.resolve(scheduler), searchers.resolve(searcher))


# -------------------------------------------------------------------- spaces
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: choice(), "without values"),
        (lambda: choice(1, 1), "twice"),
        (lambda: choice(object()), "numbers, texts"),
        (lambda: grid(math.nan), "numbers, texts"),
        (lambda: uniform(2, 1), "is empty"),
        (lambda: uniform(0, math.inf), "finite"),
        (lambda: uniform(math.nan, 1), "finite"),
        (lambda: uniform(0, 10**400), "more than 64 bits"),
        (lambda: uniform(0, True), "finite"),
        (lambda: loguniform(0, 1), "above 0"),
        (lambda: FloatRange(0, 1, step=0), "larger step"),
        (lambda: FloatRange(0, 1, step=1e-300), "larger step"),
        (lambda: IntRange(1, 9, log=True, step=2), "leave out step or log"),
        (lambda: IntRange(1, 9, step=0.5), "give integers"),  # type: ignore[arg-type]
        (lambda: choice([[1], [2]]), "numbers, texts"),
        (lambda: choice(1, True), "twice"),
        (lambda: integer(0.5, 2), "give integers"),  # type: ignore[arg-type]
        (lambda: Space({"": 1}), "give a name"),
        (lambda: Space({"a": [1]}), "nested"),  # type: ignore[dict-item]
        (lambda: domain_of({"kind": "vector"}), "give float"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    "domain",
    [
        uniform(0, 1),
        loguniform(1e-3, 10),
        integer(2, 9),
        integer(1, 64, log=True),
        choice(1, "a"),
        uniform(1, 1),
        FloatRange(0, 5, step=1.0),
        FloatRange(-1, 0.95, step=0.3),
        IntRange(1, 9, step=3),
    ],
)
def test_a_domain_comes_back_from_json(domain: Domain) -> None:
    assert domain_of(domain.to_plain()) == domain


def test_a_choice_of_one_is_not_true() -> None:
    assert not choice(1, 2).holds(True)
    assert not integer(0, 3).holds(True)


def test_a_grid_is_gone_through_in_order_and_then_again() -> None:
    searcher = searchers.resolve("random")
    searcher.begin(Space({"a": grid(1, 2), "b": grid("x", "y")}), 0)
    found = [tuple(searcher.suggest(trial).values()) for trial in range(5)]  # type: ignore[union-attr]
    assert found == [(1, "x"), (1, "y"), (2, "x"), (2, "y"), (1, "x")]


def test_the_grid_searcher_ends_and_refuses_a_range() -> None:
    searcher = searchers.resolve("grid")
    searcher.begin(Space({"a": choice(1, 2)}), 0)
    assert [searcher.suggest(trial) for trial in range(3)] == [{"a": 1}, {"a": 2}, NoneNow.NEVER]
    with pytest.raises(ConfigError, match="cannot enumerate 'rate'"):
        core(searcher="grid")


def test_a_clone_made_by_hand_takes_no_combination_of_a_grid() -> None:
    space = Space({"a": choice(1, 2, 3, 4)})
    search = SearchCore(
        SearchTerms(metric="accuracy", trials=4), space, schedulers.resolve("fifo"), searchers.resolve("grid")
    )
    search.start()
    search.clone(0, 0.0, {"a": 3})
    while search.start() is not None:
        pass
    assert [one.params["a"] for one in search.trials] == [1, 3, 2, 3, 4]


def test_a_limit_holds_suggestions_back_until_a_trial_has_ended() -> None:
    searcher = searchers.resolve("limit:max_concurrent=2:random")
    searcher.begin(Space({"a": uniform(0, 1)}), 0)
    assert [searcher.suggest(trial) is NoneNow.LATER for trial in range(3)] == [False, False, True]
    searcher.tell(0, None)
    assert searcher.suggest(2) is not NoneNow.LATER
    with pytest.raises(ConfigError, match="max_concurrent=0"):
        searchers.resolve("limit:max_concurrent=0:random")


# -------------------------------------------------------------------- the core
def test_the_order_of_a_trial() -> None:
    search = core(trials=1)
    one = search.start()
    assert one is not None
    assert set(one.params) == {"rate", "width", "fixed"}
    assert search.start() is None
    assert not search.over
    assert search.reported(0, 1, 0.5).move is Move.CONTINUE
    search.ended(0)
    assert (one.status, one.best, search.over, search.best) == (TrialStatus.TERMINATED, 0.5, True, one)


def test_less_is_better_where_it_was_said() -> None:
    search = core(mode="min", trials=2)
    for loss in (3.0, 2.0):
        one = search.start()
        assert one is not None
        search.reported(one.number, 1, loss)
        search.ended(one.number)
    assert search.best is search.trials[1]


def test_a_trial_is_tried_max_failures_plus_one_times() -> None:
    search = core(trials=1, max_failures=2)
    tried = 0
    while (one := search.start()) is not None:
        tried += 1
        search.reported(one.number, tried, 0.1)
        search.failed(one.number, "it raised")
    assert tried == 3
    assert search.trials[0].status is TrialStatus.ERROR
    assert search.best is search.trials[0]  # what it had reached is known


def test_what_is_reported_again_changes_nothing() -> None:
    search = core("asha:max_t=4,reduction_factor=2", trials=2)
    events: list[Happened] = []
    search.start()
    search.start()
    search.reported(0, 1, 0.5)
    search.failed(0, "killed", lost=True)
    search.note = events.append
    assert search.start() is search.trials[0]
    assert search.reported(0, 1, 0.0).move is Move.CONTINUE
    assert [event["event"] for event in events] == ["start"]


def test_a_metric_that_is_no_number_ends_the_trial() -> None:
    search = core()
    search.start()
    ruling = search.reported(0, 3, math.nan)
    assert ruling.move is Move.STOP
    assert search.trials[0].status is TrialStatus.ERROR
    assert search.trials[0].why == "diverged: accuracy is not finite at 3"
    keeps = core(nonfinite="keep")
    keeps.start()
    assert keeps.reported(0, 3, math.nan).move is Move.CONTINUE


def test_a_target_ends_the_search() -> None:
    search = core(target=0.9)
    search.start()
    search.start()
    assert search.reported(1, 1, 0.95).why == "reached the target 0.9"
    assert search.start() is None
    assert search.reported(0, 1, 0.1).move is Move.STOP
    assert search.over


def test_a_search_that_reached_its_target_is_read_again_with_another_one() -> None:
    events: list[Happened] = []
    search = core(target=0.9)
    search.note = events.append
    for _ in range(3):
        search.start()
    search.reported(1, 1, 0.92)
    search.reported(0, 1, 0.5)
    search.ended(2, 0.91)
    for target, by in ((0.9, 1), (0.95, None), (None, None), (0.4, 1)):
        again = core(target=target)
        for event in events:
            again.apply(event)
        assert repr(again.trials) == repr(search.trials)
        assert again.target_by == by
        assert (again.start() is None) == (by is not None)
    raised = core(target=0.95)
    for event in events:
        raised.apply(event)
    raised.start()
    assert raised.reported(3, 1, 0.94).move is Move.CONTINUE
    assert raised.reported(3, 2, 0.96).why == "reached the target 0.95"


def test_max_t_of_the_search_and_of_its_scheduler_must_agree() -> None:
    search = core(max_t=2, trials=1)
    search.start()
    assert search.reported(0, 2, 0.5).why == "trained to max_t=2"
    with pytest.raises(ConfigError, match="max_t=2 for the search, max_t=9 for its scheduler"):
        core("asha:max_t=9", max_t=2)


@pytest.mark.parametrize(
    "terms",
    [
        {"metric": ""}, {"mode": "best"}, {"trials": 0}, {"max_failures": -1}, {"nonfinite": "raise"}, {"max_t": 0},
        {"time_attr": "time_total_s"}, {"time_attr": "train_s"},
    ],
)  # fmt: skip
def test_terms_that_make_no_sense_are_refused(terms: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(terms))):
        SearchTerms(**{"metric": "accuracy", **terms})  # type: ignore[arg-type]


def test_a_person_stops_resumes_and_clones() -> None:
    search = core("asha-promote:max_t=9,reduction_factor=3", trials=3)
    events: list[Happened] = []
    search.note = events.append
    search.start()
    assert search.stop(0) == "trial 0 stops at its next report"
    assert search.resume(0) == "trial 0 continues, and is not stopped"
    assert search.stop(0) == "trial 0 stops at its next report"
    assert search.reported(0, 1, 0.5).why == "stopped by hand"
    assert search.stop(0) == "trial 0 has already ended"
    assert search.resume(0) == "trial 0 is next"
    assert search.start() is search.trials[0]
    assert search.resume(0) == "trial 0 is already running"
    number = search.clone(0, 1.0, {"width": 64})
    assert search.trials[number].params == {**search.trials[0].params, "width": 64}
    assert search.trials[number].source == (0, 0, 1.0)
    assert search.start() is search.trials[number]
    for changes, said in (
        ({"wide": 3}, "no setting 'wide'"),
        ({"width": 65}, "not in the space"),
        ({"width": []}, "a text"),
    ):
        with pytest.raises(ConfigError, match=said):
            search.clone(0, 1.0, changes)
    with pytest.raises(UnknownNameError, match="trial"):
        search.stop(99)
    again = core("asha-promote:max_t=9,reduction_factor=3", trials=3)
    for event in events:
        again.apply(event)
    assert repr(again.trials) == repr(search.trials)


def test_another_scheduler_or_seed_is_seen_when_a_search_comes_back() -> None:
    search = core("asha:max_t=4,reduction_factor=2")
    events: list[Happened] = []
    search.note = events.append
    for score in (0.9, 0.1):
        one = search.start()
        assert one is not None
        search.reported(one.number, 1, score)
    for other, said in ((core(seed=1), "other settings"), (core("fifo"), "another decision .continue")):
        with pytest.raises(CheckpointError, match=said):
            list(map(other.apply, events))


def test_the_counts_of_shared_data_in_a_log_change_nothing() -> None:
    search, event = core(), {"event": "data", "prepared": 1, "read": 1, "cpu_s": 0.0}
    search.apply(event)
    assert repr(search.trials) == repr(core().trials)


def test_settings_that_are_asked_for_while_training() -> None:
    search = core(trials=2)
    search.start()
    value = search.define(0, "momentum", uniform(0, 1).to_plain())
    assert search.define(0, "momentum", uniform(0, 1).to_plain()) == value == search.trials[0].params["momentum"]
    with pytest.raises(ConfigError, match="define it in one place"):
        search.define(0, "momentum", uniform(3, 4).to_plain())


def test_each_option_is_of_one_part_of_a_search() -> None:
    parts = [one.name for kind in (SearchTerms, TrialData, SearchPlan) for one in fields(kind)]
    assert sorted(parts) == sorted([*SearchOptions.__annotations__, "metric"])


def of_a_trial_bytes(scheduler: str) -> float:
    """What a core keeps of each more trial that has come to its end."""
    search = core(scheduler, trials=3000)
    tracemalloc.start()
    try:
        kept = []
        for one in iter(search.start, None):
            for t in (1, 2, 3):
                if search.reported(one.number, t, t + one.number % 7 + 0.5).move is not Move.CONTINUE:
                    break
            else:
                search.ended(one.number)
            kept.append(tracemalloc.get_traced_memory()[0])
        return (kept[-1] - kept[999]) / 2000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("scheduler", ["fifo", "asha:max_t=9,reduction_factor=3"])
def test_of_a_trial_that_has_ended_its_row_is_kept_and_little_else(scheduler: str) -> None:
    params_bytes = sys.getsizeof({"rate": 0.1, "width": 32, "fixed": "yes"}) + sys.getsizeof(0.1)
    record_bytes = sys.getsizeof(TrialRecord(0, {})) + 4 * sys.getsizeof(0.1)
    assert of_a_trial_bytes(scheduler) < 1.4 * (params_bytes + record_bytes)


# -------------------------------------------------------------------- devices
RATES = Rates({
    "D1": (100, 190, 270, 350), "D2": (80, 150, 220, 280), "D3": (80, 150, 200, 240), "D4": (40, 75, 105, 120),
})  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "candidates", "placed"),
    [
        (one_each, ["D1", "D4"], {"D1": 1, "D4": 1}),
        (flotilla, ["D1", "D2", "D3", "D4"], {"D1": 1, "D4": 3}),
        (flotilla, ["D2", "D3"], {"D2": 2, "D3": 2}),
        (flotilla_of_all, ["D1", "D4"], {"D1": 1, "D4": 3}),
        (flotilla_of_all, ["D1", "D2", "D4"], {"D1": 1, "D2": 1, "D4": 2}),
        (flotilla_of_all, ["D1", "D2", "D3", "D4"], {"D1": 1, "D2": 1, "D3": 1, "D4": 1}),
        (flotilla_of_all, [], {}),
    ],
)
def test_flotillas_are_one_plan_and_one_device_each_another(
    plan: Plan, candidates: list[str], placed: dict[str, int]
) -> None:
    assert dict(plan(candidates, RATES, 4)) == placed


def test_a_plan_needs_devices() -> None:
    assert one_each(["D1", "D2", "D3"], RATES, 2) == (("D1", 1), ("D2", 1))
    with pytest.raises(ConfigError, match="-1 devices"):
        one_each([], RATES, -1)


def test_the_slowness_of_devices_is_told_from_the_cost_of_trials() -> None:
    paces = Paces()
    assert paces.unit_s(0, 0) == 1.0
    for trial, cost in ((0, 1.0), (1, 3.0)):
        for device, speed in ((0, 1.0), (1, 0.25)):
            paces.measured(trial, (device,), 2, 2 * cost / speed)
    assert paces.unit_s(0, 1) / paces.unit_s(0, 0) > 2
    assert paces.unit_s(1, 0) / paces.unit_s(0, 0) > 1.5
    paces.measured(1, (1,), 0, 5.0)
    assert paces.seen_s[1, 1] == 12.0


def test_the_next_trial_gets_the_fastest_device_and_a_slow_one_is_left_idle_for_it() -> None:
    placer = Placer()
    for device, seconds in ((0, 1.0), (1, 2.0), (2, 30.0)):
        for trial in range(9):
            placer.paces.measured(trial, (device,), 1, seconds)
    assert placer.devices_for(10, (1, 0), {}) == (0,)
    assert placer.devices_for(10, (2,), {0: 0.5, 1: 0.1}) == (0,)
    assert placer.devices_for(10, (2,), {0: math.inf}) == (2,)
    assert placer.moves == 0
    assert placer.devices_for(3, (1,), {}, here=(2,)) == (1,)
    assert placer.devices_for(3, (), {1: 1.0}, here=(2,)) == (1,)
    assert placer.moves == 2
    assert placer.devices_for(3, (1,), {}, here=(0,)) == (0,)
    first = Placer(Placing.FIRST_COME, placer.paces)
    assert first.devices_for(10, (2, 1), {}) == (1,)
    assert first.devices_for(3, (1,), {}, here=(2,)) == (2,)


def test_for_each_busy_device_one_trial_waits_and_the_next_one_does_not() -> None:
    placer = Placer()
    for device in range(3):
        for trial in range(9):
            placer.paces.measured(trial, (device,), 1, 1.0 + device)
    searching = core(trials=30)
    dispatch = Dispatch(searching, placer, 3)
    done = [searching.start(), searching.start()]
    assert all(done)
    begun = list(dispatch.starts({0: (0,), 1: (1,)}, lambda trial: 0.0, lambda one: False))
    assert [(one.number, devices) for one, devices in begun] == [(4, (2,))]
    assert [one.number for one in dispatch.held] == [2, 3]
    assert len(searching.trials) == 5  # nobody else was suggested
    begun = list(dispatch.starts({4: (2,)}, lambda trial: 0.0, lambda one: False))
    assert [(one.number, devices) for one, devices in begun] == [(2, (0,)), (3, (1,))]


def test_placing_ends_a_search_on_unequal_devices_sooner() -> None:
    ended = {}
    for kind in Placing:
        played = simulate(core(max_t=9, trials=8), lambda trial, t: t, speeds=(0.6, 0.4, 0.2, 0.1), placer=Placer(kind))
        assert played.units == 8 * 9
        ended[kind] = played.end_s
    assert ended[Placing.FIRST_COME] > 1.2 * ended[Placing.PLANNED]


@pytest.mark.parametrize(("helps", "sooner"), [(0.9, 1.8), (0.4, 0.9)])
def test_devices_that_nobody_waits_for_help_those_who_train_where_that_helps(helps: float, sooner: float) -> None:
    ended = {}
    for kind in (Placing.PLANNED, Placing.FLOTILLAS):
        played = simulate(
            core(max_t=27, trials=3), lambda trial, t: t, speeds=(1.0,) * 4, costs=lambda trial: 1.0 + 2 * trial.number,
            helps=lambda devices: helps, placer=Placer(kind),
        )  # fmt: skip
        assert played.units == 3 * 27
        ended[kind] = played.end_s
    assert ended[Placing.PLANNED] > sooner * ended[Placing.FLOTILLAS]


def test_who_waits_gets_a_device_of_a_trial_that_has_several() -> None:
    placer = Placer(Placing.FLOTILLAS)
    assert placer.share(0, [], 2) == 1  # it was never measured
    placer.paces.measured(0, (0,), 1, 1.0)
    assert placer.share(0, [], 2) == 2
    assert placer.devices_for(0, [1], {}, (0,), 2) == (0, 1)
    assert placer.devices_for(0, [], {}, (0, 1)) in ((0,), (1,))
    placer.paces.measured(0, (0, 1), 1, 1.1)  # it gained nothing
    assert placer.share(0, [], 2) == 1
    placer.paces.measured(1, (1,), 1, 1.0)
    assert placer.share(1, [], 2) == 1  # nor will others
    assert Placer(Placing.FLOTILLAS, alone={0}).share(0, [], 2) == 1


def test_a_simulated_search_needs_devices_that_move() -> None:
    for speeds in ((), (1.0, 0.0)):
        with pytest.raises(ConfigError, match="speeds"):
            simulate(core(), lambda trial, t: t, speeds=speeds)


def test_halving_finds_the_best_with_a_part_of_the_training() -> None:
    used = {}
    for scheduler in ("fifo", "asha:max_t=27,reduction_factor=3", "asha-promote:max_t=27,reduction_factor=3"):
        search = core(scheduler, trials=27, **({"max_t": 27} if scheduler == "fifo" else {}))
        played = simulate(search, lambda trial, t: -abs(math.log10(trial.params["rate"]) + 2) * (1 + 1 / t))  # type: ignore[arg-type]
        used[scheduler] = played.units
        assert search.best is not None
        assert search.best.t == 27
        assert played.bests[-1][2] == search.best.best
    fifo, stopping, promoting = used.values()
    assert fifo == 27 * 27
    assert promoting < stopping < fifo / 2
