"""Test suites that schedulers and searchers inherit. They need pytest and hypothesis.

To test a scheduler, write::

    from uneven.testing.search import SchedulerContract

    class TestMine(SchedulerContract):
        def make(self):
            return Mine(max_t=9)

pytest then runs the whole suite on it, with the same examples in every run.
"""

import json
import math
from abc import ABC, abstractmethod
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.search.pure.core import Happened, SearchCore
from uneven.search.pure.decisions import Move
from uneven.search.pure.schedulers import Fifo, Scheduler
from uneven.search.pure.searchers import NoneNow, RandomSearch, Searcher
from uneven.search.pure.space import Plain, Space, choice, integer, loguniform, uniform
from uneven.search.pure.trial_records import SearchTerms, TrialStatus

_examples = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)

SPACE = Space({"rate": loguniform(1e-3, 1.0), "width": choice(8, 16), "depth": integer(1, 4), "mix": uniform(0, 1)})
_LONGEST_T = 12


class SimulatedEvents:
    """A search that was simulated to its end on some slots, with crashes and random scores."""

    def __init__(self, core: SearchCore, seed: int, slots: int, stop_after: int | None = None) -> None:
        self.events: list[Happened] = []
        self.moves: list[tuple[int, float, str]] = []
        core.note = self._note
        self._core = core
        self._random = Random(seed)
        self._t: dict[int, float] = {}
        # A restored core starts like one whose search was killed.
        for trial in core.interrupted():
            assert core.trials[trial].status is not TrialStatus.RUNNING
        running: list[int] = []
        while stop_after is None or len(self.moves) < stop_after:
            while len(running) < slots and (one := core.start()) is not None:
                running.append(one.number)
                self._t[one.number] = one.t
            if not running:
                break
            if not self._step(running[self._random.randrange(len(running))]):
                running = [trial for trial in running if core.trials[trial].status is TrialStatus.RUNNING]

    def _note(self, event: Happened) -> None:
        # Through JSON, because a real search reads its events from a file.
        self.events.append(json.loads(json.dumps(event)))

    def _step(self, trial: int) -> bool:
        core, draw = self._core, self._random.random()
        if draw < 0.03:
            core.failed(trial, "it crashed")
            return False
        t = self._t[trial] = self._t[trial] + 1
        if t > _LONGEST_T:
            core.ended(trial)
            return False
        ruling = core.reported(trial, t, self._random.gauss(t, 5.0))
        self.moves.append((trial, t, ruling.move.value))
        if ruling.save:
            core.saved(trial, t)
        return ruling.move is Move.CONTINUE and ruling.clone is None


class SchedulerContract(ABC):
    """The tests of every scheduler."""

    @abstractmethod
    def make(self) -> Scheduler:
        """Return a new scheduler."""

    def core(self, trials: int, seed: int) -> SearchCore:
        terms = SearchTerms(metric="score", trials=trials, max_failures=1, seed=seed)
        return SearchCore(terms, SPACE, self.make(), RandomSearch())

    @_examples
    @given(trials=st.integers(1, 12), slots=st.integers(1, 5), seed=st.integers(0, 999))
    def test_every_search_comes_to_an_end(self, trials: int, slots: int, seed: int) -> None:
        core = self.core(trials, seed)
        SimulatedEvents(core, seed, slots)
        assert core.over
        assert len(core.trials) == trials
        core.close()
        assert all(one.over for one in core.trials)

    @_examples
    @given(trials=st.integers(1, 12), slots=st.integers(1, 5), seed=st.integers(0, 999))
    def test_the_same_events_lead_to_the_same_answers(self, trials: int, slots: int, seed: int) -> None:
        first, second = (SimulatedEvents(self.core(trials, seed), seed, slots) for _ in range(2))
        assert first.moves == second.moves
        assert first.events == second.events

    @_examples
    @given(trials=st.integers(2, 12), slots=st.integers(1, 4), seed=st.integers(0, 999), cut=st.integers(1, 60))
    def test_one_that_was_killed_goes_on_as_if_it_had_not_been(
        self, trials: int, slots: int, seed: int, cut: int
    ) -> None:
        whole, again = self.core(trials, seed), self.core(trials, seed)
        events = SimulatedEvents(whole, seed, slots, stop_after=cut).events
        for event in events:
            again.apply(event)
        assert list(map(repr, again.trials)) == list(map(repr, whole.trials))  # as text: NaN is not equal to NaN
        rest = [SimulatedEvents(core, seed + 1, slots).moves for core in (whole, again)]
        assert rest[0] == rest[1]

    @_examples
    @given(trials=st.integers(2, 12), seed=st.integers(0, 999), cut=st.integers(1, 60))
    def test_to_choose_is_to_look(self, trials: int, seed: int, cut: int) -> None:
        core = self.core(trials, seed)
        SimulatedEvents(core, seed, 3, stop_after=cut)
        waiting = (TrialStatus.PENDING, TrialStatus.PAUSED)
        queues = tuple([one.number for one in core.trials if one.status is status] for status in waiting)
        chosen = {core.scheduler.choose(*queues) for _ in range(3)}
        assert len(chosen) == 1
        assert chosen <= {*queues[0], *queues[1], None}

    def test_a_score_that_is_no_number_does_no_harm(self) -> None:
        terms = SearchTerms(metric="score", trials=4, nonfinite="keep")
        core = SearchCore(terms, SPACE, self.make(), RandomSearch())
        while (one := core.start()) is not None:
            t = one.t
            while one.status is TrialStatus.RUNNING:
                t += 1
                if t > _LONGEST_T:
                    core.ended(one.number)
                else:
                    core.reported(one.number, t, math.nan)
        assert core.over


class SearcherContract(ABC):
    """The tests of every searcher."""

    space: Space = SPACE

    @abstractmethod
    def make(self) -> Searcher:
        """Return a new searcher."""

    def suggested(self, count: int, seed: int) -> list[dict[str, Plain]]:
        """Return the settings of up to `count` trials; each gets a score before the next suggestion."""
        searcher = self.make()
        searcher.begin(self.space, seed)
        found = []
        for trial in range(count):
            params = searcher.suggest(trial)
            if isinstance(params, NoneNow):
                break
            found.append(dict(params))
            searcher.tell(trial, float(trial % 3) if trial % 5 else None)
        return found

    def test_what_it_suggests_is_in_the_space(self) -> None:
        found = self.suggested(20, seed=1)
        assert found
        for params in found:
            assert set(params) == set(self.space)
            assert all(self.space[name].holds(value) for name, value in params.items())
            assert json.loads(json.dumps(params)) == params

    def test_the_same_seed_suggests_the_same(self) -> None:
        assert self.suggested(12, seed=3) == self.suggested(12, seed=3)

    def test_it_learns_of_earlier_results_or_says_that_it_does_not(self) -> None:
        core = SearchCore(SearchTerms(metric="score", trials=4), self.space, Fifo(), self.make())
        results = [(params, float(place)) for place, params in enumerate(self.suggested(8, seed=2))]
        try:
            core.learn(results)
        except ConfigError as error:
            said = str(error)
        else:
            said = ""
        assert said.startswith("warm_start: ") or core.learnt == len(results)
        one = core.start()
        assert one is not None
        assert all(self.space[name].holds(value) for name, value in one.params.items())

    def test_a_search_with_it_comes_back_from_its_events(self) -> None:
        def core() -> SearchCore:
            return SearchCore(SearchTerms(metric="score", trials=8, seed=5), self.space, Fifo(), self.make())

        first, again = core(), core()
        for event in SimulatedEvents(first, 5, 2, stop_after=20).events:
            again.apply(event)
        assert [one.params for one in again.trials] == [one.params for one in first.trials]
        assert SimulatedEvents(first, 6, 2).events == SimulatedEvents(again, 6, 2).events
