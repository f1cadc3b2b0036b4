"""The metrics of a watched run, served to Prometheus: the figures that ``uneven watch`` shows, and sums of the journal.

Their number grows with the workers and the lines between them, not with the length of the run.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from uneven.errors import ConfigError
from uneven.journal.pure.metrics import PHASES
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.terminal import WatchedRun, condition

_LATE = (0, 1, 2, 4, 8, 16, 32, 64)  # bounds of the histogram of staleness, in steps

Values = float | Mapping[Any, float]  # by label, or by a tuple of labels


class RunMetrics(Collector):
    """The metrics of a run, read when Prometheus asks for them."""

    def __init__(self, watched: WatchedRun) -> None:
        self._watched = watched

    def collect(self) -> list[Metric]:
        with self._watched.lock:
            return list(metrics(self._watched.state))


def metrics(state: RunProgress) -> Iterator[Metric]:
    """Yield the metrics of a state; those of the moment only while the run continues."""
    running = condition(state) == "running"
    if 0 in state.runs:
        settings = state.runs[0].settings
        about = {key: str(settings[key]) for key in ("balance", "sync") if key in settings}
        yield InfoMetricFamily("uneven_run", "The run and its settings.", about | {"run": state.runs[0].run})
    yield _gauge("running", "1 while the run continues, otherwise 0.", running)
    yield _gauge("workers", "Workers that take part.", state.members)
    hosts = {(rank, run.host): 1.0 for rank, run in state.runs.items()}
    yield _gauge("worker_info", "The host of a worker.", hosts, "rank", "host")
    if state.last is not None:
        yield _gauge("iterations", "Finished iterations, or global batches.", state.last.iteration + 1)
        yield _gauge("last_iteration_timestamp_seconds", "The end of the newest iteration.", state.newest_s)
    if state.planned is not None:
        yield _gauge("iterations_planned", "Iterations of the whole run.", state.planned)
    if running and state.last is not None:
        yield from _of_the_moment(state)
    yield from _sums(state)


def _of_the_moment(state: RunProgress) -> Iterator[Metric]:
    now = state.now()
    yield _gauge("samples_per_second", "Samples of all workers per second, recently.", now.samples_per_s)
    yield _gauge("iteration_seconds", "The duration of an iteration, recently.", now.iteration_s)
    yield _gauge("limit_ratio", "The shortest possible duration ÷ the duration.", now.fraction_of_limit)
    parts = {phase: getattr(now, f"{phase}_share") for phase in PHASES}
    yield _gauge("time_ratio", "The part of all workers' time in a phase, recently.", parts, "phase")
    speeds = {one.rank: one.speed_per_s for one in now.workers}
    text = "Samples per second of a worker's own data and compute time, recently."
    yield _gauge("worker_samples_per_second", text, speeds, "rank")
    yield _gauge("worker_share_samples", "A worker's samples of the global batch.", state.shares(), "rank")
    each = {(one.rank, phase): getattr(one, f"{phase}_share") for one in now.workers for phase in PHASES}
    yield _gauge("worker_time_ratio", "The part of a worker's time in a phase, recently.", each, "rank", "phase")


def _sums(state: RunProgress) -> Iterator[Metric]:
    yield _counter("worker_steps", "Steps of a worker, repeated ones included.", state.steps, "rank")
    yield _counter("worker_samples", "Samples of a worker's steps, repeated ones included.", state.samples, "rank")
    yield _counter("repeated_samples", "Samples that a resumed run took again.", state.repeated)
    yield _counter("lost_samples", "Samples whose update came too late and was dropped.", state.exchanged.lost)
    changes = state.changes.all
    moved = {"came": sum(len(one.came) for one in changes), "left": sum(len(one.left) for one in changes)}
    yield _counter("worker_changes", "Workers that came or left.", moved, "change")
    yield _counter("events", "The number of events in the journal with this name.", state.happened, "event")
    lines = state.messages.lines
    sent = {line: sum(one.sent_bytes for one in uses.values()) for line, uses in lines.items()}
    yield _counter("line_sent_bytes", "Bytes that all workers sent over a line.", sent, "line")
    waited = {line: sum(one.waited_s for one in uses.values()) for line, uses in lines.items()}
    yield _counter("line_wait_seconds", "Seconds that all workers' training threads waited for a line.", waited, "line")
    late = state.exchanged.late
    buckets = [(str(float(most)), float(sum(n for steps, n in late.items() if steps <= most))) for most in _LATE]
    yield HistogramMetricFamily(
        "uneven_exchange_staleness_steps",
        "Steps that a worker took while an exchange of parameters was in flight.",
        [*buckets, ("+Inf", float(late.total()))],
        sum(steps * n for steps, n in late.items()),
    )


def _gauge(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"uneven_{name}", text, labels=labels), values)


def _counter(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(f"uneven_{name}", text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in (values if isinstance(values, Mapping) else {(): values}).items():
        if math.isfinite(value):
            family.add_metric(list(map(str, labels if isinstance(labels, tuple) else (labels,))), value)
    return family


@contextmanager
def served(watched: WatchedRun, address: str) -> Iterator[str]:
    """Serve a run's metrics at ``[HOST:]PORT`` in a block; yield their URL.

    Without a host it is the loopback, and port 0 is any free port.

    Raises:
        ConfigError: not an address, or the port is in use.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--prometheus {address}: give a port, or HOST:PORT")
    registry = CollectorRegistry()
    registry.register(RunMetrics(watched))
    try:
        server, thread = start_http_server(int(port), host, registry)
    except OSError as error:
        raise ConfigError(
            f"port {port} on {host} cannot be used ({error.strerror}): give another one with --prometheus"
        ) from error
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
