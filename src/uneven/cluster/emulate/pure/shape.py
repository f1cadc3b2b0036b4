"""Token buckets: the ``tc`` commands that limit a link's bandwidth."""

import math

BURST_S = 0.002
"""The time at the full rate that a full bucket passes immediately. It adds as much to each transfer, so it is short. If
it is much shorter, late kernel timers cost bandwidth."""

LEAST_BURST_BYTES = 4000  # a bucket must hold the largest packet, 1514 bytes, plus some margin
_ANY_BIT_PER_S = 1e15  # Above the bandwidth of any link; means infinity in arithmetic

QUEUE_S = 0.5
LEAST_QUEUE_BYTES = 1_000_000
"""The queue is long: a full one drops packets, and TCP then waits 0.2 s or more, which has nothing to do with
bandwidth."""


_LARGEST_BYTES = 65_536
"""The largest segment that the kernel gives to an unlimited link; the network card cuts it into packets."""

_ROOM = 15 / 16  # the usable part of a bucket after the headers of its packets


def burst_bytes(bit_per_s: float) -> int:
    return max(math.ceil(bit_per_s / 8 * BURST_S), LEAST_BURST_BYTES)


def queue_bytes(bit_per_s: float) -> int:
    return max(math.ceil(bit_per_s / 8 * QUEUE_S), LEAST_QUEUE_BYTES)


def at_once_bytes(bit_per_s: float) -> int:
    """Return the largest segment for a link that still fits the bucket."""
    # A bucket cuts a larger one into packets of 1.5 kB, which the nodes' processors then handle one by one. Behind a
    # network card that work would not exist.
    if math.isinf(bit_per_s):
        return _LARGEST_BYTES
    return min(_LARGEST_BYTES, int(burst_bytes(bit_per_s) * _ROOM))


def commands(device: str, bit_per_s: float, latency_s: float, *, before_bit_per_s: float = math.inf) -> list[str]:
    """Return the ``tc -batch`` lines that shape the traffic out of ``device``, after a bandwidth of
    ``before_bit_per_s``. An infinite bandwidth is unlimited, 0 drops everything. A latency needs netem."""
    if bit_per_s == 0:
        return [f"qdisc replace dev {device} root handle 2: pfifo limit 0"]
    # A smaller bucket needs an empty queue: a packet queued under the larger bucket may never fit, and would block the
    # link forever. TCP sends the lost packets again.
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
