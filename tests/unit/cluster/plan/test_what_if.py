"""What a recorded run would have been like; the recorded runs are simulated ones, so that the truth is known."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from uneven.cli import main, what_if_page
from uneven.cluster import files
from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.cluster.pure.describe.write import to_toml
from uneven.cluster.pure.plan.what_if import AS_IT_WAS, RecordedCase, _workload, one_more, parse, simulated
from uneven.cluster.pure.simulate import Scenario, costs_from_journal, described, simulate, with_recorded_speeds
from uneven.errors import ConfigError, UnknownNameError
from uneven.journal import ManyWriters, read
from uneven.journal.report.console import Console
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Affine
from uneven.policy.core.records import LineRecord, RunRecord, StepRecord
from uneven.policy.sync import policies
from uneven.runtime import rundir
from uneven.runtime.launch import Launch
from uneven.runtime.launch.worker_env import variables
from uneven.runtime.world import discover

ITERATIONS = 120
SPEC = files.load("demo4")


def played(spec: ClusterSpec, run: Path | None = None, *, balance: str = "even", sync: str = "bsp") -> float:
    """Samples per second; with a journal in ``run``."""
    scenario = Scenario(
        spec=spec, balancer=balancers.resolve(balance), policy=policies.resolve(sync), iterations=ITERATIONS,
        balance=balance, sync=sync,
    )  # fmt: skip
    if run is None:
        return simulate(scenario).samples_per_s
    rundir.create(run, {})
    with ManyWriters(run) as writers:
        return simulate(scenario, writers.write).samples_per_s


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "even"
    played(SPEC, path)
    return path


def case(run: Path) -> RecordedCase:
    costs = costs_from_journal(read(run).records())
    return RecordedCase(spec=described(costs), balance="even", sync="bsp", exchange_s=costs.exchange_s)


def test_the_run_as_it_was(run: Path) -> None:
    found = what_if_page.what_if(run, [], 0)
    assert abs(found.error) < 0.03
    assert found.played[0].words == AS_IT_WAS


def test_what_is_expected_comes_true(run: Path) -> None:
    nodes = SPEC.nodes
    twins = replace(SPEC, nodes=(*nodes[:3], replace(nodes[0], name=nodes[3].name)))
    three = replace(SPEC, nodes=nodes[:3])
    truth = {
        "rank 3 as fast as rank 0": played(twins),
        "without the straggler": played(three),
        "without rank 3": played(three),
        "with lb-bsp": played(SPEC, balance="lb-bsp"),
        "one more like rank 0": played(one_more(SPEC, 0)),
    }
    found = what_if_page.what_if(run, list(truth), 0)
    for one in found.played[1:]:
        assert found.gain(one) * found.measured_per_s == pytest.approx(truth[one.words], rel=0.08)


def test_speeds_that_changed_are_played_as_they_changed(tmp_path: Path) -> None:
    slowed = replace(SPEC, events=(Event(do=Do.SLOW, node=SPEC.nodes[0].name, at_iteration=60, factor=0.1),))
    played(slowed, tmp_path / "slowed")
    found = what_if_page.what_if(tmp_path / "slowed", [], 0)
    early, late = found.played[0].durations_s[10:50], found.played[0].durations_s[-30:]
    was_early, was_late = found.durations_s[10:50], found.durations_s[-30:]
    assert sum(was_late) / 30 > 1.3 * sum(was_early) / 40
    assert sum(early) / 40 == pytest.approx(sum(was_early) / 40, rel=0.1)
    assert sum(late) / 30 == pytest.approx(sum(was_late) / 30, rel=0.1)
    steady = described(costs_from_journal(read(tmp_path / "slowed").records()))
    moving, _ = with_recorded_speeds(steady, read(tmp_path / "slowed").records())
    parts = moving.nodes[0].share.values
    assert min(parts) < 0.2 < 0.9 < max(parts)


def test_a_link_and_a_shadow(run: Path) -> None:
    linked = parse("on a 10 Mbit/s link")(case(run))
    assert {node.up_bit_per_s.values for node in linked.spec.nodes if node.up_bit_per_s} == {(1e7,)}
    assert parse("with shadow:ma")(case(run)).sync == "shadow:ma"
    assert parse("With static:shares=4/3/2/1")(case(run)).balance == "static:shares=4/3/2/1"
    found = what_if_page.what_if(run, ["with shadow:ma"], 0)
    assert found.gain(found.played[1]) > 1
    both = parse("an exchange 0.5 times as long and with lb-bsp and with local:every=8")(
        replace(case(run), exchange_s=(0.1,) * 4)
    )
    assert (both.exchange_s, both.balance, both.sync) == ((0.05,) * 4, "lb-bsp", "local:every=8")
    with pytest.raises(ConfigError, match=r"with diloco:every=500: an exchange comes every 500 steps, and .* took 120"):
        what_if_page.what_if(run, ["with diloco:every=500"], 0)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("faster, please", ConfigError, 'write it as in "rank 3 as fast as rank 0"'),
        ("with lb-bps", UnknownNameError, "did you mean 'lb-bsp'"),
        ("rank 9 as fast as rank 0", ConfigError, "rank 9 does not exist: the run had ranks 0 to 3"),
        ("without rank 4", ConfigError, "rank 4 does not exist"),
        ("on a 10 Gbyte/s link", ConfigError, "write it as in"),
    ],
)
def test_changes_that_cannot_be(run: Path, text: str, kind: type[ConfigError], message: str) -> None:
    with pytest.raises(kind, match=message):
        parse(text)(case(run))


def test_the_last_worker_cannot_go(run: Path) -> None:
    alone = case(run)
    for _ in range(3):
        alone = parse("without the straggler")(alone)
    with pytest.raises(ConfigError, match="is the only worker"):
        parse("without the straggler")(alone)


def test_of_another_link_a_run_without_counted_bytes_says_nothing(run: Path) -> None:
    with pytest.raises(ConfigError, match="has not counted the bytes of its gradients"):
        what_if_page.what_if(run, ["on a 1 Gbit/s link"], 0)


def test_speeds_and_rate_are_those_of_the_newest_start(run: Path, tmp_path: Path) -> None:
    slowed = Event(do=Do.SLOW, node=SPEC.nodes[0].name, at_s=5.0, factor=0.3)
    played(replace(SPEC, nodes=SPEC.nodes[:2], events=(slowed,)), tmp_path / "alone")
    alone, later_s = [*read(tmp_path / "alone").records()], 1e6
    resumed = [
        replace(one, started_at_s=one.started_at_s + later_s)
        if isinstance(one, RunRecord)
        else replace(one, iteration=one.iteration + ITERATIONS, ended_at_s=one.ended_at_s + later_s)
        for one in alone
        if isinstance(one, RunRecord | StepRecord)
    ]
    both = simulated("both", [*read(run).records(), *resumed], [], 0)
    newest = simulated("newest", alone, [], 0)
    assert both.error == pytest.approx(newest.error, abs=0.02)


def test_a_ring_sends_more_than_its_sum() -> None:
    started = RunRecord(run="r", rank=0, world_size=4, host="h", pid=1, started_at_s=0.0)
    sent = LineRecord(
        rank=0, iteration=9, at_s=0.0, line="gradients", exchanges=10, sent_bytes=60_000_000, waited_s=0.0
    )
    assert _workload(Workload(), [started, sent], []).gradient_bytes == 4_000_000


def test_on_the_command_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--what-if", "without the straggler", "--report", str(tmp_path / "w.html"), "--format", "json"]
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(run), *words])
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["words"] for one in told["what_if"]] == ["as it was", "without the straggler"]
    assert "Time per iteration" in (tmp_path / "w.html").read_text()


def test_a_run_with_prices_says_what_a_change_costs(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, priced := tmp_path / "priced")
    nodes = tuple(replace(node, price_per_hour=1.5) for node in SPEC.nodes)
    (priced / "cluster.toml").write_text(to_toml(replace(SPEC, nodes=nodes, currency="€")))
    found = what_if_page.what_if(priced, ["without the straggler", "one more like rank 0"], 0)
    assert [one.price.per_hour for one in found.played if one.price] == [6.0, 4.5, 7.5]
    assert what_if_page.to_json(found)["what_if"][2]["per_hour"] == 7.5
    console = Console(highlight=False, width=120, record=True)
    what_if_page.show(found, console)
    assert "€/10⁶ samples" in console.export_text()


BATCH, SHARES, SPEED = 64, (0.6, 0.4, 0.2, 0.1), 3.0
"""Each worker's samples; cores of each; how many times its share a worker computes at after a pause."""
STEP_CPU_S, EXCHANGE_CPU_S = 0.012, 0.002


def handmade(run: Path, *, told: bool) -> Path:
    """Under even shares and bsp: after the exchange's pauses all compute faster than their share for a while."""
    rundir.create(run, {})
    step_s = STEP_CPU_S / SHARES[-1] + EXCHANGE_CPU_S / SHARES[-1]
    with ManyWriters(run) as writers:
        for rank, share in enumerate(SHARES):
            settings = {"balance": "even", "sync": "bsp"} | ({"share": share} if told else {})
            writers.write(
                RunRecord(run="hand", rank=rank, world_size=4, host="h", pid=1, started_at_s=0.0, settings=settings)
            )
            compute_s, own_s = STEP_CPU_S / share / SPEED, EXCHANGE_CPU_S / share / SPEED
            for iteration in range(300):
                writers.write(
                    StepRecord(
                        rank=rank, iteration=iteration, epoch=0, batch=BATCH, global_batch=4 * BATCH, data_s=0.0,
                        compute_s=compute_s, exchange_s=step_s - compute_s, control_s=0.0,
                        ended_at_s=(iteration + 1) * step_s, transfer_s=own_s, local_cpu_s=STEP_CPU_S,
                        exchange_cpu_s=EXCHANGE_CPU_S,
                    )
                )  # fmt: skip
    return run


def test_without_a_pause_a_worker_is_no_faster_than_its_share(tmp_path: Path) -> None:
    changes = ["with shadow:ma"]
    told = what_if_page.what_if(handmade(tmp_path / "told", told=True), changes, 0)
    untold = what_if_page.what_if(handmade(tmp_path / "untold", told=False), changes, 0)
    assert abs(told.error) < 0.02  # the slowest sets the pace
    most = BATCH / STEP_CPU_S * sum(SHARES)
    assert 0.95 * most < told.played[1].samples_per_s < most
    assert untold.played[1].samples_per_s > 2 * most  # nothing says that it could not be


def test_an_exchange_in_the_background_takes_its_worker_s_processor_time() -> None:
    nodes = tuple(Node(name=f"rank{rank}", cost=Affine(0.010, 0.0)) for rank in range(2))
    workload = Workload(global_batch=8, epoch_samples=8, exchange_core_s=0.005)
    scenario = Scenario(
        spec=ClusterSpec(name="pair", nodes=nodes, workload=workload), iterations=200,
        balancer=balancers.resolve("even"), policy=policies.resolve("shadow:ma:load=1"),
    )  # fmt: skip
    assert [one.step_s for one in simulate(scenario).workers] == pytest.approx([0.010] * 2)
    within = simulate(replace(scenario, one_processor=True))  # all but two steps pay for an exchange that has ended
    assert [one.step_s for one in within.workers] == pytest.approx([0.010 + 0.005 * 198 / 200] * 2)


def test_the_launcher_tells_each_worker_its_share() -> None:
    told = variables(Launch(target=("train",), module=True, nproc="4", shares=SHARES), 4, None)
    assert [discover(told | {"LOCAL_RANK": str(rank)}).share for rank in range(4)] == list(SHARES)
    assert discover({}).share is None
    assert discover({"UNEVEN_SHARE": "0.6", "LOCAL_RANK": "1"}).share is None
    with pytest.raises(ConfigError, match="'x' is not a number of cores"):
        discover({"UNEVEN_SHARE": "x"})


def test_of_a_run_in_which_nobody_waited_all_steps_are_counted(tmp_path: Path) -> None:
    run, seconds, steps_per_s = tmp_path / "apart", 20, (10, 2)
    rundir.create(run, {})
    with ManyWriters(run) as writers:
        for rank, rate in enumerate(steps_per_s):
            settings = {"balance": "even", "sync": "asp"}
            writers.write(
                RunRecord(run="apart", rank=rank, world_size=2, host="h", pid=1, started_at_s=0.0, settings=settings)
            )
            for iteration in range(seconds * rate):
                writers.write(
                    StepRecord(
                        rank=rank, iteration=iteration, epoch=0, batch=8, global_batch=16, data_s=0.0,
                        compute_s=1 / rate, exchange_s=0.0, control_s=0.0, ended_at_s=(iteration + 1) / rate,
                    )
                )  # fmt: skip
    found = what_if_page.what_if(run, [], 0)
    assert found.measured_per_s == pytest.approx(8 * sum(steps_per_s))
    assert abs(found.error) < 0.03
