"""The descriptions that ``uneven bench worlds`` plays in both worlds.

The nodes of each have less than two cores together, so that on a laptop they compete only as described.
"""

from dataclasses import dataclass, replace

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node, SiteLink, Trace, Workload, steady

GLOBAL_BATCH = 256
CHANGE_AT = 6  # the iteration of a change, if there is one
_STEP_S = 300.0
_PERIOD_S = 0.01  # the period of the emulator's quotas

_LOADS = (
    (15.7, 8.6, 15.8, 9.9, 15.9, 8.4, 7.4, 21.5, 7.4, 9.4, 21.1, 8.5),
    (36.5, 33.8, 32.4, 31.1, 30.9, 22.3, 22.3, 22.5, 21.6, 26.7, 34.6, 38.8),
    (60.2, 61.7, 60.5, 49.3, 46.7, 43.8, 54.3, 61.8, 61.7, 60.8, 62.8, 63.4),
    (65.2, 66.0, 68.9, 66.2, 70.4, 68.1, 70.1, 73.0, 74.7, 74.7, 76.7, 78.0),
)
"""CPU use of four virtual machines in percent, every five minutes: the first twelve values of rows 893, 756, 758 and
993 of the series ``cpu_percent`` of google2011_vm_cpu_mem, from Google's cluster data of 2011 (CC BY 4.0)."""


@dataclass(frozen=True, slots=True)
class WorldCase:
    """One description."""

    spec: ClusterSpec
    needs_root: bool = False  # it needs isolated nodes


def cases(workload: Workload) -> dict[str, WorldCase]:
    """Return all of them, with the measured costs."""

    def case(name: str, nodes: tuple[Node, ...], *events: Event, root: bool = False) -> WorldCase:
        return WorldCase(ClusterSpec(name=name, nodes=nodes, events=events, workload=workload), root)

    first, second, *others = _nodes(0.5, 0.35, 0.2, 0.15)
    narrow = (first, _linked(second, 50), *others)
    wide = tuple(_linked(node, 400) for node in (first, second, *others))
    busy, *calm = _nodes(0.4, 0.4, 0.3, 0.2)
    rivals = (replace(busy, load=steady(1.0)), *calm)
    replayed = tuple(replace(node, share=_left(loads)) for node, loads in zip(_nodes(*[0.45] * 4), _LOADS, strict=True))
    far = ClusterSpec(name="sites", nodes=_at_sites(0.4, 0.25, 0.4, 0.25, 0.3, 0.15), links=_LINES, workload=workload)
    return {
        "equal nodes": case("equal", _nodes(0.3, 0.3, 0.3, 0.3)),
        "steady shares": case("steady", _nodes(0.6, 0.4, 0.2, 0.1)),
        "a step": case(
            "step", _nodes(0.35, 0.35, 0.35, 0.35), Event(do=Do.SLOW, node="node2", at_iteration=CHANGE_AT, factor=0.4)
        ),
        "recorded load": case("recorded", replayed),
        "busy rival": case("rival", rivals, root=True),
        "a narrow link": case("narrow", narrow, root=True),
        "a link is cut": case(
            "cut", wide, Event(do=Do.CUT_LINK, node="node0", at_iteration=CHANGE_AT, bit_per_s=25e6), root=True
        ),
        "three sites": WorldCase(far, needs_root=True),
    }


def calibration(workload: Workload) -> tuple[ClusterSpec, str]:
    """Return a description like none of the cases, and a split with unequal batches on equal nodes."""
    nodes = _nodes(0.25, 0.25, 0.25, 0.25)
    return ClusterSpec(name="calibration", nodes=nodes, workload=workload), "static:shares=4/3/2/1"


def _nodes(*cores: float) -> tuple[Node, ...]:
    return tuple(Node(name=f"node{rank}", cores=share, period_s=_PERIOD_S) for rank, share in enumerate(cores))


def _at_sites(*cores: float) -> tuple[Node, ...]:
    """Return two nodes at each of three sites."""
    return tuple(replace(_linked(node, 400), site=_SITES[rank // 2]) for rank, node in enumerate(_nodes(*cores)))


def _linked(node: Node, mbit: float) -> Node:
    return replace(node, up_bit_per_s=_mbit(mbit), down_bit_per_s=_mbit(mbit))


def _mbit(rate: float) -> Trace:
    return steady(rate * 1e6)


def _left(percent: tuple[float, ...]) -> Trace:
    """Return the rest that others' load leaves, a hundred times faster than recorded."""
    values = tuple(round(1.0 - value / 100.0, 4) for value in percent)
    return Trace(values=values, step_s=_STEP_S, speedup=100.0, source="google2011_vm_cpu_mem")


_SITES = ("us", "eu", "asia")
_LINES = tuple(
    SiteLink(between=between, bit_per_s=_mbit(rate), latency_s=latency_s)
    for between, rate, latency_s in (
        (("us", "eu"), 100, 0.002),
        (("us", "asia"), 67, 0.004),
        (("eu", "asia"), 50, 0.006),
    )
)
"""Lines so short that an exchange is little slower than in the simulator, which has no slow start of TCP."""
