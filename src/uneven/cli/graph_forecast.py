"""``uneven plan CLUSTER --graph PARTS`` and ``uneven simulate CLUSTER --graph PARTS``: your graph on your machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven.core.phase import WorkPhase
from uneven.errors import ConfigError
from uneven.graph.capacity import GraphRates
from uneven.graph.source import GraphSource
from uneven.graph.store import GraphStore
from uneven.report.console import Console
from uneven.report.text import seconds
from uneven.simulate.graph_steps import EXCHANGES, CutLoad, Rows, phases
from uneven.simulate.phases import play

if TYPE_CHECKING:
    from uneven.cluster.spec import ClusterSpec

_FEW = 20
"""Steps that ``plan`` plays of each exchange."""


@dataclass(frozen=True, slots=True)
class GraphForecast:
    """One exchange.

    Attributes:
        epoch_s: mean of the steps.
        sent_mb: of all workers in an epoch, without the sum of the gradients.
        free_s: an epoch where links cost nothing.
    """

    exchange: str
    epoch_s: float
    sent_mb: float
    free_s: float


@dataclass(frozen=True, slots=True)
class _GraphCase:
    spec: ClusterSpec
    load: CutLoad
    layers: tuple[int, ...]
    rates: GraphRates

    def on(self, exchange: str, steps: int) -> GraphForecast:
        """What an epoch takes."""
        each = phases(self.load, exchange, self.layers, self.rates, self.spec.workload.overhead_core_s)
        ends_s = play(self.spec, each, steps)
        sent = sum(one.all_bytes for one in each)
        return GraphForecast(exchange, ends_s[-1] / steps, sent / 1e6, _without_links(self.spec, each, steps))


def plan(cluster: str, parts: Path, layers: str | None, core: str | None, as_json: bool) -> None:
    """Print how long an epoch takes under each exchange, and which is advised."""
    case = _case(cluster, parts, layers, core)
    rows = [case.on(one, _FEW) for one in EXCHANGES]
    console = Console(highlight=False)
    console.print(_table(rows, case))
    exact, quickest = rows[0], min(rows[:-1], key=lambda one: one.epoch_s)
    said = f"Take exact: {seconds(exact.epoch_s)} an epoch, and the gradients of one process."
    if quickest.epoch_s < 0.9 * exact.epoch_s:
        said += f" {quickest.exchange} takes {seconds(quickest.epoch_s)}, with gradients that are late or incomplete."
    console.print(said, soft_wrap=True)
    if as_json:
        told = {"layers": case.layers, "rates": asdict(case.rates), "rows": [asdict(one) for one in rows]}
        print(json.dumps(told))


def simulate(cluster: str | None, parts: Path, exchange: str, layers: str | None, core: str | None, steps: int) -> None:
    """Print how long so many epochs take under one exchange."""
    if cluster is None:
        raise ConfigError("--graph PARTS needs a CLUSTER: name it")
    if steps < 1:
        raise ConfigError(f"--iterations {steps}: give at least one")
    case = _case(cluster, parts, layers, core)
    Console(highlight=False).print(_table([case.on(exchange, steps)], case))


def _case(cluster: str, parts: Path, layers: str | None, core: str | None) -> _GraphCase:
    from uneven.cluster import files

    spec = files.load(cluster)
    speeds = [node.cores * node.share.at(0.0) for node in spec.nodes]
    store = GraphStore(parts)
    source = GraphSource(store, None if len(spec.nodes) == store.facts.parts else speeds)
    return _GraphCase(spec, load_of(source, len(spec.nodes)), _widths(source, layers), _rates(core))


def load_of(source: GraphSource, size: int) -> CutLoad:
    """What each of ``size`` workers has of a cut graph."""
    groups, bounds = source.groups(size), source.store.facts.bounds
    holders, root = source.store.holders(groups), source.root(size)
    rooted = np.bincount(root, minlength=size)

    def rows(flags: npt.NDArray[np.bool_]) -> Rows:
        found = np.stack([np.bincount(root[one], minlength=size) for one in flags]).astype(np.int64)
        np.fill_diagonal(found, 0)
        return found

    every = rows(holders.held)
    return CutLoad(
        tuple(bounds[one.stop] - bounds[one.start] for one in groups), tuple(rooted.tolist()),
        tuple((rooted + every.sum(axis=1)).tolist()), rows(holders.sends), rows(holders.takes), every,
    )  # fmt: skip


def _widths(source: GraphSource, layers: str | None) -> tuple[int, ...]:
    if layers is not None:
        return tuple(int(one) for one in _numbers("--layers", layers, "features, hidden and classes, as in 602,64,10"))
    store = source.store
    if not {"x", "y"} <= set(store.names):
        raise ConfigError(f"--graph {store.where}: it has no x and y: give --layers 602,64,10, features to classes")
    return (store.array("tensors/x").shape[-1], 64, int(store.array("tensors/y").max()) + 1)


def _rates(core: str | None) -> GraphRates:
    """What one core does: as given, or measured here."""
    if core is None:
        import torch

        from uneven.graph.probe import measured

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return measured()
        finally:
            torch.set_num_threads(before)
    found = _numbers("--core", core, "Gflop/s of products and billions of numbers a second of sums, as in 80,10")
    if len(found) != 2 or min(found) <= 0.0:
        raise ConfigError(f"--core {core}: give two numbers above 0: Gflop/s, and billions of numbers a second")
    return GraphRates(number_s=1e-9 / found[1], flop_s=1e-9 / found[0])


def _numbers(name: str, text: str, what: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} {text}: give {what}") from None


def _table(rows: Sequence[GraphForecast], case: _GraphCase) -> Table:
    title = f"{sum(case.load.edges):,} edges on {case.spec.name}, layers {' → '.join(map(str, case.layers))}"
    table = Table(title=title, box=SIMPLE_HEAD)
    for name in ("exchange", "an epoch", "if links were free", "MB sent an epoch"):
        table.add_column(name, justify="left" if name == "exchange" else "right")
    for one in rows:
        table.add_row(one.exchange, seconds(one.epoch_s), seconds(one.free_s), f"{one.sent_mb:.2f}")
    table.caption = (
        f"a core: {1e-9 / case.rates.flop_s:.0f} Gflop/s, {1e-9 / case.rates.number_s:.1f} billion numbers/s; "
        f"{case.spec.workload.overhead_core_s:g} core-seconds of each epoch are fixed"
    )
    return table


def _without_links(spec: ClusterSpec, each: Sequence[WorkPhase], steps: int) -> float:
    free: dict[str, Any] = {"up_bit_per_s": None, "down_bit_per_s": None, "latency_s": 0.0}
    nodes = tuple(replace(node, **free) for node in spec.nodes)
    return play(replace(spec, nodes=nodes, links=()), each, steps)[-1] / steps
