"""Assign devices to the members of a flotilla so that few members span several nodes."""

import itertools
from collections.abc import Iterable, Sequence

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla

MOST_ORDERS = 1024  # orders of the remaining members that are tried; the paper's limit

# With more members, the first 1024 orders permute only the last seven: 6! < 1024 < 7!.
_PERMUTED = 7

_DIGITS = 9  # decimal digits to which costs are compared; among equal costs the earlier order wins


def assign_devices(flotilla: Flotilla, nodes: Sequence[Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Assign devices to each member: the paper's Algorithms 3 and 4, corrected, if all nodes offer the same number.

    The cost is Σ_i c_i / m_i for member i with m_i devices on c_i nodes (Eq. 4). Devices are dealt contiguously: first
    to members that fill whole nodes, then to pairs that together do, then to the rest in the best of at most 1024
    orders.

    The paper has no rule for nodes that offer different numbers. Ours: the largest member first, on the node with the
    least left over, or across the emptiest nodes if it fits on none. On equal nodes the cheaper of both is used.

    Args:
        nodes: the free devices of each node.

    Returns:
        Member → its devices, in the order of ``flotilla.members``.

    Raises:
        ConfigError: the flotilla needs more devices than there are, or a device is named twice.
    """
    flat = [device for node in nodes for device in node]
    if len(set(flat)) != len(flat):
        raise ConfigError("a device occurs twice: name each device once")
    if flotilla.devices > len(flat):
        raise ConfigError(
            f"a flotilla for {flotilla.devices} devices does not fit {len(flat)} devices: make it smaller"
        )
    sizes = {len(node) for node in nodes if node}
    dealt = [_fitted(flotilla, nodes)]
    if len(sizes) == 1:
        dealt.insert(0, _contiguous(device_order(flotilla, sizes.pop()), flotilla, flat))
    best = min(dealt, key=lambda one: round(spread(one, nodes), _DIGITS))
    return {name: best[name] for name in flotilla.members}


def cost(counts: Iterable[int], per_node: int, start: int = 0) -> float:
    """Return Σ c/m (Eq. 4) of members that get ``counts`` devices each, contiguously, from device ``start`` on.

    `per_node` is G, the devices of each node; `start` is counted from the start of a node.
    """
    total = 0.0
    for count in counts:
        total += _touched(start, count, per_node) / count
        start += count
    return total


def spread(assignment: dict[str, tuple[int, ...]], nodes: Sequence[Sequence[int]]) -> float:
    """Return Σ c/m of an assignment (Eq. 4); its lower bound is the sum of ⌈m / G⌉ / m."""
    home = {device: place for place, node in enumerate(nodes) for device in node}
    return sum(len({home[device] for device in devices}) / len(devices) for devices in assignment.values())


def device_order(flotilla: Flotilla, per_node: int) -> list[str]:
    """Return the order in which members take devices on equal nodes: whole nodes, pairs, the best of the rest."""
    counts = flotilla.members
    order = [name for name, count in counts.items() if count % per_node == 0]
    # A list per remainder corrects two faults of the printed pairing. It deletes another entry (m mod G) than the
    # partner that it found ((−m) mod G), and of two members with one remainder the later hides the earlier.
    waiting: dict[int, list[str]] = {}
    for name, count in counts.items():
        if count % per_node == 0:
            continue
        partners = waiting.get(-count % per_node)
        if partners:
            order += [name, partners.pop(0)]
        else:
            waiting.setdefault(count % per_node, []).append(name)
    rest = [name for name in counts if any(name in names for names in waiting.values())]
    return order + _best_order(rest, [counts[name] for name in rest], per_node)


def _best_order(names: list[str], counts: list[int], per_node: int) -> list[str]:
    """Return the cheapest of the first 1024 orders."""
    fixed = max(0, len(names) - _PERMUTED)
    # Members before these fill whole nodes, so the first of these starts a node.
    start, tail = sum(counts[:fixed]), counts[fixed:]
    tried = itertools.islice(itertools.permutations(range(len(tail))), MOST_ORDERS)
    best = min(tried, key=lambda order: round(cost([tail[i] for i in order], per_node, start), _DIGITS))
    return names[:fixed] + [names[fixed + i] for i in best]


def _touched(start: int, count: int, per_node: int) -> int:
    return (start + count - 1) // per_node - start // per_node + 1


def _contiguous(order: Sequence[str], flotilla: Flotilla, devices: Sequence[int]) -> dict[str, tuple[int, ...]]:
    dealt, start = {}, 0
    for name in order:
        count = flotilla.members[name]
        dealt[name] = tuple(devices[start : start + count])
        start += count
    return dealt


def _fitted(flotilla: Flotilla, nodes: Sequence[Sequence[int]]) -> dict[str, tuple[int, ...]]:
    free = [list(node) for node in nodes]
    dealt = {}
    for name, count in sorted(flotilla.members.items(), key=lambda item: -item[1]):
        roomy = [node for node in free if len(node) >= count]
        taken: list[int] = []
        while len(taken) < count:
            node = min(roomy, key=len) if roomy else max(free, key=len)
            wanted = count - len(taken)
            taken += node[:wanted]
            del node[:wanted]
        dealt[name] = tuple(taken)
    return dealt
