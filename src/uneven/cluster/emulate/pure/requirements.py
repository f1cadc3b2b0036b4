"""Checks that this machine can emulate a description, before anything starts."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Trace, steady
from uneven.errors import ConfigError, UnknownNameError

SIMULATE = "use `uneven simulate`, which supports it"

_LEFT_OUT: dict[str, Any] = {
    "load": steady(0.0),
    "memory_bytes": None,
    "up_bit_per_s": None,
    "down_bit_per_s": None,
    "latency_s": 0.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Able:
    """The reason per feature why it cannot be emulated here; an empty text means that it can."""

    load: str = ""  # competing processes inside a node, which need a control group
    memory: str = ""  # a limit on a node's memory
    links: str = ""  # bandwidth of a node's link, or of a link between sites
    latency: str = ""  # delay of either
    changes: str = ""  # workers that leave and join


def check(spec: ClusterSpec, able: Able) -> None:
    """Check that ``spec`` can be emulated here. If not, raise ConfigError with nodes, keys, reasons, alternatives."""
    wrong = [*_nodes(spec, able), *_events(spec, able), *_lines(spec, able)]
    if wrong:
        raise ConfigError(f"cluster {spec.name!r} cannot be emulated here:\n  " + "\n  ".join(wrong))


def without(spec: ClusterSpec, keys: Iterable[str]) -> ClusterSpec:
    """Return the cluster without a key of every node (and link), or without its ``links`` (and their events) or
    ``events``. Raises UnknownNameError for a key that cannot be left out."""
    for key in keys:
        if key == "links":
            spec = replace(spec, links=(), events=tuple(event for event in spec.events if event.between is None))
        elif key == "events":
            spec = replace(spec, events=())
        elif key in _LEFT_OUT:
            spec = replace(spec, nodes=tuple(replace(node, **{key: _LEFT_OUT[key]}) for node in spec.nodes))
            if key == "latency_s":
                spec = replace(spec, links=tuple(replace(link, latency_s=0.0) for link in spec.links))
        else:
            raise UnknownNameError("key to leave out:", key, {*_LEFT_OUT, "links", "events"})
    return spec


def _nodes(spec: ClusterSpec, able: Able) -> Iterator[str]:
    wanted: dict[str, tuple[dict[str, float | None], str]] = {
        "memory_bytes": ({node.name: node.memory_bytes for node in spec.nodes}, able.memory),
        "load": ({node.name: max(node.load.values) or None for node in spec.nodes}, able.load),
        "up_bit_per_s": ({node.name: _most(node.up_bit_per_s) for node in spec.nodes}, able.links),
        "down_bit_per_s": ({node.name: _most(node.down_bit_per_s) for node in spec.nodes}, able.links),
        "latency_s": ({node.name: node.latency_s or None for node in spec.nodes}, able.latency),
    }
    for key, (values, why_not) in wanted.items():
        given = [f"{name} ({value:g})" for name, value in values.items() if value is not None]
        if given and why_not:
            yield f"{key} of node {_some(given)}: {why_not}; --leave-out {key}, or {SIMULATE}"


def _most(trace: Trace | None) -> float | None:
    return None if trace is None else max(trace.values)


def _some(names: list[str], shown: int = 4) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def _events(spec: ClusterSpec, able: Able) -> Iterator[str]:
    reasons = {Do.JOIN: able.changes, Do.LEAVE: able.changes, Do.CUT_LINK: able.links}
    for do, why_not in reasons.items():
        nodes = list(dict.fromkeys(event.node for event in spec.events if event.do is do and event.node))
        if nodes and why_not:
            yield f"event {do.value} of node {_some(nodes)}: {why_not}; --leave-out events, or {SIMULATE}"


def _lines(spec: ClusterSpec, able: Able) -> Iterator[str]:
    lines = [" and ".join(link.between) for link in spec.links]
    if lines and able.links:
        yield f"line between {_some(lines)}: {able.links}; --leave-out links, or {SIMULATE}"
    slow = [" and ".join(link.between) for link in spec.links if link.latency_s]
    if slow and able.latency:
        yield f"latency_s of the line between {_some(slow)}: {able.latency}; --leave-out latency_s, or {SIMULATE}"


def notes(spec: ClusterSpec, cores: int) -> list[str]:
    """Return remarks for the user on a description that can be emulated; ``cores`` are this machine's."""
    said = []
    described = [node.name for node in spec.nodes if node.cost is not None]
    if described:
        said.append(
            f"cost of node {_some(described)} is for the simulator; here a worker computes on cores × share of this "
            f"machine"
        )
    wanted = math.fsum(node.cores * max(node.share.values) for node in spec.nodes)
    if wanted > cores * 1.001:
        said.append(
            f"the nodes have {wanted:g} cores together and this machine {cores}: while more than {cores} compute, "
            "nodes get less than described; smaller shares keep the proportions"
        )
    return said
