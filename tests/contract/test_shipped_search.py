"""The contract suites on every scheduler and searcher that comes along."""

from uneven.search.pure.schedulers import (
    Fifo,
    HyperBand,
    MedianStopping,
    PopulationBased,
    PromotingAsha,
    Scheduler,
    StoppingAsha,
    schedulers,
)  # fmt: skip
from uneven.search.pure.searchers import ConcurrencyLimit, GridSearch, RandomSearch, Searcher, searchers
from uneven.search.pure.space import Space, choice, grid, integer, loguniform, uniform
from uneven.search.with_optuna import OptunaPruner, OptunaSearch
from uneven.testing.search import SchedulerContract, SearcherContract


class TestFifo(SchedulerContract):
    def make(self) -> Scheduler:
        return Fifo()


class TestStoppingAsha(SchedulerContract):
    def make(self) -> Scheduler:
        return StoppingAsha(max_t=9, reduction_factor=3, brackets=2)


class TestPromotingAsha(SchedulerContract):
    def make(self) -> Scheduler:
        return PromotingAsha(max_t=9, reduction_factor=3)


class TestHyperBand(SchedulerContract):
    def make(self) -> Scheduler:
        return HyperBand(max_t=9)


class TestMedianStopping(SchedulerContract):
    def make(self) -> Scheduler:
        return MedianStopping(min_samples_required=2)


class TestSoftMedianStopping(SchedulerContract):
    def make(self) -> Scheduler:
        return MedianStopping(hard_stop=False, min_time_slice=2)


class TestPopulationBased(SchedulerContract):
    def make(self) -> Scheduler:
        return PopulationBased(perturbation_interval=2, max_t=9)


class TestPopulationInStep(SchedulerContract):
    def make(self) -> Scheduler:
        return PopulationBased(perturbation_interval=2, synch=True)


class TestRandomSearch(SearcherContract):
    def make(self) -> Searcher:
        return RandomSearch()


class TestRandomSearchOverAGrid(SearcherContract):
    space = Space({"a": grid(1, 2, 3), "b": uniform(0, 1), "c": grid("x", "y")})

    def make(self) -> Searcher:
        return RandomSearch()


class TestGridSearch(SearcherContract):
    space = Space({"a": choice(1, 2), "b": choice(True, None), "c": grid(0.1, 0.2)})

    def make(self) -> Searcher:
        return GridSearch()


class TestConcurrencyLimit(SearcherContract):
    space = Space({"a": loguniform(0.1, 1), "n": integer(2, 64, log=True)})

    def make(self) -> Searcher:
        return ConcurrencyLimit("random", max_concurrent=2)


class TestOptunaSearch(SearcherContract):
    def make(self) -> Searcher:
        return OptunaSearch("tpe")


class TestOptunaPruner(SchedulerContract):
    def make(self) -> Scheduler:
        return OptunaPruner("halving")


def test_every_shipped_one_is_tried() -> None:
    tried = {type(one().make()) for one in globals().values() if isinstance(one, type) and one.__name__[:4] == "Test"}
    assert {type(make()) for make in (*schedulers.values(), *searchers.values())} <= tried
