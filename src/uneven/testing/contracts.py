"""Test suites that plug-ins inherit. They need pytest and hypothesis.

To test a predictor, write::

    from uneven.testing.contracts import PredictorContract

    class TestMine(PredictorContract):
        def make(self):
            return Mine()

pytest then runs the whole suite on it, with the same examples in every run.
"""

import dataclasses
import itertools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from uneven.policy.balance import Balancer
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.actions import Moment, Payload, StepPlan, Via
from uneven.policy.core.views import BalanceView, Limits, Observation, SyncView
from uneven.policy.predict import Predictor, predictors, study
from uneven.policy.sync import Pace, SyncPolicy
from uneven.run.lines.transport import Pending, Transport

Test = Callable[..., None]

_SETTINGS = settings(
    max_examples=25,
    deadline=None,  # a test may be slow on a busy machine
    derandomize=True,
    database=None,
    # The tests are in a base class and run for each class that inherits them.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


def _examples(**strategies: st.SearchStrategy[Any]) -> Callable[[Test], Test]:
    return lambda test: _SETTINGS(given(**strategies)(test))


def report(iteration: int, speed_per_s: float, samples: int = 32) -> Observation:
    """Return a plausible report of one iteration at a given speed."""
    return Observation(iteration=iteration, samples=samples, local_s=samples / speed_per_s, cpu=0.5, memory=0.25)


def reports(least: int = 0) -> st.SearchStrategy[list[Observation]]:
    """Generate plausible reports of one worker, in order, with speeds between 0.1 and 10,000 samples/s."""
    speeds = st.lists(st.floats(0.1, 1e4), min_size=least, max_size=30)
    return speeds.map(lambda row: [report(k, speed) for k, speed in enumerate(row)])


@st.composite
def balance_views(draw: st.DrawFn, workers: int | None = None) -> list[BalanceView]:
    """Generate the views that a balancer gets in a run, in order, with constant workers, batch and limits.

    The shares of each view are an even split; feed answers back with :func:`dataclasses.replace`.
    """
    n = draw(st.integers(1, 8)) if workers is None else workers
    lower = tuple(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    room = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    upper = tuple(low + more for low, more in zip(lower, room, strict=True))
    total = draw(st.integers(max(1, sum(lower)), sum(upper)))
    shares = _within(total, lower, upper)
    # A few speeds are drawn and then dealt out, because drawing each took most of a suite's time.
    some = draw(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6))
    deal = Random(draw(st.integers(0, 2**32 - 1)))
    views = []
    for iteration in range(draw(st.integers(1, 8))):
        speeds = [_near(deal.choice(some), deal) for _ in range(n)]
        known = [deal.random() < 0.5 or iteration > 3 for _ in range(n)]
        views.append(
            BalanceView(
                iteration=iteration,
                global_batch=total,
                members=tuple(range(n)),
                shares=shares,
                observed=tuple(report(iteration, v) if k else None for v, k in zip(speeds, known, strict=True)),
                predicted_per_s=tuple(v if k else math.nan for v, k in zip(speeds, known, strict=True)),
                limits=Limits(lower=lower, upper=upper),
            )
        )
    return views


def _near(speed_per_s: float, deal: Random) -> float:
    """Return the same speed half of the time, so that workers are often equally fast."""
    return speed_per_s if deal.random() < 0.5 else min(1e6, max(1e-3, speed_per_s * 10 ** deal.uniform(-1, 1)))


def _within(total: int, lower: Sequence[int], upper: Sequence[int]) -> tuple[int, ...]:
    shares = list(lower)
    for _ in range(total - sum(shares)):
        i = min((i for i, x in enumerate(shares) if x < upper[i]), key=shares.__getitem__)
        shares[i] += 1
    return tuple(shares)


def _through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


class PredictorContract(ABC):
    """The tests of every predictor. A predictor that learns gets its lessons immediately."""

    @abstractmethod
    def make(self) -> Predictor:
        """Return a new predictor, the same each time."""

    def test_nothing_is_predicted_before_the_first_report(self) -> None:
        assert math.isnan(self.make().predict())
        assert self.make().lesson() is None

    @_examples(seen=reports(least=1), ahead=st.integers(1, 5))
    def test_a_prediction_is_a_positive_speed(self, seen: list[Observation], ahead: int) -> None:
        predictor = self.make()
        for observation in seen:
            _show(predictor, observation)
            assert 0 < predictor.predict() < math.inf
            assert 0 < predictor.predict(ahead) < math.inf
            assert 0 <= predictor.doubt() < math.inf

    @_examples(speed=st.floats(0.1, 1e4))
    def test_a_steady_speed_is_found(self, speed: float) -> None:
        predictor = self.make()
        for k in range(30):
            _show(predictor, report(k, speed))
        assert math.isclose(predictor.predict(), speed, rel_tol=0.02)
        assert math.isclose(predictor.predict(4), speed, rel_tol=0.02)

    @_examples(seen=reports())
    def test_two_that_saw_the_same_predict_the_same(self, seen: list[Observation]) -> None:
        here, there = self.make(), self.make()
        for observation in seen:
            _show(here, observation)
            here.predict(3)
            here.predict()
            _show(there, observation)
            assert here.predict() == there.predict(), "asking twice must change nothing"

    @_examples(seen=reports(least=1), samples=st.integers(0, 1))
    def test_a_report_without_a_speed_changes_nothing(self, seen: list[Observation], samples: int) -> None:
        predictor = self.make()
        for observation in seen:
            _show(predictor, observation)
        before = predictor.predict()
        predictor.observe(Observation(iteration=len(seen), samples=samples, local_s=0.0 if samples else 1.0))
        assert predictor.predict() == before

    @_examples(seen=reports(), cut=st.integers(0, 30))
    def test_its_state_survives_a_restart(self, seen: list[Observation], cut: int) -> None:
        old = self.make()
        for observation in seen[:cut]:
            _show(old, observation)
        new = self.make()
        new.load_state_dict(_through_json(old.state_dict()))
        assert repr(new.predict()) == repr(old.predict())  # as text, because NaN is not equal to NaN
        for observation in seen[cut:]:
            _show(old, observation)
            _show(new, observation)
            assert new.predict() == old.predict()
            assert new.doubt() == old.doubt()

    @_examples(seen=reports(least=1))
    def test_a_lesson_learns_the_same_every_time_and_counts_once_absorbed(self, seen: list[Observation]) -> None:
        here, there = self.make(), self.make()
        for observation in seen:
            here.observe(observation)
            there.observe(observation)
            before = here.predict()
            lesson, same = here.lesson(), there.lesson()
            assert (lesson is None) == (same is None)
            if lesson is not None and same is not None:
                lesson.learn()
                assert here.predict() == before, "lessons that are not absorbed have no effect"
                here.absorb(lesson.learn())
                there.absorb(same.learn())
            assert here.predict() == there.predict()


def _show(predictor: Predictor, observation: Observation) -> None:
    predictor.observe(observation)
    study(predictor)


class BalancerContract(ABC):
    """The tests of every balancer."""

    workers: ClassVar[int | None] = None  # number of workers that `make()` is for; None for any

    @abstractmethod
    def make(self) -> Balancer:
        """Return a new balancer, the same each time."""

    def test_its_predictor_exists(self) -> None:
        assert isinstance(predictors.resolve(self.make().predictor), Predictor)

    @_examples(data=st.data())
    def test_the_batch_is_handed_out_exactly_and_the_limits_hold(self, data: st.DataObject) -> None:
        views = data.draw(balance_views(self.workers))
        for view, shares in self._run(self.make(), views):
            assert sum(shares) == view.global_batch
            for low, x, high in zip(view.limits.lower, shares, view.limits.upper, strict=True):
                assert low <= x <= high

    @_examples(data=st.data())
    def test_all_ranks_come_to_the_same_split(self, data: st.DataObject) -> None:
        views = data.draw(balance_views(self.workers))
        assert self._run(self.make(), views) == self._run(self.make(), views)

    @_examples(data=st.data())
    def test_every_split_has_a_reason(self, data: st.DataObject) -> None:
        balancer = self.make()
        for view in data.draw(balance_views(self.workers)):
            assert balancer.split(view).reason.strip()

    @_examples(data=st.data())
    def test_shares_that_fit_no_longer_are_mended(self, data: st.DataObject) -> None:
        balancer = self.make()
        for view in data.draw(balance_views(self.workers)):
            broken = dataclasses.replace(view, shares=(0,) * len(view.members))
            assert sum(balancer.split(broken).shares) == view.global_batch

    @_examples(data=st.data())
    def test_its_state_survives_a_restart(self, data: st.DataObject) -> None:
        views = data.draw(balance_views(self.workers))
        cut = data.draw(st.integers(0, len(views)))
        old, new = self.make(), self.make()
        self._run(old, views[:cut])
        new.load_state_dict(_through_json(old.state_dict()))
        assert new.adapts == old.adapts
        assert self._run(new, views[cut:]) == self._run(old, views[cut:])

    @_examples(data=st.data())
    def test_a_profile_leaves_all_that_true(self, data: st.DataObject) -> None:
        views = data.draw(balance_views(self.workers))
        seconds = data.draw(st.lists(st.floats(1e-4, 1.0), min_size=4, max_size=4))
        profiles = {rank: Profile(sizes=(1, 2, 4, 8), seconds=tuple(seconds)) for rank in views[0].members}
        here, there = self.make(), self.make()
        for balancer in (here, there):
            balancer.split(views[0])  # a decision before the profile must not influence later ones
            balancer.profiled(profiles)
        steps = self._run(here, views)
        assert steps == self._run(there, views)
        for view, shares in steps:
            assert sum(shares) == view.global_batch
            assert all(x <= high for x, high in zip(shares, view.limits.upper, strict=True))

    @_examples(data=st.data())
    def test_what_does_not_adapt_does_not_change(self, data: st.DataObject) -> None:
        balancer, last = self.make(), None
        for view in data.draw(balance_views(self.workers)):
            settled = not balancer.adapts
            shares = balancer.split(view).shares
            assert not (settled and last is not None) or shares == last
            last = shares if not balancer.adapts else None

    @staticmethod
    def _run(balancer: Balancer, views: list[BalanceView]) -> list[tuple[BalanceView, tuple[int, ...]]]:
        """Show the views in order, each with the balancer's previous shares."""
        steps: list[tuple[BalanceView, tuple[int, ...]]] = []
        for view in views:
            shown = dataclasses.replace(view, shares=steps[-1][1]) if steps else view
            steps.append((shown, balancer.split(shown).shares))
        return steps


class SyncPolicyContract(ABC):
    """The tests of every synchronization policy."""

    members: ClassVar[tuple[int, ...]] = (1, 2, 5, 9)  # ranks with gaps, as after some workers have left
    sites: ClassVar[dict[int, str]] = {1: "east", 2: "west", 5: "east", 9: "west"}
    steps: ClassVar[int] = 24  # of a run; at least two periods of the policy

    @abstractmethod
    def make(self) -> SyncPolicy:
        """Return a new policy, the same each time."""

    def views(self, members: tuple[int, ...] | None = None, **rest: Any) -> list[SyncView]:
        """Return the views of all members in turn, for ``steps`` steps."""
        here = self.members if members is None else members
        rest = {"sites": self.sites, **rest}
        return [SyncView(rank=rank, clock=clock, members=here, **rest) for clock in range(self.steps) for rank in here]

    def runs(self) -> list[list[SyncView]]:
        """Return the whole run; then runs with fewer members, a single one, a new one, and all members at one site."""
        joined = (*self.members, max(self.members) + 4)
        fewer = (self.members[1:], self.members[:-1], self.members[:1])
        return [self.views(), *map(self.views, (*fewer, joined)), self.views(sites={}), self.views(joined, sites={})]

    def test_the_same_view_gets_the_same_plan(self) -> None:
        here, there = self.make(), self.make()
        for view in self.views():
            assert here.plan(view) == here.plan(view) == there.plan(view)

    def test_the_plan_depends_on_the_view_only(self) -> None:
        views = [view for run in self.runs() for view in run]
        asked = self.make()
        # Workers ask in any order, and members come and go between two calls.
        for view in [*views, *reversed(views), *views[::7]]:
            assert asked.plan(view) == self.make().plan(view._replace(members=(*view.members,)))

    def test_a_plan_that_is_said_to_be_constant_is(self) -> None:
        for run in self.runs():
            policy, first = self.make(), dict[int, StepPlan]()
            for view in run if policy.constant else ():
                plan = policy.plan(view)
                assert first.setdefault(view.rank, plan) == plan, f"at clock {view.clock} another one than at 0"

    def test_a_worker_talks_only_to_the_living_and_is_one_of_them(self) -> None:
        for run in self.runs():
            policy = self.make()
            for view in run:
                plan = policy.plan(view)
                for exchange in plan.exchanges:
                    assert view.rank in exchange.members
                    assert set(exchange.members) <= set(view.members)
                    assert list(exchange.members) == sorted(set(exchange.members)), "ascending, each rank once"
                for wait in plan.waits:
                    assert set(wait.members) <= set(view.members)

    def test_members_of_a_group_name_the_same_group(self) -> None:
        for run in self.runs():
            policy = self.make()
            for clock, views in itertools.groupby(run, key=lambda view: view.clock):
                plans = {view.rank: policy.plan(view) for view in views}
                groups: dict[tuple[Payload, int], tuple[int, ...]] = {}
                for rank, plan in plans.items():
                    for exchange in (one for one in plan.exchanges if one.via is Via.GROUP):
                        # Otherwise workers would wait for each other in a circle.
                        assert all(exchange in plans[other].exchanges for other in exchange.members), f"clock {clock}"
                        before = groups.setdefault((exchange.payload, rank), exchange.members)
                        assert before == exchange.members, "two groups at a time for one worker and payload"

    def test_nobody_waits_for_a_clock_that_cannot_come(self) -> None:
        policy = self.make()
        for view in self.views():
            for wait in policy.plan(view).waits:
                assert wait.clock <= view.clock, "all are at this clock, and the slowest would wait for itself"

    def test_its_facts_are_true(self) -> None:
        policy = self.make()
        facts = policy.facts
        if facts is None:
            return
        seen: dict[Payload, list[int]] = {}
        plans = [(view, policy.plan(view)) for view in self.views()]
        # Workers that continue during an exchange are in step if a wait limits how far.
        in_step = facts.pace is Pace.TOGETHER and any(plan.waits for _, plan in plans)
        for view, plan in plans:
            for exchange in plan.exchanges:
                seen.setdefault(exchange.payload, []).append(view.clock)
                alone = exchange.moment is Moment.BACKGROUND or (exchange.via is Via.SERVER and not exchange.quorum)
                alone = alone and not in_step
                assert alone == (facts.pace in (Pace.OWN, Pace.BOUNDED)), f"{facts.pace} and {exchange}"
                waited = exchange.quorum is not None and exchange.moment is not Moment.BACKGROUND
                assert waited == (facts.pace is Pace.QUORUM)
                assert not exchange.quorum or exchange.quorum.count <= len(view.members)
            assert not plan.waits or facts.pace is Pace.BOUNDED or in_step
        assert tuple(payload for payload in Payload if payload in seen) == facts.payloads
        # Next to parameters, gradients keep a part of the workers in step: all in the warm-up, or those of a site.
        clocks = sorted(set(seen.get(Payload.PARAMETERS) or seen.get(Payload.DELTA) or next(iter(seen.values()))))
        assert all(after - before == facts.every for before, after in itertools.pairwise(clocks)), clocks
        for words in (facts.moves, facts.waits, facts.stale, facts.lost_when_one_dies):
            assert words.strip()
            assert not words.endswith(".")

    def test_it_is_told_apart_by_its_repr(self) -> None:
        # Ranks compare policies by their repr.
        assert repr(self.make()) == repr(self.make())
        assert " at 0x" not in repr(self.make())

    def test_its_state_survives_a_restart(self) -> None:
        old, new = self.make(), self.make()
        views = self.views()
        for view in views[: len(views) // 2]:
            old.plan(view)
        new.load_state_dict(_through_json(old.state_dict()))
        for view in views[len(views) // 2 :]:
            assert new.plan(view) == old.plan(view)


def check_transport(transport: Transport) -> None:
    """Check a transport. Every worker runs this at the same time, each on its own end. Raises `AssertionError`."""
    everybody = range(transport.size)
    assert 0 <= transport.rank < transport.size
    assert _rows(transport.gather([float(transport.rank), 0.5])) == [[float(r), 0.5] for r in everybody]
    early = transport.gather([1.0 + transport.rank])  # two in flight at the same time, read in the other order
    late = transport.gather([math.inf, -float(transport.rank)])
    assert _rows(late) == [[math.inf, -float(r)] for r in everybody]
    assert _rows(early) == [[1.0 + r] for r in everybody]
    assert math.isnan(_rows(transport.gather([math.nan]))[0][0])
    texts = transport.gather_text("é" * transport.rank)
    assert texts == tuple("é" * r for r in everybody)
    transport.close()
    transport.close()


def _rows(pending: Pending) -> list[list[float]]:
    table = pending.result()
    assert table is not None, "nothing of a gather is lost"
    return [[float(value) for value in row] for row in table]
