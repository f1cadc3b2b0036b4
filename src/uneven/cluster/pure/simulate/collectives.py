"""The route of an all-reduce, as gloo or NCCL runs it.

gloo passes pieces round a ring (:class:`~uneven.cluster.pure.simulate.routes.RingPieces`). NCCL has a ring and a double
binary tree. Its ring takes 2 (n - 1) hops, one after the other, and moves 2 (n - 1) / n of the bytes over each. GPUs of
a machine are neighbors in it, so the machine's card carries one hop each way. Each of its two trees carries half of
the bytes up and down again. A tree joins machines; the GPUs of a machine are a chain. So most machines send the bytes
twice, and two machines send them once.
"""

from collections.abc import Sequence

from uneven.cluster.pure.describe.spec import Workload
from uneven.cluster.pure.simulate.links import Route
from uneven.cluster.pure.simulate.routes import FREE, Topology, TransferLinks, hops

# Seconds of one hop between machines and inside one, and of a start. NCCL's own model: src/graph/tuning.cc, protocol
# "Simple", as quoted in NVIDIA/nccl, issue 1334.
_RING_HOP_S, _RING_INSIDE_S = 14e-6, 5.7e-6
_TREE_HOP_S = 28e-6
_START_S = 8.4e-6

_WINDOW_BYTES = 4 << 20  # under way on a hop: NCCL_BUFFSIZE


def all_reduce(topology: Topology, workload: Workload, members: Sequence[int], size_bytes: float) -> Route:
    """Return the route of a transfer of ``size_bytes`` among ``members``.

    Example: ``all_reduce(Topology(spec), spec.workload, range(len(spec.nodes)), 25 << 20)``.
    """
    if len(members) < 2 or topology.free:
        return FREE
    if workload.all_reduce == "gloo":
        return topology.ring(members, size_bytes)
    return _ring(topology, members) if workload.all_reduce == "ring" else _double_tree(topology, members)


def _ring(topology: Topology, members: Sequence[int]) -> Route:
    n, load, around_s = len(members), TransferLinks(topology.flows), 0.0
    for here, there in hops(members):
        inside = topology.machines[here] == topology.machines[there]
        hop_s = _hop(topology, load, here, there, 2 * (n - 1) / n, _RING_INSIDE_S if inside else _RING_HOP_S)
        around_s += hop_s
    return load.route(_START_S + 2 * (n - 1) / n * around_s)


def _double_tree(topology: Topology, members: Sequence[int]) -> Route:
    machines: dict[object, list[int]] = {}
    for rank in members:
        machines.setdefault(topology.machines[rank], []).append(rank)
    chains, load = list(machines.values()), TransferLinks(topology.flows)
    inside_s = 0.0
    for chain in chains:
        pairs = list(zip(chain[1:], chain, strict=False))
        inside_s = max(inside_s, sum(_both_ways(topology, load, *pair, 1.0) for pair in pairs))
    deepest_s = 0.0
    for parents in double_tree(len(chains)):
        depth_s: dict[int, float] = {}
        hop_s = {
            child: 0.0 if parent is None else _both_ways(topology, load, chains[child][0], chains[parent][0], 0.5)
            for child, parent in enumerate(parents)
        }
        for machine in range(len(chains)):
            at: int | None = machine
            depth_s[machine] = 0.0
            while at is not None:
                depth_s[machine] += hop_s[at]
                at = parents[at]
        deepest_s = max(deepest_s, *depth_s.values())
    return load.route(_START_S + 2 * (deepest_s + inside_s))


def double_tree(machines: int) -> tuple[list[int | None], list[int | None]]:
    """Return the parent of each machine in both trees of NCCL (src/graph/trees.cc); the root of a tree has none.

    Example: ``double_tree(4)`` is ``([None, 2, 0, 2], [1, 3, 1, None])``.
    """
    first = [_parent(place, machines) for place in range(machines)]
    last = machines - 1
    second: list[int | None] = []
    for place in range(machines):
        # The other tree is the mirrored one, or for an odd number the same one, moved by a place.
        origin = last - place if machines % 2 == 0 else (place - 1) % machines
        parent = first[origin]
        if parent is None:
            second.append(None)
        else:
            second.append(last - parent if machines % 2 == 0 else (parent + 1) % machines)
    return first, second


def _parent(place: int, machines: int) -> int | None:
    if place == 0:
        return None
    bit = place & -place  # the lowest one
    up = (place ^ bit) | (bit << 1)
    return up if up < machines else place ^ bit


def _both_ways(topology: Topology, load: TransferLinks, child: int, parent: int, part: float) -> float:
    _hop(topology, load, parent, child, part, _TREE_HOP_S)
    return _hop(topology, load, child, parent, part, _TREE_HOP_S)


def _hop(topology: Topology, load: TransferLinks, here: int, there: int, part: float, library_s: float) -> float:
    """Add a hop to a load, and return its seconds."""
    hop_s = topology.add(load, here, there, part) + library_s
    load.at_most(_WINDOW_BYTES * load.flows / (2 * hop_s), part)
    return hop_s
