"""Metrics of a watched run: they agree with the terminal and the page, and last through ends and restarts."""

from __future__ import annotations

import io
import socket
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console
from sample_runs import START_S, SampleRun

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from uneven.errors import ConfigError
from uneven.journal import Writer, rank_path
from uneven.journal.report import screen
from uneven.journal.report.prometheus import metrics, served
from uneven.journal.report.pure.text import count, percent, seconds
from uneven.journal.report.terminal import WatchedRun
from uneven.policy.core.records import ExchangeRecord, LineRecord, MembershipRecord, Record

LAB = SampleRun(iterations=40, noise=0.05)


def add(run: Path, *records: Record) -> None:
    for record in records:
        with Writer(rank_path(run, record.rank)) as writer:
            writer.write(record)


def exchange(rank: int, *, moment: str = "step", late: int = 0, dropped: int = 0) -> ExchangeRecord:
    return ExchangeRecord(
        rank=rank, iteration=8, at_s=START_S, moment=moment, members=4, samples=24, gap=8, late=late, dropped=dropped
    )


def line(rank: int, name: str, sent_bytes: int) -> LineRecord:
    return LineRecord(rank=rank, iteration=8, at_s=START_S, line=name, exchanges=1, sent_bytes=sent_bytes, waited_s=0.5)


def values(watched: WatchedRun) -> dict[str, float]:
    """Each series as Prometheus would name it."""
    found = {}
    watched.update()
    for family in metrics(watched.state):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_the_figures_are_those_of_the_view_and_the_page(tmp_path: Path) -> None:
    run = LAB.write(tmp_path / "lab", end=False)
    watched = WatchedRun(run)
    found = values(watched)
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(screen.live(watched.state, "lab", 120, 40))
    said = console.export_text()
    assert f"{count(found['uneven_samples_per_second'])} samples/s" in said
    assert f"{seconds(found['uneven_iteration_seconds'])} per iteration" in said
    assert f"{percent(found['uneven_time_ratio{phase=wait}'])} waiting" in said
    assert f"{percent(found['uneven_limit_ratio'])} of the limit" in said
    rows = [line.split() for line in said.splitlines() if " node0 " in line]
    for rank, (row, share) in enumerate(zip(rows, LAB.shares(20), strict=True)):
        assert found[f"uneven_worker_share_samples{{rank={rank}}}"] == share == int(row[3])
        assert count(found[f"uneven_worker_samples_per_second{{rank={rank}}}"]) == row[2]
        phases = [found[f"uneven_worker_time_ratio{{phase={phase},rank={rank}}}"] for phase in ("data", "compute")]
        phases += [found[f"uneven_worker_time_ratio{{phase={phase},rank={rank}}}"] for phase in ("wait", "communicate")]
        assert sum(phases) == pytest.approx(1.0)
        assert percent(phases[2]) in " ".join(row)
        assert found[f"uneven_worker_steps_total{{rank={rank}}}"] == 40
    assert found["uneven_iterations"] == 39, "the newest one may not be complete"
    assert found["uneven_events_total{event=bad-report}"] == 1


def test_sums_of_exchanges_lines_and_members(tmp_path: Path) -> None:
    run = LAB.write(tmp_path / "lab", end=False)
    watched = WatchedRun(run)
    before = values(watched)
    assert (before["uneven_workers"], before["uneven_worker_info{host=node0,rank=3}"]) == (4, 1)
    add(run, exchange(0), exchange(1, late=3, dropped=1), exchange(2, moment="background", late=70, dropped=2))
    add(run, line(0, "gradients", 100), line(1, "gradients", 50), line(1, "reports", 7))
    change = {"iteration": 30, "at_s": START_S + 9, "generation": 1, "members": (0, 1, 3, 4), "border": 31}
    add(run, *(MembershipRecord(rank=rank, came=(4,), left=(2,), why="", **change) for rank in (0, 1)))
    found = values(watched)
    assert found["uneven_lost_samples_total"] == 24, "in the background a dropped exchange loses none"
    late = {bound: found[f"uneven_exchange_staleness_steps_bucket{{le={bound}}}"] for bound in ("0.0", "2.0", "4.0")}
    assert late == {"0.0": 1, "2.0": 1, "4.0": 2}
    assert found["uneven_exchange_staleness_steps_count"] == 3
    assert found["uneven_exchange_staleness_steps_sum"] / 3 == watched.state.exchanged.staleness
    assert found["uneven_line_sent_bytes_total{line=gradients}"] == 150
    assert found["uneven_line_wait_seconds_total{line=reports}"] == 0.5
    assert found["uneven_workers"] == 4
    assert found["uneven_worker_changes_total{change=left}"] == 1


def test_a_run_that_ends_and_is_resumed(tmp_path: Path) -> None:
    run = LAB.write(tmp_path / "lab")
    watched = WatchedRun(run)
    ended = values(watched)
    assert ended["uneven_running"] == 0
    assert "uneven_samples_per_second" not in ended, "an alert must not see the last speed of a run that is over"
    LAB.write(run, first=30, start_s=START_S + 1e6, end=False)
    resumed = values(watched)
    assert resumed["uneven_running"] == 1
    assert resumed["uneven_repeated_samples_total"] == 10 * LAB.global_batch
    assert all(value >= ended[name] for name, value in resumed.items() if name.partition("{")[0].endswith("_total"))
    assert resumed == values(WatchedRun(run)), "a new exporter counts the same"


def test_before_the_first_record(tmp_path: Path) -> None:
    assert values(WatchedRun(tmp_path))["uneven_running"] == 0


def test_they_are_served_on_the_loopback(tmp_path: Path) -> None:
    watched = WatchedRun(LAB.write(tmp_path / "lab", end=False))
    watched.update()
    with served(watched, "0") as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=30) as answer:
            families = {one.name: one for one in text_string_to_metric_families(answer.read().decode())}
        port = url.rpartition(":")[2].removesuffix("/metrics")
        with socket.socket() as other:
            other.bind(("127.0.0.2", int(port)))  # would be in use if it listened everywhere
        with pytest.raises(ConfigError, match=rf"port {port} on 127\.0\.0\.1 cannot be used"), served(watched, port):
            pass
    assert all(name.startswith("uneven_") for name in families)
    assert len(families["uneven_worker_samples"].samples) == 4


@pytest.mark.parametrize("address", ["", "http", "here:", "65536", "localhost:x", "-1"])
def test_an_address_that_is_none(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="give a port, or HOST:PORT"), served(WatchedRun(tmp_path), address):
        pass
