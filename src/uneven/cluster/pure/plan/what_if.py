"""A recorded run with one change, simulated."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.describe.trace import steady
from uneven.errors import ConfigError
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Cost
from uneven.policy.sync import policies

_FORMS = (
    '"rank 3 as fast as rank 0", "without rank 3", "without the straggler", "on a 10 Gbit/s link", "with shadow:ma"'
)
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


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
    if found := re.fullmatch(r"rank (\d+) (?:is )?as fast as rank (\d+)", words):
        rank, other = int(found[1]), int(found[2])
        return lambda case: _as_fast(case, rank, other)
    if words == "without the straggler":
        return lambda case: _without(case, case.straggler)
    if found := re.fullmatch(r"without rank (\d+)", words):
        gone = int(found[1])
        return lambda case: _without(case, gone)
    if found := re.fullmatch(r"on an? (\d+(?:\.\d+)?) ?([kmg]bit)/s link", words):
        bit_per_s = float(found[1]) * _UNITS[found[2]]
        return lambda case: _on_link(case, bit_per_s)
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
    kept = [one for one in range(len(case.spec.nodes)) if one != rank]
    spec = replace(case.spec, nodes=tuple(case.spec.nodes[one] for one in kept))
    return replace(case, spec=spec, exchange_s=tuple(case.exchange_s[one] for one in kept))


def _on_link(case: RecordedCase, bit_per_s: float) -> RecordedCase:
    line = steady(bit_per_s)
    nodes = tuple(replace(node, up_bit_per_s=line, down_bit_per_s=line) for node in case.spec.nodes)
    return replace(case, spec=replace(case.spec, nodes=nodes))


def _with(name: str) -> Change:
    plain = name.partition(":")[0]
    if plain in balancers:
        balancers.resolve(name)
        return lambda case: replace(case, balance=name)
    if plain in policies:
        policies.resolve(name)
        return lambda case: replace(case, sync=name)
    policies.resolve(name) if plain in policies else balancers.resolve(name)  # raises, with the nearest name
    raise AssertionError(name)


def _known(case: RecordedCase, rank: int) -> None:
    if not rank < len(case.spec.nodes):
        raise ConfigError(f"rank {rank} does not exist: the run had ranks 0 to {len(case.spec.nodes) - 1}")
