"""A recorded run with one change, simulated."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.describe.trace import steady
from uneven.cluster.pure.plan.plan_figures import played
from uneven.cluster.pure.plan.prices import Price, price, priced
from uneven.cluster.pure.simulate import Scenario, costs_from_journal, described, recorded_shares, with_recorded_speeds
from uneven.errors import ConfigError
from uneven.journal.pure.member_changes import of_newest_workers
from uneven.journal.pure.metrics import Iteration, iterations
from uneven.journal.pure.summary import summarize
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Cost
from uneven.policy.core.records import LineRecord, Record, RunRecord
from uneven.policy.core.tables import located
from uneven.policy.sync import policies

AS_IT_WAS = "as it was"

_FORMS = (
    '"rank 3 as fast as rank 0", "without rank 3", "without the straggler", "one more like rank 0", '
    '"on a 10 Gbit/s link", "with shadow:ma", "an exchange 0.5 times as long", or two of them with "and" between them'
)
_AND = r"\s+and\s+(?=rank |without |one |on |with |an )"
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True, slots=True)
class SimulatedCase:
    """One simulated case."""

    words: str  # the change
    samples_per_s: float
    iteration_s: float
    durations_s: list[float]  # of its iterations
    price: Price | None = None  # if the run's description has prices


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recorded run, and its simulations with changes."""

    name: str
    # measured_per_s, measured_s: samples per second and usual iteration of the recorded run. If workers take
    # independent steps, an iteration is a global batch of samples.
    measured_per_s: float
    measured_s: float
    durations_s: list[float]  # of its iterations
    played: tuple[SimulatedCase, ...]  # first without a change
    currency: str = "$"

    @property
    def error(self) -> float:
        """The error of the simulation without a change: simulated ÷ measured throughput − 1."""
        return self.played[0].samples_per_s / self.measured_per_s - 1

    def gain(self, one: SimulatedCase) -> float:
        """Return the gain in throughput, simulated against simulated, so that common errors cancel out."""
        return one.samples_per_s / self.played[0].samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCase:
    """The run to simulate."""

    spec: ClusterSpec
    balance: str  # as a specification
    sync: str
    exchange_s: tuple[float, ...]  # of each node's own side of an exchange

    @property
    def straggler(self) -> int:
        """The slowest node with an equal part of the batch, on average over the recorded time."""
        equal = max(1, self.spec.workload.global_batch // len(self.spec.nodes))
        times = [self._mean_s(rank, equal) for rank in range(len(self.spec.nodes))]
        return max(range(len(times)), key=times.__getitem__)

    def _mean_s(self, rank: int, batch: int) -> float:
        node = self.spec.nodes[rank]
        parts = node.share.values
        cost: Cost = self.spec.cost(node)
        return cost.seconds(batch) * sum(1 / part if part > 0 else math.inf for part in parts) / len(parts)


Change = Callable[[RecordedCase], RecordedCase]


def parse(text: str) -> Change:
    """Return the change that a text describes.

    Raises:
        ConfigError: the text has no known form; the change itself raises it for an unknown rank.
        UnknownNameError: it is "with" an unknown name.
    """
    words = " ".join(text.lower().split())
    if len(parts := re.split(_AND, text.strip(), flags=re.IGNORECASE)) > 1:
        made = [parse(part) for part in parts]
        return lambda case: reduce(lambda so_far, change: change(so_far), made, case)
    if found := re.fullmatch(r"rank (\d+) (?:is )?as fast as rank (\d+)", words):
        rank, other = int(found[1]), int(found[2])
        return lambda case: _as_fast(case, rank, other)
    if words == "without the straggler":
        return lambda case: _without(case, case.straggler)
    if found := re.fullmatch(r"without rank (\d+)", words):
        gone = int(found[1])
        return lambda case: _without(case, gone)
    if found := re.fullmatch(r"one more like rank (\d+)", words):
        like = int(found[1])
        return lambda case: _one_more(case, like)
    if found := re.fullmatch(r"on an? (\d+(?:\.\d+)?) ?([kmg]bit)/s link", words):
        bit_per_s = float(found[1]) * _UNITS[found[2]]
        return lambda case: _on_link(case, bit_per_s)
    if found := re.fullmatch(r"an exchange (\d+(?:\.\d+)?) times as long", words):
        factor = float(found[1])
        return lambda case: replace(case, exchange_s=tuple(factor * own_s for own_s in case.exchange_s))
    if words.startswith("with "):
        return _with(text.split(maxsplit=1)[1].strip())
    raise ConfigError(f"--what-if {text!r}: write it as in {_FORMS}")


def _as_fast(case: RecordedCase, rank: int, other: int) -> RecordedCase:
    _known(case, rank)
    _known(case, other)
    nodes, exchange_s = list(case.spec.nodes), list(case.exchange_s)
    nodes[rank] = replace(nodes[other], name=nodes[rank].name)
    exchange_s[rank] = exchange_s[other]
    return replace(case, spec=replace(case.spec, nodes=tuple(nodes)), exchange_s=tuple(exchange_s))


def _without(case: RecordedCase, rank: int) -> RecordedCase:
    _known(case, rank)
    if len(case.spec.nodes) == 1:
        raise ConfigError(f"rank {rank} is the only worker of the run: take a run with several")
    size = len(case.spec.nodes)
    less = (size - 2) * size / (size - 1) ** 2  # a ring of n sends 2 (n - 1) / n of the bytes
    kept = (own_s for one, own_s in enumerate(case.exchange_s) if one != rank)
    return replace(case, spec=without(case.spec, rank), exchange_s=tuple(less * own_s for own_s in kept))


def _one_more(case: RecordedCase, rank: int) -> RecordedCase:
    _known(case, rank)
    size = len(case.spec.nodes)
    more = size**2 / (size**2 - 1) if size > 1 else 1.0  # as above
    exchange_s = (*case.exchange_s, case.exchange_s[rank])
    return replace(case, spec=one_more(case.spec, rank), exchange_s=tuple(more * own_s for own_s in exchange_s))


def without(spec: ClusterSpec, rank: int) -> ClusterSpec:
    """Return a cluster of several nodes without one of them and its events; the global batch stays."""
    gone = spec.nodes[rank]
    nodes = tuple(node for node in spec.nodes if node is not gone)
    here = {node.site for node in nodes}
    links = tuple(link for link in spec.links if here.issuperset(link.between))
    events = tuple(event for event in spec.events if event.node != gone.name)
    events = tuple(event for event in events if event.between is None or here.issuperset(event.between))
    return replace(spec, nodes=nodes, links=links, events=events)


def one_more(spec: ClusterSpec, rank: int) -> ClusterSpec:
    """Return a cluster with another node like one of them, without its events; the global batch stays."""
    like = spec.nodes[rank]
    return replace(spec, nodes=(*spec.nodes, replace(like, name=f"{like.name}-more")))


def kinds(spec: ClusterSpec) -> list[int]:
    """Return the first rank of each kind of node; those of a kind differ only in name and record of spot machines."""
    first = {replace(node, name="a", spot=None): rank for rank, node in reversed(list(enumerate(spec.nodes)))}
    return sorted(first.values())


def _on_link(case: RecordedCase, bit_per_s: float) -> RecordedCase:
    line = steady(bit_per_s)
    nodes = tuple(replace(node, up_bit_per_s=line, down_bit_per_s=line) for node in case.spec.nodes)
    return replace(case, spec=replace(case.spec, nodes=nodes))


def _with(name: str) -> Change:
    plain = name.partition(":")[0]
    if plain in policies and plain not in balancers:
        policies.resolve(name)
        return lambda case: replace(case, sync=name)
    balancers.resolve(name)  # raises, with the nearest name, if there is none of this name
    return lambda case: replace(case, balance=name)


def _known(case: RecordedCase, rank: int) -> None:
    if not rank < len(case.spec.nodes):
        raise ConfigError(f"rank {rank} does not exist: the run had ranks 0 to {len(case.spec.nodes) - 1}")


def simulated(
    run: str,
    records: Sequence[Record],
    changes: Sequence[str],
    seed: int,
    least: int = 0,
    prices: ClusterSpec | None = None,
) -> WhatIf:
    """Simulate a recorded run without a change, and with each change separately.

    Args:
        run: its name, for messages.
        records: those of all ranks.
        changes: texts, see :func:`parse`.
        least: the least number of iterations. A longer run is simulated in full.
        prices: a description of as many nodes, whose prices are those of the run.
    Raises:
        ConfigError: a change is invalid, or the run has too few records.
    """
    made = [(text, parse(text)) for text in changes]
    records = of_newest_workers(records)
    costs = costs_from_journal(records)
    shares = recorded_shares(records)
    spec, exchange_s = with_recorded_speeds(described(costs), records, shares)
    spec = replace(spec, workload=_workload(spec.workload, records, changes))
    if prices is not None and len(prices.nodes) == len(spec.nodes):
        pairs = zip(spec.nodes, prices.nodes, strict=True)
        nodes = tuple(replace(node, price_per_hour=other.price_per_hour) for node, other in pairs)
        spec = replace(spec, nodes=nodes, currency=prices.currency)
    case = _recorded(spec, records, tuple(exchange_s.values()))
    recorded = iterations(records)
    summary = summarize(recorded)
    if not summary.iterations:
        raise ConfigError(f"{run}: no iteration of it has a duration: record a longer run")
    cases = [(AS_IT_WAS, case), *((text, change(case)) for text, change in made)]
    played_steps = max(costs.iterations, least)
    found = tuple(_play(words, one, played_steps, seed, one_processor=bool(shares)) for words, one in cases)
    durations_s = _durations_s(recorded)
    return WhatIf(run, summary.mean_per_s, summary.iteration_s, durations_s, found, spec.currency)


def _recorded(spec: Any, records: Sequence[Record], exchange_s: tuple[float, ...]) -> RecordedCase:
    settings = next((one.settings for one in records if isinstance(one, RunRecord) and one.rank == 0), {})
    balance, sync = str(settings.get("balance", "lb-bsp")), str(settings.get("sync", "bsp"))
    for registry, name in ((balancers, balance), (policies, sync)):
        try:
            registry.resolve(name)
        except ConfigError as error:
            raise ConfigError(f"the run used {name}, which cannot be simulated here: {error}") from error
    return RecordedCase(spec=spec, balance=balance, sync=sync, exchange_s=exchange_s)


def _workload(workload: Any, records: Sequence[Record], changes: Sequence[str]) -> Any:
    """Set the gradients' bytes as counted by the run."""
    lines = [one for one in records if isinstance(one, LineRecord) and one.line == "gradients" and one.rank == 0]
    exchanges = sum(one.exchanges for one in lines)
    *_, workers = 1, *(one.world_size for one in records if isinstance(one, RunRecord) and one.rank == 0)
    if exchanges and workers > 1:  # a ring sends 2 (n - 1) / n of the sum
        sent_bytes = sum(one.sent_bytes for one in lines) / exchanges
        return replace(workload, gradient_bytes=round(sent_bytes * workers / (2 * (workers - 1))))
    if any("link" in text.lower() for text in changes):
        raise ConfigError("the run has not counted the bytes of its gradients, so no other link can be simulated")
    return workload


def _durations_s(taken: Sequence[Iteration]) -> list[float]:
    return [one.whole_s for one in taken if math.isfinite(one.whole_s)]


def _play(words: str, case: RecordedCase, count: int, seed: int, *, one_processor: bool) -> SimulatedCase:
    scenario = Scenario(
        spec=case.spec,
        balancer=balancers.resolve(case.balance),
        policy=policies.resolve(case.sync),
        seed=seed,
        iterations=count,
        exchange_s=dict(enumerate(case.exchange_s)),
        one_processor=one_processor,
    )
    records = list[Record]()
    with located(words):
        figures = played(scenario, records.append)
    taken = iterations(records)
    paid = price(case.spec, figures) if priced(case.spec) else None
    return SimulatedCase(words, figures.samples_per_s, summarize(taken).iteration_s, _durations_s(taken), paid)
