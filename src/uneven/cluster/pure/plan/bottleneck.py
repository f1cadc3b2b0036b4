"""The bottleneck of an exchange: a node's link, a link between sites, latency, or a processor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Node, SiteLink, Trace
from uneven.cluster.pure.simulate.routes import pieces_of


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One part of the network."""

    what: str  # in words
    seconds: float  # of a ring all-reduce of the whole model over this part only


def bottleneck(spec: ClusterSpec) -> Bottleneck | None:
    """Return the slowest part of the network; None if nothing in it is limited."""
    return max(_parts(spec), key=lambda part: part.seconds, default=None)


def _parts(spec: ClusterSpec) -> Iterator[Bottleneck]:
    size = len(spec.nodes)
    if size < 2:
        return
    moved_bits = 2 * (size - 1) / size * spec.workload.gradient_bytes * 8
    rates = {node.name: rate for node in spec.nodes if (rate := _rate(node)) is not None}
    if rates:
        least = min(rates.values())
        names = [name for name, rate in rates.items() if rate <= 1.05 * least]
        yield Bottleneck(f"{_whose(names, size)} ({bits(least)})", moved_bits / least)
    lines: dict[str | frozenset[str], float] = {link.ends: _line_rate(link) for link in spec.links}
    for link in spec.links:
        rate = lines[link.ends]
        yield Bottleneck(f"the line between {' and '.join(link.between)} ({bits(rate)})", moved_bits / rate)
    for event in spec.events:
        if event.do is Do.CUT_LINK:
            full = lines.get(event.of) if event.between else rates.get(event.node)
            left = event.bit_per_s or (full * event.factor if full and event.factor else None)
            if left:
                what = event.where if event.between else f"the link of {event.node}"
                yield Bottleneck(f"{what}, cut to {bits(left)},", moved_bits / left)
    latency_s, where = _latency(spec)
    if latency_s:
        pieces = pieces_of(size, spec.workload.gradient_bytes)  # two in the time there and back
        yield Bottleneck(f"the latency of {latency_s * 1e3:.3g} ms{where}", pieces * latency_s)


def _rate(node: Node) -> float | None:
    both = [fmean(trace.values) for trace in (node.up_bit_per_s, node.down_bit_per_s) if isinstance(trace, Trace)]
    return min(both, default=None)


def _line_rate(link: SiteLink) -> float:
    return min(fmean(link.toward(site).values) for site in link.between)


def _whose(names: Sequence[str], size: int) -> str:
    if len(names) == size:
        return "every node's link"
    if len(names) <= 3:
        return f"the link{'s' if len(names) > 1 else ''} of {listed(names)}"
    return f"the links of {names[0]} and {len(names) - 1} others"


def _latency(spec: ClusterSpec) -> tuple[float, str]:
    # The longest path goes from one of the two nodes with the highest latency to the other.
    inside = sum(sorted((node.latency_s for node in spec.nodes), reverse=True)[:2])
    far = max(spec.links, key=lambda link: link.latency_s, default=None)
    if far is not None and far.latency_s:
        return inside + far.latency_s, f" between {' and '.join(far.between)}"
    return inside, " between two nodes"


def bits(per_s: float) -> str:
    """Return a rate as text: ``2e7`` → ``20 Mbit/s``."""
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if per_s >= scale:
            return f"{per_s / scale:.3g} {unit}"
    return f"{per_s:.3g} bit/s"


def listed(names: Sequence[str]) -> str:
    """Return names as text: "a", "a and b", "a, b and c"."""
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])
