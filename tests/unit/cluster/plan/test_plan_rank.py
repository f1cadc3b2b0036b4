"""The order of the ranking, and what its numbers mean."""

from __future__ import annotations

import pytest

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload, steady
from uneven.cluster.pure.plan import Choice, CombinationResult, Figures, TrainingOutcome, ranked
from uneven.cluster.pure.plan import played as figures_of
from uneven.cluster.pure.simulate import Scenario, WorkerOutcome
from uneven.errors import ConfigError
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Affine
from uneven.policy.sync import policies


def figures(samples_per_s: float, limit_per_s: float = 100.0) -> Figures:
    worker = WorkerOutcome(
        rank=0, node="n", clock=1, steps=1, dropped=0, samples=1, batch=1, speed_per_s=limit_per_s, step_s=1.0,
        late_rate_per_s=1.0, compute_share=1.0, wait_share=0.0, communicate_share=0.0, began_at_s=0.0, ended_at_s=1.0,
    )  # fmt: skip
    return Figures(
        workers=(worker,), samples_per_s=samples_per_s, limit_per_s=limit_per_s, iteration_s=1.0, wait_share=0.0,
        communicate_share=0.0, steps_apart=0.0, ended_at_s=1.0,
    )  # fmt: skip


def result(
    balance: str, sync: str, speed: float, lesson: TrainingOutcome | None = None, refused: str | None = None
) -> CombinationResult:
    return CombinationResult(
        choice=Choice(balance, sync), facts=policies.resolve(sync).facts, figures=figures(speed), lesson=lesson,
        refused=refused,
    )  # fmt: skip


def names(rows) -> list[str]:  # type: ignore[no-untyped-def]
    return [f"{row.result.choice.balance} {row.result.choice.sync}" for row in rows]


def reached(at_s: float | None, best: float = 0.9, diverged: bool = False) -> TrainingOutcome:
    return TrainingOutcome(
        reached_s=at_s, reached_samples=None if at_s is None else int(at_s * 10), best=best, diverged=diverged
    )


def test_without_a_goal_samples_per_s_count() -> None:
    plan = ranked([result("even", "bsp", 20), result("even", "asp", 80, refused="no"), result("lb-bsp", "bsp", 50)])
    assert names(plan.rows) == ["even asp", "lb-bsp bsp", "even bsp"]
    assert plan.best_carried is not None
    assert names([plan.best, plan.best_carried, plan.baseline]) == ["even asp", "lb-bsp bsp", "even bsp"]
    assert [row.of_limit for row in plan.rows] == [0.8, 0.5, 0.2]


def test_with_a_goal_its_time_counts_and_who_misses_it_comes_last() -> None:
    plan = ranked([
        result("even", "asp", 80, reached(None, 0.95, diverged=True)),
        result("even", "ssp", 70, reached(None, 0.5)),
        result("even", "easgd", 60, reached(None, 0.8)),
        result("even", "bsp", 20, reached(9.0)),
        result("lb-bsp", "bsp", 50, reached(4.0)),
    ])  # fmt: skip
    assert names(plan.rows) == ["lb-bsp bsp", "even bsp", "even easgd", "even ssp", "even asp"]


def test_balancers_that_come_to_the_same_are_one_row() -> None:
    plan = ranked([
        result("proportional", "bsp", 50.2), result("lb-bsp", "bsp", 50.0), result("static", "bsp", 49.0),
        result("lb-bsp", "local", 50.0),
    ])  # fmt: skip
    assert names(plan.shown) == ["lb-bsp bsp", "lb-bsp local", "static bsp"]
    assert plan.shown[0].twins == ("proportional",)
    assert len(plan.rows) == 4


def test_without_even_shares_under_bsp_the_slowest_is_compared_with() -> None:
    assert names([ranked([result("lb-bsp", "bsp", 50), result("even", "asp", 30)]).baseline]) == ["even asp"]
    with pytest.raises(ValueError, match="no combination to rank"):
        ranked([])


def played(sync: str, balance: str = "even", iterations: int = 40, bit_per_s: float | None = None) -> Figures:
    line = None if bit_per_s is None else steady(bit_per_s)
    spec = ClusterSpec(
        name="two",
        nodes=(
            Node(name="fast", cost=Affine(0.0, 0.01), up_bit_per_s=line, site="east"),
            Node(name="slow", cost=Affine(0.0, 0.03), up_bit_per_s=line, site="west"),
        ),
        workload=Workload(global_batch=40, exchange_core_s=0.0, gradient_bytes=1_000_000),
    )
    policy = policies.resolve(sync)
    return figures_of(Scenario(spec=spec, balancer=balancers.resolve(balance), policy=policy, iterations=iterations))


def test_figures_of_even_shares_are_those_reckoned_by_hand() -> None:
    found = played("bsp")
    assert found.samples_per_s == pytest.approx(40 / 0.6)
    assert found.limit_per_s == pytest.approx(100 + 100 / 3)
    assert found.unequal == pytest.approx(3.0)
    assert (found.fastest.node, found.slowest.node) == ("fast", "slow")
    assert found.wait_share == pytest.approx(0.4 / 1.2)


def test_balanced_and_asynchronous_runs_come_to_the_limit() -> None:
    assert played("bsp", "static:shares=3/1").samples_per_s == pytest.approx(400 / 3)
    found = played("asp")
    assert found.samples_per_s == pytest.approx(400 / 3, rel=0.02)
    assert found.wait_share == 0.0
    fast, slow = found.workers
    assert fast.late_rate_per_s == pytest.approx(3 * slow.late_rate_per_s, rel=0.1)


def test_no_combination_is_above_the_limit() -> None:
    for sync in ("bsp", "ssp", "backup", "local", "shuffle", "easgd", "shadow:ma"):
        found = played(sync)
        assert found.samples_per_s <= found.limit_per_s * (1 + 1e-9)
    assert played("shadow:ma").steps_apart >= 1
    assert played("backup").dropped_share > 0


@pytest.mark.parametrize("sync", ["local:every=30", "hierarchical:every=30", "regional:every=5,across=6"])
def test_steps_that_no_exchange_follows_do_not_count(sync: str) -> None:
    assert played(sync, iterations=40, bit_per_s=1e6) == played(sync, iterations=30, bit_per_s=1e6)
    three = played(sync, iterations=90, bit_per_s=1e6)
    assert three == played(sync, iterations=29, bit_per_s=1e6) == played(sync, iterations=119, bit_per_s=1e6)


def test_a_background_exchange_that_outlasts_the_iterations_is_played_until_three_have_ended() -> None:
    found = played("shadow:ma", iterations=10, bit_per_s=2e6)  # an exchange takes 4 s, and ten iterations 3 s
    assert found.ended_at_s > 12


def test_what_has_never_learned_in_a_published_run_is_not_for_today() -> None:
    def result(sync: str, bit_per_s: float) -> CombinationResult:
        figures = played(sync, bit_per_s=bit_per_s)
        return CombinationResult(choice=Choice("even", sync), facts=policies.resolve(sync).facts, figures=figures)

    far, near = result("shadow:ma", 2e5), result("diloco:every=40", 2e5)
    assert far.unshown is not None
    assert "no published run that uneven knows learned with more than 30" in far.unshown
    assert near.unshown is None
    plan = ranked([far, near])
    assert plan.best.result is far
    assert plan.best_carried is not None
    assert plan.best_carried.result is near
    assert result("diloco:every=2001", 2e5).unshown is not None
    assert result("bsp", 2e5).unshown is None


def test_a_lead_is_played_until_it_is_used_up() -> None:
    slow = played("geo:lead=50", bit_per_s=1e2)
    assert 0 < slow.samples_per_s < played("geo:lead=50", bit_per_s=1e8).samples_per_s / 100


@pytest.mark.parametrize("sync", ["shadow:ma", "shadow:easgd", "decoupled"])
def test_an_exchange_that_does_not_end_gives_no_rate(sync: str) -> None:
    assert played(sync, bit_per_s=1e8).samples_per_s > 0
    with pytest.raises(ConfigError, match=r"no exchange of all workers ended in .* all bandwidths are in bit/s"):
        played(sync, bit_per_s=1e2)
