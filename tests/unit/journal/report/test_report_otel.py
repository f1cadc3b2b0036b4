"""Spans of steps at a real OTLP receiver on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from apart_runs import ApartRun
from sample_runs import SampleRun

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from uneven.cli import main
from uneven.errors import ConfigError
from uneven.journal.report.track import LoggedValue, tracker, tracking


class Receiver(HTTPServer):
    """A collector that keeps the requests."""

    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Post)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for one in self.requests
            for resource in one.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def about(self) -> dict[str, str]:
        """Of the resource."""
        return {one.key: one.value.string_value for one in self.requests[0].resource_spans[0].resource.attributes}


class Post(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.paths.add(self.path)
        self.server.requests.append(
            ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        )
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def named(spans: list[Any], name: str) -> list[Any]:
    return [span for span in spans if span.name == name]


def length_s(span: Any) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9  # type: ignore[no-any-return]


def test_a_run_arrives_step_by_step(tmp_path: Path, receiver: Receiver) -> None:
    lab = SampleRun(iterations=12, balanced=False)
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(lab.write(tmp_path / "lab")), "--log-to", f"otel:{receiver.url}/"])
    assert ended.value.code == 0
    assert receiver.paths == {"/v1/traces"}
    assert receiver.about.items() >= {"service.name": "uneven", "uneven.run": "lab", "uneven.balance": "even"}.items()
    steps, spans = named(receiver.spans, "step"), receiver.spans
    assert len({step.trace_id for step in steps}) == 12, "a trace for each step"
    assert [step.attributes[0].value.int_value for step in steps] == list(range(12))
    for step in steps:
        (slow,) = (span for span in named(spans, "rank 3") if span.parent_span_id == step.span_id)
        parts = {span.name: length_s(span) for span in spans if span.parent_span_id == slow.span_id}
        assert length_s(step) == length_s(slow) == pytest.approx(0.002 + 128 / 100 + 0.01)
        assert parts == pytest.approx({"data": 0.002, "compute": 128 / 100, "communicate": 0.01}, abs=1e-6)
    (fast, *_) = named(spans, "rank 0")
    assert {one.key: one.value.int_value for one in fast.attributes} == {"uneven.rank": 0, "uneven.samples": 128}
    assert len(named(spans, "wait")) == 12 * 3
    (whole,) = named(spans, "run")
    assert any(one.key == "uneven.run/median_samples_per_s" for one in whole.attributes)


def test_asynchronous_workers_have_a_trace_for_each_global_batch(tmp_path: Path, receiver: Receiver) -> None:
    tracking.write(ApartRun(for_s=8.0).write(tmp_path / "lab"), tracker(f"otel:{receiver.url}"))
    steps = named(receiver.spans, "step")
    assert len(steps) == 18
    assert len(named(receiver.spans, "rank 2")) == 4, "only when it has finished a step"
    assert length_s(named(receiver.spans, "rank 2")[0]) == pytest.approx(2.0)


def test_a_trial_of_a_search_is_one_span(receiver: Receiver) -> None:
    run = tracker(f"otel:{receiver.url}").begin("trial 3", {"rate": 0.1, "nothing": None}, group="search")
    run.add([LoggedValue("user/loss", 2.0, 0, 1.7e9), LoggedValue("user/loss", 1.0, 1, 1.7e9 + 4)])
    run.end({"best/loss": 1.0})
    (span,) = receiver.spans
    assert (span.name, length_s(span)) == ("run", 4.0)
    assert receiver.about["uneven.group"] == "search"


def test_long_journals_drop_no_span(tmp_path: Path, receiver: Receiver) -> None:
    tracking.write(SampleRun(iterations=120).write(tmp_path / "lab"), tracker(f"otel:{receiver.url}"))
    assert len(named(receiver.spans, "step")) == 120
    assert len(receiver.requests) > 1


def test_a_collector_that_refuses(tmp_path: Path, receiver: Receiver) -> None:
    run = SampleRun(iterations=4).write(tmp_path / "lab")
    receiver.status = 401
    with pytest.raises(ConfigError, match=rf"{receiver.url}/v1/traces does not accept spans"):
        tracking.write(run, tracker(f"otel:{receiver.url}"))


def test_a_destination_that_is_no_address() -> None:
    with pytest.raises(ConfigError, match="give a collector's address, for instance otel:http://localhost:4318"):
        tracker("otel:traces")
