"""The real Prometheus scrapes ``uneven watch --prometheus``, and each query of the Grafana dashboard finds series."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from sample_runs import START_S, SampleRun

from test_pages import blocks
from uneven.cluster.emulate.ports import quiet_ports
from uneven.journal import Writer, rank_path
from uneven.policy.core.records import ExchangeRecord, LineRecord, MembershipRecord, Record
from uneven.runtime.jobs.processes import import_path

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason="no prometheus")

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "monitor.md"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "examples" / "cluster" / "grafana.json").read_text())
LAB = SampleRun(iterations=40)


def others(at_s: float) -> list[Record]:
    """What a run of other policies and an elastic run would write, too."""
    when = {"iteration": 20, "at_s": at_s}
    return [
        ExchangeRecord(rank=0, moment="background", members=4, samples=24, gap=8, late=2, **when),
        ExchangeRecord(rank=1, moment="step", members=4, samples=24, gap=1, late=1, dropped=1, **when),
        LineRecord(rank=0, line="gradients", exchanges=20, sent_bytes=4_000_000, waited_s=0.5, **when),
        MembershipRecord(rank=0, generation=1, members=(0, 1, 3, 4), came=(4,), left=(2,), border=21, **when),
    ]


def append(run: Path, *records: Record) -> None:
    for record in records:
        with Writer(rank_path(run, record.rank)) as writer:
            writer.write(record)


def until(true: Callable[[], Any], within_s: float = 60.0) -> Any:
    """What is true in the end."""
    limit_s = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < limit_s
        time.sleep(0.1)
    return found


class Asked:
    """A Prometheus that scrapes a page of metrics."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def query(self, text: str) -> list[dict[str, Any]]:
        found = self._get("query", {"query": text})["result"]
        assert isinstance(found, list)
        return found

    def value(self, text: str) -> float | None:
        rows = self.query(text)
        return float(rows[0]["value"][1]) if rows else None

    def runs(self, selector: str) -> list[str]:
        found: list[str] = self._get("label/instance/values", {"match[]": selector})  # type: ignore[assignment]
        return found

    def _get(self, path: str, words: dict[str, str]) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(words)}", timeout=30) as answer:
            read = json.load(answer)
        assert read["status"] == "success"
        return read["data"]  # type: ignore[no-any-return]


@contextmanager
def process(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(words, text=True, **options) as started:
        try:
            yield started
        finally:
            started.terminate()


@contextmanager
def exporter(run: Path) -> Iterator[str]:
    words = (sys.executable, "-m", "uneven", "watch", str(run), "--prometheus", "0", "--every", "0.1")
    env = {**os.environ, "PYTHONPATH": import_path(), "COLUMNS": "200"}
    with process(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as watching:
        assert watching.stdout is not None
        said = watching.stdout.readline()
        found = re.search(r"metrics at (http\S+)", said)
        assert found is not None, said + watching.stdout.read()
        yield found[1]


@contextmanager
def scraped(url: str, folder: Path) -> Iterator[Asked]:
    """The configuration of the page, with the exporter's port, and more often."""
    (text,) = blocks(PAGE.read_text(), "yaml")
    settings = yaml.safe_load(text)
    settings["global"] = {"scrape_interval": "200ms"}
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [urllib.parse.urlsplit(url).netloc]
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(settings))
    subprocess.run([str(PROMTOOL), "check", "config", config], check=True, capture_output=True)
    (port,) = quiet_ports(1)
    words = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with process(str(PROMETHEUS), *words, stderr=subprocess.DEVNULL):
        asked = Asked(port)
        until(lambda: answers(asked))
        yield asked


def answers(asked: Asked) -> bool:
    try:
        return asked.value("up") == 1.0
    except OSError:
        return False


def expressions(instance: str) -> list[str]:
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [one.replace("$instance", instance).replace("$__rate_interval", "1m") for one in found]


def test_prometheus_scrapes_a_run_that_grows_ends_and_is_resumed(tmp_path: Path) -> None:
    run = LAB.write(tmp_path / "lab", end=False)
    append(run, *others(START_S + 60))
    with exporter(run) as url, scraped(url, tmp_path) as asked:
        with urllib.request.urlopen(url, timeout=30) as answer:
            checked = subprocess.run(
                [str(PROMTOOL), "check", "metrics"], input=answer.read().decode(), capture_output=True, text=True
            )
        assert (checked.returncode, checked.stderr) == (0, "")

        until(lambda: asked.value("uneven_iterations") == 39)
        assert len(asked.query("uneven_worker_share_samples")) == 4
        append(run, *others(START_S + 61))  # so that rates have something between two scrapes
        until(lambda: asked.value("uneven_line_sent_bytes_total") == 8_000_000)
        found = re.fullmatch(r"label_values\((\w+), instance\)", DASHBOARD["templating"]["list"][1]["query"]["query"])
        assert found is not None
        (instance,) = asked.runs(found[1])
        empty = [one for one in expressions(instance) if not asked.query(one)]
        assert empty == []
        (alert,) = blocks(PAGE.read_text(), "text")
        assert len(asked.query(alert)) == 1, "its last iteration was long ago"
        assert asked.value("uneven_workers") == 4

        LAB.write(run, first=40)  # a life that does nothing but end
        until(lambda: asked.value("uneven_running") == 0)
        assert asked.query("uneven_samples_per_second") == []
        LAB.write(run, first=30, start_s=START_S + 1e6, end=False)
        until(lambda: asked.value("uneven_running") == 1)
        assert asked.value("uneven_repeated_samples_total") == 10 * LAB.global_batch
        assert asked.value("sum(increase(uneven_worker_samples_total[1m])) < 20 * 512"), "no reset of a counter"


def test_every_metric_of_the_dashboard_is_on_the_page() -> None:
    page = PAGE.read_text()
    queried = {name for one in expressions("") for name in re.findall(r"uneven_\w+", one)}
    named = {re.sub("_(sum|count|bucket)$", "", name) for name in queried}
    assert len(named) >= 15
    assert {name for name in named if f"`{name}`" not in page} == set()
