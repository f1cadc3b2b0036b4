"""The command ``uneven graph forecast PARTS CLUSTER``: the time of an epoch on described machines."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.cli import answer
from uneven.cluster import files
from uneven.cluster.pure.simulate.graph_steps import EXCHANGES, CutLoad, Rows, phases
from uneven.cluster.pure.simulate.phases import play
from uneven.errors import ConfigError
from uneven.graph.graph_source import GraphSource
from uneven.graph.parts_folder import GraphStore
from uneven.graph.pure.capacity import GraphRates
from uneven.journal.report.console import Console, columns
from uneven.journal.report.pure.text import seconds

_STEPS = 20  # simulated of each exchange


def show(
    parts: Path, cluster: str, layers: Sequence[int] | None, core: Sequence[float] | None, form: answer.Form
) -> None:
    """Print the time of an epoch under each exchange, and advice.

    Args:
        layers: features, hidden and classes; None for the graph's features, 64, its classes.
        core: Gflop/s of products and billions of numbers per second of sums; None to measure this machine.
    """
    spec, store = files.load(cluster), GraphStore(parts)
    speeds = [node.cores * node.share.at(0.0) for node in spec.nodes]
    source = GraphSource(store, None if len(spec.nodes) == store.facts.parts else speeds)
    load, widths, rates = load_of(source, len(spec.nodes)), layers or _widths(store), _rates(core)
    # The same nodes with free links show the part of communication in an epoch.
    free: dict[str, Any] = {"up_bit_per_s": None, "down_bit_per_s": None, "latency_s": 0.0}
    free_spec = replace(spec, nodes=tuple(replace(node, **free) for node in spec.nodes), links=())
    rows: list[tuple[str, float, float, float]] = []
    takes_s: dict[str, float] = {}
    for exchange in EXCHANGES:
        each = phases(load, exchange, widths, **asdict(rates), overhead_s=spec.workload.overhead_core_s)
        takes_s[exchange], free_s = (play(one, each, _STEPS)[-1] / _STEPS for one in (spec, free_spec))
        sent_mb = sum(one.all_bytes for one in each) / 1e6  # without the sum of the gradients
        rows.append((exchange, takes_s[exchange], free_s, sent_mb))
    if form is answer.Form.JSON:
        named = [dict(zip(("exchange", "epoch_s", "free_s", "sent_mb"), row, strict=True)) for row in rows]
        answer.write({"cluster": spec.name, "edges": sum(load.edges), "layers": widths, "rates": rates, "rows": named})
        return
    table = columns(
        ("exchange", "an epoch", "if links were free", "MB sent an epoch"),
        ((name, seconds(epoch_s), seconds(free_s), f"{sent_mb:.2f}") for name, epoch_s, free_s, sent_mb in rows),
        title=f"{sum(load.edges):,} edges on {spec.name}, layers {' → '.join(map(str, widths))}",
    )
    table.caption = (
        f"a core: {1e-9 / rates.flop_s:.0f} Gflop/s, {1e-9 / rates.number_s:.1f} billion numbers/s; "
        f"{spec.workload.overhead_core_s:g} core-seconds of each epoch are fixed"
    )
    console = Console(highlight=False)
    console.print(table)
    exact_s, quickest = takes_s["exact"], min(EXCHANGES[:-1], key=takes_s.__getitem__)
    advice = f"Take exact: {seconds(exact_s)} an epoch, and the gradients of one process."
    if takes_s[quickest] < 0.9 * exact_s:
        advice += f" {quickest} takes {seconds(takes_s[quickest])}, with gradients that are late or incomplete."
    console.print(advice, soft_wrap=True)


def load_of(source: GraphSource, size: int) -> CutLoad:
    """Return the load of each of ``size`` workers with a partitioned graph."""
    groups, bounds = source.groups(size), source.store.facts.bounds
    holders, root = source.store.holders(groups), source.root(size)
    rooted = np.bincount(root, minlength=size)

    def rows(flags: npt.NDArray[np.bool_]) -> Rows:
        found = np.stack([np.bincount(root[one], minlength=size) for one in flags]).astype(np.int64)
        # A worker's own rows need no transfer.
        np.fill_diagonal(found, 0)
        return found

    every = rows(holders.held)
    return CutLoad(
        tuple(bounds[one.stop] - bounds[one.start] for one in groups),
        tuple(rooted.tolist()),
        tuple((rooted + every.sum(axis=1)).tolist()),
        rows(holders.sends),
        rows(holders.takes),
        every,
    )


def _widths(store: GraphStore) -> tuple[int, ...]:
    if not {"x", "y"} <= set(store.names):
        raise ConfigError(f"{store.where}: it has no x and y: give --layers 602,64,10, features to classes")
    return (store.array("tensors/x").shape[-1], 64, int(store.array("tensors/y").max()) + 1)


def _rates(core: Sequence[float] | None) -> GraphRates:
    """Return the rates of one core: as given, or measured here."""
    if core is None:
        import torch

        from uneven.graph.cutting import measured

        before = torch.get_num_threads()
        # The rates are per core, so measure with one thread.
        torch.set_num_threads(1)
        try:
            return measured()
        finally:
            torch.set_num_threads(before)
    if len(core) != 2 or not min(core) > 0.0:
        given = ",".join(f"{one:g}" for one in core)
        raise ConfigError(f"--core {given}: give two numbers above 0: Gflop/s, and billions of numbers a second")
    return GraphRates(number_s=1e-9 / core[1], flop_s=1e-9 / core[0])
