"""How plans are played: who waits, who is late, what travels beside the training."""

from __future__ import annotations

import pytest
from small_world import MEGABIT_PER_S, Ran, cluster, node

from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.spec import ClusterSpec, SiteLink, Trace, steady
from uneven.cluster.pure.simulate import Arithmetic
from uneven.cluster.pure.simulate.members import ByMembers, Clocks, MemberHistory, Members
from uneven.cluster.pure.simulate.virtual_exchanges import ExchangeShape, kind_of
from uneven.errors import TrainingError
from uneven.policy.core.actions import (
    Add,
    Exchange,
    Mean,
    Moment,
    Payload,
    Quorum,
    Significant,
    StepPlan,
    Via,
    Wait,
)
from uneven.policy.core.views import SyncView
from uneven.policy.sync import SyncPolicy

UNEVEN = tuple(node(f"n{rank}", step_s) for rank, step_s in enumerate((1.0, 1.0, 1.0, 4.0)))


def at(megabit_per_s: float) -> dict[str, Trace]:
    return {key: steady(megabit_per_s * MEGABIT_PER_S) for key in ("up_bit_per_s", "down_bit_per_s")}


class Heard(Arithmetic):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def computes(self, rank: int, iteration: int, samples: range, at_s: float) -> None:
        self.calls.append(("computes", rank, iteration, samples, at_s))

    def sends(self, rank: int, exchange: Exchange) -> None:
        self.calls.append(("sends", rank))

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        self.calls.append(("merges", ranks))

    def reads(self, rank: int, exchange: Exchange) -> None:
        self.calls.append(("reads", rank))

    def catches_up(self, rank: int, exchange: Exchange, source: int | None) -> None:
        self.calls.append(("catches_up", rank, source))

    def steps(self, rank: int, iteration: int, at_s: float) -> None:
        self.calls.append(("steps", rank, iteration, at_s))

    def enters(self, rank: int, source: int | None) -> None:
        self.calls.append(("enters", rank, source))

    def leaves(self, rank: int) -> None:
        self.calls.append(("leaves", rank))

    def only(self, *what: str) -> list[tuple[object, ...]]:
        return [call for call in self.calls if call[0] in what]


def test_bsp_waits_for_the_slowest() -> None:
    run = Ran(cluster(*UNEVEN))
    assert run.ends_s(0) == run.ends_s(3) == [4.0, 8.0, 12.0]
    assert [step.exchange_s for step in run.of(0)] == [3.0] * 3
    assert run.outcome.wait_share == pytest.approx(9 / 16)
    assert (run.outcome.iteration_s, run.outcome.samples_per_s) == (4.0, pytest.approx(4.0))
    assert {step.global_batch for step in run.steps} == {16}


def test_the_order_of_what_the_arithmetic_is_told_under_bsp() -> None:
    heard = Heard()
    Ran(cluster(node("a"), node("b", 2.0)), iterations=1, arithmetic=heard)
    assert heard.calls == [
        ("enters", 0, None),
        ("enters", 1, None),
        ("computes", 0, 0, range(4), 0.0),
        ("computes", 1, 0, range(4, 8), 0.0),
        ("sends", 0),
        ("sends", 1),
        ("merges", (0, 1)),
        ("steps", 0, 0, 2.0),
        ("steps", 1, 0, 2.0),
    ]


def test_every_sample_of_an_epoch_is_taken_once_under_bsp() -> None:
    heard = Heard()
    spec = cluster(*(node(f"n{i}", 1.0 + i) for i in range(3)), global_batch=17)
    Ran(spec, iterations=6, balance="lb-bsp", arithmetic=heard)
    taken = [position for call in heard.only("computes") for position in call[3]]  # type: ignore[attr-defined]
    assert sorted(taken) == list(range(6 * 17))


@pytest.mark.parametrize(("staleness", "second", "fourth"), [(0, 4.0, 12.0), (1, 1.0, 8.0), (3, 1.0, 3.0)])
def test_ssp_lets_a_worker_lead_by_its_bound(staleness: int, second: float, fourth: float) -> None:
    heard = Heard()
    Ran(cluster(*UNEVEN), f"ssp:staleness={staleness}", iterations=4, arithmetic=heard)
    starts = {call[2]: call[4] for call in heard.only("computes") if call[1] == 0}
    assert (starts[1], starts[3]) == (second, fourth)


def test_a_step_is_finished_for_others_when_what_it_sent_has_arrived() -> None:
    heard = Heard()
    spec = cluster(node("a"), node("b", **at(4)))  # half a megabyte each way takes a second
    Ran(spec, "ssp:staleness=0", iterations=2, arithmetic=heard)
    merged = [call[1] for call in heard.only("merges")]
    assert merged[:2] == [(0,), (1,)]
    second = next(call for call in heard.calls if call[:3] == ("computes", 0, 1))
    assert second[4] == pytest.approx(1.0 + 1.0 + 1.0)  # b's push arrives at 3 s, for a's came in over b's link first


def test_backup_workers_close_a_round_without_the_last_and_it_catches_up() -> None:
    heard = Heard()
    run = Ran(cluster(*UNEVEN), "backup:spares=1", iterations=8, arithmetic=heard)
    assert run.ends_s(0) == [float(i) for i in range(1, 9)]
    assert [step.iteration for step in run.of(3)] == [0, 4]
    assert [step.batch for step in run.of(3)] == [0, 0]
    assert {step.global_batch for step in run.of(0)} == {12}
    assert heard.only("catches_up") == [("catches_up", 3, 0)] * 2
    assert not [call for call in heard.only("steps", "reads") if call[1] == 3]
    assert {call[1] for call in heard.only("merges")} == {(0, 1, 2)}
    assert run.outcome.workers[3].clock == 8


def test_a_quorum_that_cannot_be_met_any_more_is_what_is_left() -> None:
    death = Event(do=Do.KILL, node="n1", at_s=2.5)
    spec = cluster(*UNEVEN[:3], events=(death,))
    run = Ran(spec, "backup:spares=0", iterations=5)
    assert run.ends_s(0) == run.ends_s(2) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_local_steps_cost_computing_only_and_then_all_meet() -> None:
    run = Ran(cluster(*UNEVEN), "local:every=3", iterations=6)
    assert run.ends_s(0) == [1.0, 2.0, 12.0, 13.0, 14.0, 24.0]
    assert run.ends_s(3) == [4.0, 8.0, 12.0, 16.0, 20.0, 24.0]


def test_groups_are_barriers_of_their_own() -> None:
    nodes = [node(f"n{rank}", step_s) for rank, step_s in enumerate((1.0, 1.0, 1.0, 3.0))]
    run = Ran(cluster(*nodes), "shuffle:groups=grid,columns=2", iterations=3)
    assert [run.ends_s(rank)[0] for rank in range(4)] == [1.0, 1.0, 3.0, 3.0]  # in rows
    assert [run.ends_s(rank)[1] for rank in range(4)] == [4.0, 6.0, 4.0, 6.0]  # in columns


class Beside(SyncPolicy):
    """The mean of the parameters in the background."""

    def plan(self, view: SyncView) -> StepPlan:
        mean = Exchange(payload=Payload.PARAMETERS, members=view.members, merge=Mean(), moment=Moment.BACKGROUND)
        return StepPlan(exchanges=(mean,))


def test_the_background_delays_nobody_and_does_not_pile_up() -> None:
    heard = Heard()
    nodes = [node(f"n{i}", **at(3.2)) for i in range(2)]  # a megabyte each way takes 2.5 s
    run = Ran(cluster(*nodes), Beside(), iterations=6, arithmetic=heard)
    assert run.ends_s(0) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert not any(step.exchange_s for step in run.steps)
    # Begun after the first step, through at 3.5 s; the next after the fourth, through at 6.5 s.
    assert len(heard.only("merges")) == 2
    assert len([call for call in heard.only("sends") if call[1] == 0]) == 2


class Nothing(SyncPolicy):
    """Nobody exchanges anything."""

    def plan(self, view: SyncView) -> StepPlan:
        del view
        return StepPlan()


@pytest.mark.parametrize("shadow", ["shadow:easgd:together=true", "shadow:ma", "shadow:bmuf"])
@pytest.mark.parametrize(("slowest_s", "begun"), [(1.0, [4, 4, 4, 4]), (4.0, [3, 3, 3, 12])])
def test_a_shadow_costs_no_step_and_meets_as_often_as_links_and_the_slowest_worker_let_it(
    shadow: str, slowest_s: float, begun: list[int]
) -> None:
    steps_s = (1.0, 1.0, 1.0, slowest_s)
    links = [at(9.6), at(9.6), at(9.6), at(4.8)]  # the ring moves 1.5 MB over each link: 2.5 s over the slowest
    heard, nodes = Heard(), [node(f"n{rank}", s, **links[rank]) for rank, s in enumerate(steps_s)]
    run = Ran(cluster(*nodes), shadow, iterations=12, arithmetic=heard)
    alone = Ran(cluster(*nodes), Nothing(), iterations=12)
    assert [run.ends_s(rank) for rank in range(4)] == [alone.ends_s(rank) for rank in range(4)]
    # Begun with the last one's step, through 2.5 s later; the next one when the last of them ends a step after that.
    assert [len([call for call in heard.only("sends") if call[1] == rank]) for rank in range(4)] == begun
    twin = shadow.removeprefix("shadow:") + ("," if "=" in shadow else ":") + "every=3"
    slow = Ran(cluster(*nodes), twin, iterations=12)
    assert slow.ends_s(0)[-1] > run.ends_s(0)[-1] + 4 * 2.0  # its twin in the foreground stands still meanwhile


@pytest.mark.parametrize(("load", "begun"), [(1.0, 12), (0.1, 3)])
def test_a_shadow_begins_no_more_exchanges_than_its_load_allows(load: float, begun: int) -> None:
    heard = Heard()
    spec = cluster(node("a"), node("b"), exchange_core_s=0.5)  # of 5 s each may take a tenth
    Ran(spec, f"shadow:load={load}:ma", iterations=12, arithmetic=heard)
    assert len([call for call in heard.only("sends") if call[1] == 0]) == begun


class TwoKinds(SyncPolicy):
    """Parameters after the first two steps, in the background, and movements after the third."""

    def plan(self, view: SyncView) -> StepPlan:
        payload = Payload.DELTA if view.clock == 2 else Payload.PARAMETERS
        one = Exchange(payload=payload, members=view.members, merge=Mean(), moment=Moment.BACKGROUND)
        waits = (Wait(view.members, 3),) if view.clock == 5 else ()
        return StepPlan(exchanges=(one,) if view.clock < 3 else (), waits=waits)


def test_an_exchange_of_another_kind_carries_the_steps_of_one_that_could_not_start() -> None:
    slow = {"up_bit_per_s": steady(3.2 * MEGABIT_PER_S)}  # an exchange takes 2.5 s alone, and twice that with another
    ran = Ran(cluster(node("a", **slow), node("b", **slow)), TwoKinds(), iterations=6)
    assert ran.ends_s(0) == pytest.approx([1, 2, 3, 4, 5, 7])


class Told(SyncPolicy):
    """Each site tells the other what it has to add, and leads by ``lead`` steps at most."""

    def __init__(self, lead: int, select: Significant | None = None) -> None:
        self.lead, self.select = lead, select

    def plan(self, view: SyncView) -> StepPlan:
        names = sorted(set(view.sites.values()))
        parties = tuple(tuple(rank for rank in view.members if view.sites[rank] == name) for name in names)
        tell = Exchange(
            payload=Payload.DELTA, members=view.members, merge=Add(), moment=Moment.BACKGROUND,
            parties=parties, select=self.select,
        )  # fmt: skip
        return StepPlan(exchanges=(tell,), waits=(Wait(view.members, view.clock - self.lead),))


def sites(*, bit_per_s: float, **workload: float) -> ClusterSpec:
    nodes = [node(f"n{rank}", site="east" if rank < 2 else "west") for rank in range(4)]
    line = SiteLink(between=("east", "west"), bit_per_s=steady(bit_per_s))
    return cluster(*nodes, links=(line,), **workload)


def test_one_member_speaks_for_its_party_and_waits_fire_when_it_has_been_heard() -> None:
    heard = Heard()
    run = Ran(sites(bit_per_s=4e6), Told(lead=0), iterations=2, arithmetic=heard)
    assert {call[1] for call in heard.only("merges")} == {(0,), (2,)}
    assert run.ends_s(0) == [1.0, pytest.approx(4.0)]  # a megabyte over half a megabyte a second: two seconds


def test_a_lead_hides_the_line() -> None:
    assert Ran(sites(bit_per_s=4e6), Told(lead=3), iterations=4).ends_s(0) == [1.0, 2.0, 3.0, 4.0]


def test_significant_entries_travel_with_their_positions() -> None:
    run = Ran(sites(bit_per_s=4e6, significant=0.25), Told(0, Significant(0.01)), iterations=2)
    assert run.ends_s(0) == [1.0, pytest.approx(1.0 + 0.5625 + 1.0)]  # a bit for each, and a quarter


class Half(Heard):
    """Says itself how much is significant."""

    def sent_part(self, rank: int, exchange: Exchange) -> float:
        return 0.25


def test_an_arithmetic_knows_how_much_is_significant() -> None:
    run = Ran(sites(bit_per_s=4e6), Told(0, Significant(0.01)), iterations=2, arithmetic=Half())
    assert run.ends_s(0)[1] == pytest.approx(1.0 + 0.5 + 1.0)


def test_inside_a_site_every_step_and_between_sites_every_few() -> None:
    run = Ran(sites(bit_per_s=8e6), "hierarchical:every=2", iterations=4)
    ends_s = run.ends_s(0)
    assert ends_s[0] == pytest.approx(1.0)
    assert ends_s[1] > 2.5  # over the line
    assert ends_s[2] == pytest.approx(ends_s[1] + 1.0)


def test_the_kinds_of_exchanges() -> None:
    def kind(**rest: object) -> ExchangeShape:
        base = {"payload": Payload.DELTA, "members": (0, 1), "merge": Mean(), "moment": Moment.STEP}
        return kind_of(Exchange(**(base | rest)))  # type: ignore[arg-type]

    assert kind() is ExchangeShape.RING
    assert kind(quorum=Quorum(count=1)) is ExchangeShape.TOGETHER
    assert kind(via=Via.SERVER) is ExchangeShape.TOGETHER
    assert kind(via=Via.SERVER, merge=Add()) is ExchangeShape.APART
    assert kind(moment=Moment.BACKGROUND, merge=Add()) is ExchangeShape.TELL
    assert kind(moment=Moment.BACKGROUND) is ExchangeShape.RING


class Never(SyncPolicy):
    """Waits for what cannot be."""

    def plan(self, view: SyncView) -> StepPlan:
        return StepPlan(waits=(Wait(view.members, view.clock + 1),) if view.clock else ())


def test_workers_that_wait_for_ever_are_named() -> None:
    with pytest.raises(TrainingError, match=r"rank 0 never ends step 1 \(2 of 2 workers are blocked\)"):
        Ran(cluster(node("a"), node("b")), Never())


def test_samples_off_one_common_order_are_taken_by_whoever_comes() -> None:
    heard = Heard()
    run = Ran(cluster(*UNEVEN), "asp", iterations=1000, samples=16 * 13, arithmetic=heard)
    assert [len(run.of(rank)) for rank in range(4)] == [16, 16, 16, 4]
    taken = sorted(position for call in heard.only("computes") for position in call[3])  # type: ignore[attr-defined]
    assert taken == list(range(16 * 13))


@pytest.mark.parametrize("policy", ["asp", "ssp:staleness=1", "shadow:easgd:alpha=0.1", "bsp"])
def test_not_a_sample_more_is_taken_than_there_are(policy: str) -> None:
    heard = Heard()
    Ran(cluster(*UNEVEN), policy, iterations=1000, samples=75, arithmetic=heard)
    taken = sorted(position for call in heard.only("computes") for position in call[3])  # type: ignore[attr-defined]
    assert taken == list(range(75))


def test_members_reckon_their_hash_once_and_are_a_tuple() -> None:
    members = Members((2, 0, 1))
    assert members == (0, 1, 2)
    assert hash(members) == hash((0, 1, 2))
    made: list[tuple[int, ...]] = []
    things: ByMembers[int] = ByMembers(lambda key: made.append(key) or len(made))  # type: ignore[func-returns-value]
    assert things[members] == things[(0, 1, 2)] == things[members] == 1
    assert things[(0, 1)] == 2
    assert len(made) == 2


def test_members_hold_from_a_clock_on() -> None:
    history = MemberHistory((0, 1, 2))
    history.change(5, (0, 2))
    history.change(5, (0, 2, 4))
    assert [history.at(clock).members for clock in (4, 5)] == [(0, 1, 2), (0, 2, 4)]
    assert [history.at(clock).generation for clock in (4, 5)] == [0, 2]


def test_clocks_wake_those_who_wait_for_the_least() -> None:
    clocks, woken = Clocks(), []
    for rank in (0, 1):
        clocks.enter(rank, 0)
    assert not clocks.holds((0, 1), 1)
    clocks.when((0, 1), 1, lambda: woken.append("one"))
    clocks.when((0, 1), 3, lambda: woken.append("three"))
    clocks.advance(0, 5)
    assert woken == []
    clocks.advance(1, 2)
    assert woken == ["one"]
    clocks.leave(1)
    assert woken == ["one", "three"]
    assert clocks.holds((0, 1), 5)
