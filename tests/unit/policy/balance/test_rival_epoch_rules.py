"""The rivals that decide once an epoch: DBS/DLB and OmniLearn, against the specification's arithmetic."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path

import pytest

from uneven.cluster import files
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.errors import ConfigError
from uneven.policy.balance import balancers
from uneven.policy.core.records import Record, SplitRecord
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven.policy.sync import BSP
from uneven.testing.contracts import BalancerContract
from uneven_bench.balancers.rivals import RIVALS
from uneven_bench.balancers.rivals.dbs import Dbs, dbs_shares
from uneven_bench.balancers.rivals.epochs import Epochs
from uneven_bench.balancers.rivals.omnilearn import OmniLearn, omnilearn_round

TABLE = {
    # speeds: after round 1, settles at, max / min time (specification, §6.1)
    (1, 1, 1, 4): ((15, 15, 15, 85), (20, 20, 20, 71), 1.13),
    (1, 2, 3, 4): ((8, 23, 41, 58), (16, 23, 41, 48), 1.39),
}


def seen(view: BalanceView, speeds: tuple[float, ...], iteration: int, iterations: int = 1) -> BalanceView:
    """The view after ``iterations`` more iterations under its shares, up to ``iteration``."""
    rows = tuple(
        Observation(iteration=iteration, samples=x * iterations, local_s=iterations * x / v, iterations=iterations)
        for x, v in zip(view.shares, speeds, strict=True)
    )
    return dataclasses.replace(view, iteration=iteration, observed=rows, predicted_per_s=speeds)


def at_start(total: int, workers: int) -> BalanceView:
    return BalanceView(
        iteration=0, global_batch=total, members=tuple(range(workers)), shares=(total // workers,) * workers,
        observed=(None,) * workers, predicted_per_s=(math.nan,) * workers, limits=Limits.uniform(workers, total),
    )  # fmt: skip


@pytest.mark.parametrize("speeds", TABLE)
def test_omnilearn_drifts_as_the_specification_says(speeds: tuple[int, ...]) -> None:
    batches: tuple[int, ...] = (32, 32, 32, 32)
    rounds = []
    for _ in range(8):
        batches = omnilearn_round(batches, [b / v for b, v in zip(batches, speeds, strict=True)], total=128)
        rounds.append(batches)
    first, settled, ratio = TABLE[speeds]
    assert rounds[0] == first
    assert sum(rounds[0]) == 130
    assert min(rounds[0]) < 16, "the correction of the sum breaks the lower bound"
    assert rounds[1:] == [settled] * 7
    times = [b / v for b, v in zip(settled, speeds, strict=True)]
    assert round(max(times) / min(times), 2) == ratio


def test_omnilearn_leaves_small_changes_out() -> None:
    assert omnilearn_round((32, 32), (1.0, 1.1), total=64) == (32, 32)
    assert omnilearn_round((32, 32), (1.0, 1.1), total=64, dead_band=0.0) == (34, 31)


@pytest.mark.parametrize("speeds", TABLE)
def test_the_omnilearn_balancer_keeps_the_global_batch(speeds: tuple[float, ...]) -> None:
    balancer, view = OmniLearn(epoch=4), at_start(128, 4)
    reasons = set()
    for iteration in range(40):
        answer = balancer.split(seen(view, speeds, iteration))
        assert sum(answer.shares) == 128
        changed = answer.shares != view.shares
        assert not changed or iteration % 4 == 3
        reasons.add(answer.reason)
        view = dataclasses.replace(view, shares=answer.shares)
    bare = TABLE[speeds][1]
    assert max(abs(x - b) for x, b in zip(view.shares, bare, strict=True)) <= 2
    assert any("+2" in reason for reason in reasons)


def test_dbs_follows_the_speed_of_the_last_epoch() -> None:
    assert dbs_shares((32, 32, 32, 32), (32.0, 32.0, 32.0, 8.0), 128) == (19, 18, 18, 73)
    balancer, view = Dbs(epoch=10), at_start(100, 2)
    for iteration in range(10):
        view = dataclasses.replace(view, shares=balancer.split(seen(view, (3.0, 1.0), iteration)).shares)
        assert view.shares == ((75, 25) if iteration == 9 else (50, 50))
    for iteration in range(10, 20):  # half of the second epoch at another speed: the mean of both counts
        speeds = (3.0, 1.0) if iteration < 15 else (1.0, 1.0)
        view = dataclasses.replace(view, shares=balancer.split(seen(view, speeds, iteration)).shares)
    assert view.shares == (60, 40)


def test_an_epoch_is_over_when_all_have_reported_it() -> None:
    epochs, view = Epochs("test", 8), at_start(10, 2)
    assert epochs.take(view) is None
    assert epochs.take(seen(view, (1.0, 1.0), 4, iterations=5)) is None
    late = seen(view, (1.0, 1.0), 8, iterations=4)
    assert epochs.take(dataclasses.replace(late, observed=(late.observed[0], None))) is None
    state = epochs.state_dict()
    epochs = Epochs("test", 8)
    epochs.load_state_dict(state)
    passed = epochs.take(late)
    assert passed is not None
    assert [worker.iterations for worker in passed] == [9, 9]
    assert passed[0].iteration_s == 5.0
    assert epochs.take(seen(view, (1.0, 1.0), 15, iterations=7)) is not None, "epochs end at multiples"


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("dbs:epoch=0", "epoch = 0"),
        ("omnilearn:epoch=true", "epoch = True"),
        ("omnilearn:dead_band=-1", "dead_band = -1"),
        ("omnilearn:least=2", "must hold 1"),
        ("lbb:calm=0.5", "calm = 0.5"),
        ("lbb:profile=1/2", "give a Cubic of each rank"),
    ],
)
def test_wrong_settings_are_refused(spec: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        balancers.resolve(spec)


def test_the_rivals_are_named_where_the_benches_are_installed() -> None:
    written = tomllib.loads((Path(__file__).parents[4] / "benchmarks" / "pyproject.toml").read_text())
    named = written["project"]["entry-points"]["uneven.balancers"]
    for name, made in RIVALS.items():
        assert named[name] == f"{made.__module__}:{made.__name__}"
        assert name not in set(balancers)


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_is_a_name_like_any_other(name: str) -> None:
    assert isinstance(balancers.resolve(name), RIVALS[name])
    spec = files.load("demo4")
    records: list[Record] = []
    simulate(Scenario(spec=spec, balancer=balancers.resolve(name), policy=BSP(), iterations=200), records.append)
    shares = [one.shares for one in records if isinstance(one, SplitRecord)][-1]
    assert sum(shares) == spec.workload.global_batch
    assert shares[0] > 2 * shares[3], "0.6 of a core beside 0.1"


class TestDbs(BalancerContract):
    def make(self) -> Dbs:
        return Dbs(epoch=2)


class TestOmniLearn(BalancerContract):
    def make(self) -> OmniLearn:
        return OmniLearn(epoch=2)
