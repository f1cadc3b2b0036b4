"""The tracker for OpenTelemetry: a trace for each step, sent by OTLP over HTTP to a collector.

::

    step                      from the start of the slowest worker's step to the end of the step
    └── rank 0, rank 1, …     a worker's part of it
        └── data, compute, wait, communicate

Each step is its own trace, so the SDK's samplers thin out long runs (``OTEL_TRACES_SAMPLER``), and no trace grows with
the run.
"""

import os
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, set_span_in_context

from uneven.errors import ConfigError
from uneven.journal.pure.metrics import PHASES
from uneven.journal.report.pure.points import LoggedValue, Plain
from uneven.journal.report.track.tracker import TrackedRun, Tracker, by_step

_AT_ONCE = 512  # spans in one request, as in the SDK


class OpenTelemetry(Tracker):
    """A collector's address ``otel:http://HOST:4318``, to which ``/v1/traces`` is added."""

    def __init__(self, where: str) -> None:
        if not where.startswith(("http://", "https://")):
            raise ConfigError(
                f"--log-to otel:{where}: give a collector's address, for instance otel:http://localhost:4318"
            )
        self._address = f"{where.rstrip('/')}/v1/traces"

    def begin(self, name: str, settings: Mapping[str, Plain], *, group: str = "") -> TrackedRun:
        about = {f"uneven.{key}": value for key, value in settings.items() if value is not None}
        about |= {"service.name": os.environ.get("OTEL_SERVICE_NAME", "uneven"), "uneven.run": name}
        return _TracedRun(self._address, Resource.create(about | ({"uneven.group": group} if group else {})))


class _TracedRun(TrackedRun):
    def __init__(self, address: str, resource: Resource) -> None:
        self._address = address
        self._exporter = OTLPSpanExporter(endpoint=address)
        # The SDK's own batches would drop the spans of a long journal, which come faster than they are sent.
        self._ended = InMemorySpanExporter()
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(SimpleSpanProcessor(self._ended))
        self._tracer = self._provider.get_tracer("uneven")
        self._span_s: tuple[float, float] | None = None  # first and last Unix time of a point

    def add(self, points: Sequence[LoggedValue]) -> None:
        for point in points:
            self._span_s = (self._span_s[0] if self._span_s else point.at_s, point.at_s)
        for step, same in by_step(points):
            workers: dict[int, dict[str, float]] = {}
            for point in same:
                who, _, what = point.name.partition("/")
                if who.startswith("rank "):
                    workers.setdefault(int(who.removeprefix("rank ")), {})[what] = point.value
            # An asynchronous worker without a step in this piece has a share, but no times.
            timed = {rank: values for rank, values in workers.items() if "compute_s" in values}
            if timed:
                self._step(step, max(point.at_s for point in same), timed)
        self._send()

    def end(self, results: Mapping[str, float]) -> None:
        if self._span_s is not None:
            start_s, end_s = self._span_s
            span = self._begin("run", start_s, Context())
            span.set_attributes({f"uneven.{name}": value for name, value in results.items()})
            span.end(_ns(end_s))
        self._send()
        self._provider.shutdown()
        self._exporter.shutdown()

    def _step(self, step: int, end_s: float, workers: Mapping[int, Mapping[str, float]]) -> None:
        totals_s = {rank: sum(values[f"{phase}_s"] for phase in PHASES) for rank, values in workers.items()}
        whole = self._begin("step", end_s - max(totals_s.values()), Context())
        whole.set_attribute("uneven.iteration", step)
        for rank, values in workers.items():
            at_s = end_s - totals_s[rank]
            part = self._begin(f"rank {rank}", at_s, set_span_in_context(whole))
            part.set_attributes({"uneven.rank": rank, "uneven.samples": int(values["share"])})
            for phase in PHASES:
                length_s = values[f"{phase}_s"]
                if length_s > 0:
                    # The journal has only lengths; this order is a simplification, as in the trace for Perfetto.
                    self._begin(phase, at_s, set_span_in_context(part)).end(_ns(at_s + length_s))
                    at_s += length_s
            part.end(_ns(end_s))
        whole.end(_ns(end_s))

    def _begin(self, name: str, at_s: float, context: Context) -> Span:
        return self._tracer.start_span(name, context=context, start_time=_ns(at_s))

    def _send(self) -> None:
        spans = self._ended.get_finished_spans()
        self._ended.clear()
        for start in range(0, len(spans), _AT_ONCE):
            if self._exporter.export(spans[start : start + _AT_ONCE]) is not SpanExportResult.SUCCESS:
                raise ConfigError(
                    f"{self._address} does not accept spans: start a collector there, or give another address"
                )


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)
