"""The slow loop in virtual time, and whole runs: deterministic, and as fast as they can be."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_world import Ran, cluster, node

from uneven import journal
from uneven.cluster import files
from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.spec import Node, Trace
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.errors import ConfigError, JournalError
from uneven.journal import ManyWriters
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Affine
from uneven.policy.core.records import ForecastRecord, RunRecord, to_json
from uneven.policy.sync import policies


def proportional(name: str, per_sample_s: float, **rest: object) -> Node:
    return Node(name=name, cost=Affine(0.0, per_sample_s), **rest)  # type: ignore[arg-type]


UNEVEN = (proportional("fast", 0.01), proportional("middle", 0.02), proportional("slow", 0.04))


def test_lb_bsp_finds_the_proportional_split_and_keeps_it() -> None:
    run = Ran(cluster(*UNEVEN, global_batch=70), balance="lb-bsp", iterations=30)
    assert run.splits[0].shares == (40, 20, 10)
    assert run.outcome.iteration_s == pytest.approx(0.4)
    assert [step.batch for step in run.of(0)][-1] == 40


def test_the_first_split_comes_when_it_would_in_a_real_run() -> None:
    # Iteration 0 warms up, the reports of iteration 1 are read at the end of iteration 2.
    for lookahead in (0, 4):
        run = Ran(cluster(*UNEVEN, global_batch=70), balance="lb-bsp", iterations=30, lookahead=lookahead)
        assert (run.splits[0].decided_at, run.splits[0].iteration) == (2, 3 + lookahead)
        batches = [step.batch for step in run.of(0)]
        assert batches[: 3 + lookahead] == [24] * (3 + lookahead)
        assert batches[3 + lookahead] == 40


def test_a_split_follows_a_node_that_becomes_slow() -> None:
    slow = Event(do=Do.SLOW, node="fast", at_iteration=40, factor=0.25)
    run = Ran(cluster(*UNEVEN, global_batch=70, events=(slow,)), balance="lb-bsp", iterations=120)
    assert run.of(0)[-1].batch == 17 or run.of(0)[-1].batch == 18  # 1 : 2 : 1 of 70
    assert all(split.iteration <= 3 or split.iteration > 40 for split in run.splits)


def test_the_memory_of_a_node_bounds_its_share() -> None:
    nodes = (proportional("fast", 0.01, memory_samples=25), *UNEVEN[1:])
    run = Ran(cluster(*nodes, global_batch=70), balance="lb-bsp", iterations=20)
    assert run.of(0)[-1].batch == 25
    assert sum(run.splits[-1].shares) == 70


def test_limits_that_cannot_be_met_are_refused() -> None:
    nodes = [proportional(f"n{i}", 0.01, memory_samples=10) for i in range(3)]
    with pytest.raises(ConfigError, match="upper limits add up to 30, less than the global batch of 70"):
        Ran(cluster(*nodes, global_batch=70))
    with pytest.raises(ConfigError, match="iterations = 0"):
        Ran(cluster(*nodes), iterations=0)


def test_what_was_learnt_of_those_who_stay_is_kept() -> None:
    death = Event(do=Do.KILL, node="middle", at_iteration=20)
    run = Ran(cluster(*UNEVEN, global_batch=70, events=(death,)), balance="lb-bsp", iterations=40)
    assert [step.batch for step in run.of(0)][20:] == [56] * 20  # 4 : 1, at once
    assert [step.batch for step in run.of(2)][20:] == [14] * 20


def test_a_newcomer_is_measured_and_then_gets_its_part() -> None:
    joining = Event(do=Do.JOIN, node="middle", at_iteration=20)
    run = Ran(cluster(*UNEVEN, global_batch=70, events=(joining,)), balance="lb-bsp", iterations=40)
    assert run.of(1)[0].iteration == 20
    assert run.of(1)[0].batch == 23  # the mean, until it has reported
    assert [run.of(rank)[-1].batch for rank in range(3)] == [40, 20, 10]
    after = [split for split in run.splits if split.iteration > 20]
    assert len(after[0].shares) == 3


def test_splits_of_members_with_gaps_are_columns_by_rank() -> None:
    death = Event(do=Do.KILL, node="fast", at_iteration=0)
    run = Ran(cluster(*UNEVEN, global_batch=60, events=(death,)), balance="lb-bsp", iterations=20)
    assert run.splits[0].shares == (0, 40, 20)
    assert run.splits[0].speeds_per_s[1:] == (pytest.approx(50.0), pytest.approx(25.0))


@pytest.mark.parametrize("policy", ["asp", "ssp:staleness=2", "local:every=4"])
def test_workers_that_do_not_keep_step_are_balanced_too(policy: str) -> None:
    run = Ran(cluster(*UNEVEN, global_batch=70), policy, balance="lb-bsp", iterations=60)
    assert run.splits
    assert sum(step.batch for step in run.steps if step.iteration == 59) == 70


CASES = [
    ("demo4", "lb-bsp", "bsp"),
    ("bandwidth_cut", "lb-bsp", "local:every=3"),
    ("spot", "lb-bsp", "ssp:staleness=2"),
    ("three_sites", "even", "hierarchical:every=4"),
    ("lb_bsp_gpu12", "even", "shadow:easgd:alpha=0.3"),
    ("lb_bsp_cpu32", "even", "backup:spares=4"),
]


def scenario(cluster_name: str, balance: str, sync: str, seed: int = 3) -> Scenario:
    return Scenario(
        spec=files.load(cluster_name),
        balancer=balancers.resolve(balance),
        policy=policies.resolve(sync),
        iterations=40,
        seed=seed,
    )


@pytest.mark.parametrize(("name", "balance", "sync"), CASES)
def test_the_same_seed_gives_the_same_journal_byte_for_byte(name: str, balance: str, sync: str, tmp_path: Path) -> None:
    texts = []
    for run in (tmp_path / "one", tmp_path / "two"):
        with ManyWriters(run) as writers:
            simulate(scenario(name, balance, sync), writers.write)
        texts.append({path.name: path.read_bytes() for path in (run / "journal").iterdir()})
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(files.load(name).initial_members) or name == "spot"


def test_another_seed_gives_another_journal_where_there_is_jitter() -> None:
    lines: list[list[str]] = [[], []]
    for seed, kept in enumerate(lines):
        simulate(scenario("lb_bsp_gpu12", "even", "bsp", seed), lambda record, kept=kept: kept.append(to_json(record)))
    assert lines[0] != lines[1]


def test_a_journal_of_many_ranks_is_read_like_any_other(tmp_path: Path) -> None:
    with ManyWriters(tmp_path) as writers:
        outcome = simulate(scenario("demo4", "lb-bsp", "bsp"), writers.write)
    read = journal.read(tmp_path)
    assert sorted(read.ranks) == [0, 1, 2, 3]
    first = read.ranks[2][0]
    assert isinstance(first, RunRecord)
    assert (first.world, first.host, first.started_at_s) == ("simulated", "node2", 0.0)
    summary = journal.summarize(journal.iterations(read.records()))
    assert summary.iterations == 39
    assert summary.iteration_s == pytest.approx(outcome.iteration_s)
    assert summary.samples_per_s == pytest.approx(256 / outcome.iteration_s)
    everything = journal.iterations(read.records())
    waited_s = sum(timing.wait_s for one in everything for timing in one.timings.values())
    time_s = sum(timing.total_s for one in everything for timing in one.timings.values())
    assert outcome.wait_share == pytest.approx(waited_s / time_s)
    with pytest.raises(JournalError, match="already has a journal"):
        ManyWriters(tmp_path)


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    writers = ManyWriters(tmp_path)
    (tmp_path / "journal").write_text("in the way")
    writers.write(RunRecord(run="x", rank=0, world_size=1, host="h", pid=0, started_at_s=0.0))
    with pytest.raises(JournalError, match="cannot write the journal"):
        writers.flush()


def test_the_limit_of_a_trace_is_followed() -> None:
    nodes = (proportional("steady", 0.01), proportional("changing", 0.01, share=Trace(values=(1.0, 0.2), step_s=100.0)))
    even = Ran(cluster(*nodes, global_batch=100), iterations=240)
    balanced = Ran(cluster(*nodes, global_batch=100), balance="lb-bsp", iterations=240)
    # 200 iterations in the first 100 s; then 2.5 s each with even shares, and 0.83 s with those that fit.
    assert even.outcome.ended_at_s == 200.0
    assert 100.0 + 40 * 0.83 < balanced.outcome.ended_at_s < 170.0
    assert balanced.of(1)[-1].batch == 17


def test_progress_is_told_as_iterations_end() -> None:
    told: list[int] = []
    simulate(scenario("demo4", "even", "bsp"), progress=told.append)
    assert told == list(range(1, 41))


def test_the_sixteen_cards_gain_more_than_the_twelve() -> None:
    gains = []
    for name in ("lb_bsp_gpu16", "lb_bsp_gpu12"):
        even, balanced = (simulate(scenario(name, balance, "bsp")) for balance in ("even", "lb-bsp"))
        gains.append(balanced.samples_per_s / even.samples_per_s)
    assert gains[0] > gains[1] > 1.1


@pytest.mark.rest
def test_ten_thousand_workers_meet_in_each_iteration() -> None:
    nodes = tuple(node(f"n{rank}", 1.0 + rank * 1e-4) for rank in range(10_000))
    outcome = simulate(
        Scenario(
            spec=cluster(*nodes), balancer=balancers.resolve("lb-bsp"), policy=policies.resolve("bsp"), iterations=2
        )
    )
    assert outcome.happened > 2 * 10_000
    assert outcome.workers[9_999].steps == 2


def test_what_workers_foretell_is_written_with_their_reports() -> None:
    ran = Ran(cluster(*UNEVEN, global_batch=70), balance="lb-bsp", iterations=30)
    told = [record for record in ran.records if isinstance(record, ForecastRecord)]
    assert {record.rank: record.predicted_per_s for record in told} == pytest.approx({0: 100.0, 1: 50.0, 2: 25.0})
    assert all(0 < record.iteration < 30 for record in told)
