"""Token buckets: the words that make ``tc`` keep a link to a bandwidth."""

from __future__ import annotations

import math

BURST_S = 0.002
"""Time at the full rate that a rested bucket lets through at once. It adds that much to each transfer, so it is
kept short; much shorter, and a timer of the kernel that comes late costs bandwidth."""

LEAST_BURST_BYTES = 4000
"""A bucket must hold the largest packet, 1514 bytes, with something to spare."""

_ANY_BIT_PER_S = 1e15
"""More than any link has, where a number is needed for none."""

QUEUE_S = 0.5
LEAST_QUEUE_BYTES = 1_000_000
"""The queue is long: a full one drops packets, and TCP then waits 0.2 s and more, which says nothing about
bandwidth."""


_LARGEST_BYTES = 65_536
"""What the kernel hands to a link at once where nothing limits it, and lets the network card cut into packets."""

_ROOM = 15 / 16
"""The part of a bucket that is left for what is sent when the headers of its packets are counted too."""


def burst_bytes(bit_per_s: float) -> int:
    """Size of the bucket."""
    return max(math.ceil(bit_per_s / 8 * BURST_S), LEAST_BURST_BYTES)


def queue_bytes(bit_per_s: float) -> int:
    """What may wait for the bucket."""
    return max(math.ceil(bit_per_s / 8 * QUEUE_S), LEAST_QUEUE_BYTES)


def at_once_bytes(bit_per_s: float) -> int:
    """What the kernel may hand to a link at once, so that it fits the bucket.

    A bucket cuts what is larger into packets of 1.5 kB, and each is then handled on its own on the way to the other
    node: that costs the nodes' processors what no network card would cost them.
    """
    if math.isinf(bit_per_s):
        return _LARGEST_BYTES
    return min(_LARGEST_BYTES, int(burst_bytes(bit_per_s) * _ROOM))


def commands(device: str, bit_per_s: float, latency_s: float, *, before_bit_per_s: float = math.inf) -> list[str]:
    """Lines for ``tc -batch`` that set what leaves through ``device`` from now on.

    Args:
        bit_per_s: infinite is not limited; 0 drops everything.
        latency_s: added to every packet; needs netem.
        before_bit_per_s: what was set there before. A smaller bucket takes the place of an empty queue: what is already
            queued was let in for holding the larger bucket's largest packet, the smaller one never has enough for
            that, and the link would stand still for ever. TCP sends again what is lost with the queue.
    """
    if bit_per_s == 0:
        return [f"qdisc replace dev {device} root handle 2: pfifo limit 0"]
    shrinks = math.isinf(bit_per_s) or burst_bytes(bit_per_s) < burst_bytes(min(before_bit_per_s, _ANY_BIT_PER_S))
    dropped = before_bit_per_s == 0
    lines = [f"qdisc del dev {device} root"] if math.isfinite(before_bit_per_s) and (shrinks or dropped) else []
    place = "root"
    if math.isfinite(bit_per_s):
        rate, burst, queue = max(1, round(bit_per_s)), burst_bytes(bit_per_s), queue_bytes(bit_per_s)
        lines.append(f"qdisc replace dev {device} root handle 1: tbf rate {rate}bit burst {burst} limit {queue}")
        place = "parent 1:1"
    if latency_s > 0:
        lines.append(f"qdisc replace dev {device} {place} handle 10: netem delay {latency_s * 1e6:.0f}us limit 100000")
    return lines
