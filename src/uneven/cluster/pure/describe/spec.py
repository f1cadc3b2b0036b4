"""A cluster description: nodes, links, events.

The same object is emulated with real processes (:mod:`uneven.cluster.emulate`), simulated in virtual time
(:mod:`uneven.cluster.pure.simulate`) and compared with a real run. Time starts with the training.
"""

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise

from uneven.cluster.pure.describe.cluster_events import COMINGS_AND_GOINGS, disorder
from uneven.cluster.pure.describe.cluster_events import Do as Do
from uneven.cluster.pure.describe.cluster_events import Event as Event
from uneven.cluster.pure.describe.networks import NETWORKS, Carried
from uneven.cluster.pure.describe.spec_checks import (
    POSITIVE,
    Amount,
    Count,
    Positive,
    PositiveTime,
    Several,
    Time,
    bounded,
    once,
)
from uneven.cluster.pure.describe.trace import Measured as Measured
from uneven.cluster.pure.describe.trace import Saturating as Saturating
from uneven.cluster.pure.describe.trace import Trace as Trace
from uneven.cluster.pure.describe.trace import check_cost
from uneven.cluster.pure.describe.trace import steady as steady
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.cost import Affine, Cost
from uneven.policy.core.tables import check

LIMITS = ("trainers' processors", "latency", "trainers' links", "servers' processors", "servers' links")
"""The possible bottlenecks of trainers with tables on servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """Embedding tables on servers; for ``uneven plan`` and ``uneven simulate``."""

    features: Count = 0  # bags of each sample; 0 is a model without tables
    ids: Amount = 0.0  # looked up per sample; 0 is one for each feature
    dim: Several = 16  # numbers in a row
    number_bytes: Several = 4  # 4, or 2 if numbers travel as bfloat16
    server_core_s: PositiveTime = 5e-6  # server time per sample, both ways, of all tables; divided among the servers
    message_core_s: Time = 2e-4  # server time per lookup with its gradient, independent of size
    server_cores: Positive = 1.0  # of each server
    server_bit_per_s: Amount = 0.0  # of its link, each way; 0 is unlimited
    server_latency_s: Time = 0.0  # one way, between it and the switch

    def __post_init__(self) -> None:
        check(self, "tables: ")

    def message_s(self, batch: float, servers: int) -> float:
        """Return the seconds of one of ``servers`` for a lookup of ``batch`` samples and its gradient."""
        return (self.message_core_s + batch * self.server_core_s / servers) / self.server_cores

    @property
    def up_bytes(self) -> float:
        """The bytes per sample from a trainer: the ids twice (lookup and gradient), and one row for each bag."""
        return 8 * (self.ids or self.features) + self.features * self.dim * self.number_bytes

    @property
    def down_bytes(self) -> float:
        """The bytes per sample to a trainer."""
        return float(self.features * self.dim * self.number_bytes)

    def link_s(self, samples: float, up_bit_per_s: float | None, down_bit_per_s: float | None) -> tuple[float, float]:
        """Return the seconds that a lookup and its gradient take on a link, up and down; rates of 0 and None are
        unlimited."""
        ways = (self.up_bytes, up_bit_per_s), (self.down_bytes, down_bit_per_s)
        up_s, down_s = (8 * samples * moved / rate if rate else 0.0 for moved, rate in ways)
        return up_s, down_s


KINDS = ("kfac", "soap", "muon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditioning:
    """A preconditioner; ``KFAC.describe()`` writes one after a real run."""

    # sides of the two square matrices of each layer: inputs (+ 1 with a bias) and outputs; rows and columns for "muon"
    layers: tuple[tuple[int, ...], ...]
    # "kfac", whose sums travel to owners, or "soap" and "muon", which use averaged gradients
    kind: str = "kfac"
    # factor_period, refresh_period: steps between updates; the second is a multiple of the first
    factor_period: int = 1
    refresh_period: int = 10
    # f, the part of the workers that hold a layer's bases and transform its gradient; at most 1 / P is one worker
    share: float = 1.0
    place: str = "speed"  # rule for owners: "speed", "compute", "memory" or "round-robin"
    # matrix products that transform a gradient: 4 by eigenvectors, 2 by inverses; Newton-Schulz steps for "muon"
    turns: Positive = 4.0
    # cost units that a core computes per second; a decomposition costs 9 n³, a gradient turns · a g (a + g)
    cost_per_s: Positive = 2e10
    factor_core_s: Time = 0.0  # core-seconds per sample in a step that updates factors

    def __post_init__(self) -> None:
        if not self.layers or any(len(one) != 2 or min(one) < 1 for one in self.layers):
            raise ConfigError(
                "preconditioner: layers must be a list of pairs, as [[785, 512], [513, 10]]: the inputs (plus 1 "
                "with a bias) and the outputs"
            )
        if self.kind not in KINDS:
            raise ConfigError(f"preconditioner: kind = {self.kind!r} is none of {', '.join(map(repr, KINDS))}")
        if self.factor_period < 1 or self.refresh_period < 1 or self.refresh_period % self.factor_period:
            raise ConfigError(
                f"preconditioner: factor_period = {self.factor_period} and refresh_period = {self.refresh_period} "
                "must be at least 1, and refresh_period a multiple of factor_period"
            )
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(f"preconditioner: share = {self.share!r}: give a number above 0 up to 1")
        if self.kind == "muon" and (self.refresh_period, self.share) != (1, 1.0):
            raise ConfigError(
                f'preconditioner: refresh_period = {self.refresh_period} and share = {self.share!r}: "muon" needs '
                "refresh_period = 1 and share = 1"
            )
        check(self, "preconditioner: ")


MOST_BUCKETS = 100_000
"""The largest number of gradient buckets, each a separate transfer. With DDP's 25 MiB they hold 2.6 TB."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with one worker. A value out of range raises ConfigError, with node and attribute."""

    name: str  # letters, digits, ``.``, ``_`` and ``-``
    cores: Positive = 1.0  # processor capacity of the worker on the idle machine; 0.6 is a share of one core
    share: Trace = field(default_factory=lambda: steady(1.0))  # available part of ``cores``, over time, 0 … 1
    # busy competing processes, over time; each takes its fair part of ``cores``. A fraction is a process that is
    # busy for that part of the time.
    load: Trace = field(default_factory=lambda: steady(0.0))
    memory_bytes: Several | None = None  # limit; None is unlimited
    # up_bit_per_s, down_bit_per_s: of its link, over time; None is unlimited
    up_bit_per_s: Trace | None = None
    down_bit_per_s: Trace | None = None
    latency_s: Time = 0.0  # one way, between this node and its switch
    # kind of its link, with defaults of the next two, see :data:`NETWORKS`; without one, the rate is the achieved one
    network: str = ""
    achieved: Positive | None = None  # payload of all connections on its link, relative to the link's rate
    flow_bit_per_s: Positive | None = None  # the most payload of one connection
    site: str = ""  # its location
    card: str = ""  # nodes of a site with the same card are GPUs of one machine, and share its link
    inside_bit_per_s: Amount = 0.0  # from it to the next GPU of its machine; 0 is unlimited
    # for the simulator, Γ(x) of this node's device with all ``cores``; None derives it from the workload's
    # core-seconds
    cost: Cost | None = None
    jitter: Amount = 0.0  # for the simulator: relative standard deviation of single compute times, log-normal
    memory_samples: Several | None = None  # largest batch that fits its device; None is unlimited
    # period of the processor quota, like that of a control group; 0 spreads it evenly. For the simulator; the
    # emulator's control groups have 10 ms.
    period_s: Time = 0.0
    # price_per_hour, spot_price_per_hour: of the machine while it is there, in the cluster's currency
    price_per_hour: Amount = 0.0
    spot_price_per_hour: Amount = 0.0
    spot: Trace | None = None  # spot machines that there were, recorded: there is this one while it is above 0
    restart_s: Time = 0.0  # from a spot machine's start to its first step

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"node {self.name!r}: use letters, digits, '.', '_' and '-', as in 'gpu-0'")
        where = f"node {self.name!r}"
        check(self, f"{where}: ")
        for key in ("up_bit_per_s", "down_bit_per_s", "share"):
            if (value := getattr(self, key)) is not None:
                bounded(f"{where}: {key}", max(value.values), POSITIVE)
        if max(self.share.values) > 1:
            raise ConfigError(
                f"{where}: share reaches {max(self.share.values)!r}: give a fraction of cores, or raise cores"
            )
        if self.network and self.network not in NETWORKS:
            raise UnknownNameError(f"network of {where}", self.network, NETWORKS)
        if self.cost is not None:
            check_cost(self.cost)

    @property
    def carried(self) -> Carried:
        """What its link carries: its own values, or those of its kind of network."""
        kind = NETWORKS.get(self.network, Carried(None, None))
        achieved = kind.achieved if self.achieved is None else self.achieved
        return Carried(achieved, self.flow_bit_per_s or kind.flow_bit_per_s)

    @property
    def threads(self) -> int:
        """The assumed number of threads of its worker: its cores, rounded up."""
        return math.ceil(self.cores)

    def available(self, time_s: float) -> float:
        """Return the part of this node's full speed that its worker gets at a time, 0 … 1."""
        rivals = self.load.at(time_s)
        # The scheduler gives every busy thread an equal part: the worker has `threads` of them, each load process one.
        share = self.share.at(time_s)
        return share * (self.threads / (self.threads + rivals))

    def link_bit_per_s(self, time_s: float) -> tuple[float | None, float | None]:
        """Return the capacity of its link at a time, up and down; None is unlimited."""
        up, down = (None if each is None else each.at(time_s) for each in (self.up_bit_per_s, self.down_bit_per_s))
        return up, down

    def next_change_s(self, time_s: float) -> float:
        """Return the time at which :meth:`available` may change next."""
        return min(self.share.next_change_s(time_s), self.load.next_change_s(time_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """The link between two sites, shared by all their nodes."""

    between: tuple[str, str]
    bit_per_s: Trace  # from the first site to the second, over time
    back_bit_per_s: Trace | None = None  # from the second to the first; None is the same
    latency_s: Time = 0.0  # one way
    price_per_gb: Amount = 0.0  # of 10⁹ bytes, both ways, in the cluster's currency

    def __post_init__(self) -> None:
        where = f"link between {self.between[0]!r} and {self.between[1]!r}"
        if self.between[0] == self.between[1]:
            raise ConfigError(f"{where}: a link joins two different sites; inside a site the links of the nodes apply")
        bounded(f"{where}: bit_per_s", max(self.bit_per_s.values), POSITIVE)
        if self.back_bit_per_s is not None:
            bounded(f"{where}: back_bit_per_s", max(self.back_bit_per_s.values), POSITIVE)
        check(self, f"{where}: ")

    @property
    def ends(self) -> frozenset[str]:
        return frozenset(self.between)

    def toward(self, site: str) -> Trace:
        back = self.back_bit_per_s if site == self.between[0] else None
        return self.bit_per_s if back is None else back


ALL_REDUCES = ("gloo", "ring", "tree")
"""The ways of an all-reduce: gloo's ring, and the ring and the double binary tree of NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The computation and traffic of one simulated iteration: the simulator runs no script."""

    global_batch: Several = 256  # X, samples
    gradient_bytes: Count = 4_000_000  # traffic of an exchange of the whole model, before compression
    state_bytes: Count = 0  # memory of the whole model with gradients and optimizer state; 0 is not known
    pass_bytes: Count = 0  # memory that each worker needs in addition: gathered layers, activations, libraries
    # overhead_core_s, per_sample_core_s: core-seconds of an iteration, Γ(x) on one core; for nodes without ``cost``
    overhead_core_s: Time = 0.005
    per_sample_core_s: Time = 0.0005
    number_bytes: Several = 4  # of a number on a link: 2 for bfloat16, 1 for int8; ``gradient_bytes`` has 4
    all_reduce: str = "gloo"  # one of ALL_REDUCES
    flows: Several = 1  # connections from a worker to the next in an all-reduce
    exchange_s: Time = 0.0  # time of an all-reduce of the whole model in addition to that of its bytes
    setup_s: Time = 0.0  # additional time of the first all-reduce of a group
    exchange_core_s: Time = 0.0  # core-seconds of a worker's own side of an exchange
    # core-seconds of a report and of a decision on all reports. They delay nothing here, but a higher cost makes
    # reports rarer, because the slow loop has a budget.
    report_core_s: Time = 0.0
    # part of the compute time in the backward pass, which an exchange can overlap. 2/3 is usual: the backward pass
    # takes twice the work of the forward pass.
    backward: Amount = 2 / 3
    # points (part of the backward pass, part of the gradients that are ready then), linear between them; without
    # points, gradients become ready evenly
    ready: tuple[tuple[float, ...], ...] = ()
    # first_bucket_bytes, bucket_bytes: sizes of the gradient buckets; defaults are those of
    # DistributedDataParallel, 1 MiB and 25 MiB
    first_bucket_bytes: Several = 2**20
    bucket_bytes: Several = 25 * 2**20
    # link bytes per message byte; the default is that of TCP with time stamps in full Ethernet frames: 1,514 bytes
    # with 1,448 of payload
    framing: Amount = 1514 / 1448
    # assumed part of the entries that a significance filter passes, because no gradients exist. [ours]
    significant: Amount = 0.1
    epoch_samples: Several = 50_000  # length of the data set

    def __post_init__(self) -> None:
        check(self, "workload: ")
        if self.gradient_bytes > MOST_BUCKETS * self.bucket_bytes:
            raise ConfigError(
                f"workload: gradient_bytes = {self.gradient_bytes} makes more than {MOST_BUCKETS:,} buckets of "
                f"bucket_bytes = {self.bucket_bytes}: give a smaller model, or larger buckets"
            )
        if self.framing < 1:
            raise ConfigError(
                f"workload: framing = {self.framing!r}: the ratio of bytes sent to bytes of the message is at least 1"
            )
        points = [(0.0, 0.0), *self.ready, (1.0, 1.0)]
        if any(len(point) != 2 for point in points) or any(
            later[0] < point[0] or later[1] <= point[1] for point, later in pairwise(points)
        ):
            raise ConfigError(
                "workload: ready must be a list of rising points, as [[0.25, 0.75], [0.5, 0.94]]. Each has a part of "
                "the backward pass, and the part of the gradients that are ready then"
            )
        if self.all_reduce not in ALL_REDUCES:
            raise UnknownNameError("workload: all_reduce", self.all_reduce, ALL_REDUCES)
        for key in ("backward", "significant"):
            if getattr(self, key) > 1:
                raise ConfigError(f"workload: {key} = {getattr(self, key)!r}: it is a fraction: give at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A whole cluster. Raises ConfigError for parts that do not fit, UnknownNameError for an unknown node or site."""

    name: str
    nodes: tuple[Node, ...]
    about: str = ""
    events: tuple[Event, ...] = ()
    links: tuple[SiteLink, ...] = ()
    workload: Workload = field(default_factory=Workload)
    assumptions: tuple[str, ...] = ()  # sentences on assumed values, with their sources
    # for the simulator: transforms gradients before each step; None for none
    preconditioner: Preconditioning | None = None
    tables: TableWork = field(default_factory=TableWork)
    currency: str = "$"  # of all prices, as it is printed
    # all that the nodes of a site send each other through its switch, over time; None is unlimited
    switch_bit_per_s: Trace | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a cluster needs a name that is not empty")
        if not self.nodes:
            raise ConfigError(f"cluster {self.name!r} has no nodes: give at least one")
        once("node", (node.name for node in self.nodes))
        self._check_links()
        self._check_events()
        if not self.initial_members:
            raise ConfigError(
                f"cluster {self.name!r}: the run would begin without workers: let a node be present from the start"
            )

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.site for node in self.nodes))

    @property
    def initial_members(self) -> tuple[str, ...]:
        """The names of the nodes at the start: all except those whose first membership event is a join."""
        first: dict[str, Do] = {}
        for event in self.events:
            if event.do in COMINGS_AND_GOINGS:
                first.setdefault(event.node, event.do)
        return tuple(node.name for node in self.nodes if first.get(node.name) is not Do.JOIN)

    def cost(self, node: Node) -> Cost:
        """Return Γ(x) of a node with all its cores."""
        if node.cost is not None:
            return node.cost
        return Affine(self.workload.overhead_core_s / node.cores, self.workload.per_sample_core_s / node.cores)

    def _check_links(self) -> None:
        for link in self.links:
            for site in link.between:
                if site not in self.sites:
                    raise UnknownNameError("site in a link:", site, self.sites)
        once("link", (" and ".join(sorted(link.between)) for link in self.links))

    def _check_events(self) -> None:
        nodes = {node.name: node for node in self.nodes}
        lines = {link.ends: " and ".join(link.between) for link in self.links}
        changes: dict[str, list[Event]] = {}
        for event in self.events:
            if event.between is not None:
                if event.of not in lines:
                    raise UnknownNameError("line in event 'cut_link':", " and ".join(event.between), lines.values())
                continue
            if event.node not in nodes:
                raise UnknownNameError(f"node in event {event.do.value!r}:", event.node, nodes)
            node = nodes[event.node]
            if event.do is Do.CUT_LINK and event.factor and node.up_bit_per_s is None and node.down_bit_per_s is None:
                raise ConfigError(
                    f"event 'cut_link' of node {node.name!r}: factor = {event.factor} applies to a link without a "
                    "limit; give bit_per_s instead, or give the node up_bit_per_s and down_bit_per_s"
                )
            if event.do in COMINGS_AND_GOINGS:
                changes.setdefault(event.node, []).append(event)
        for name, its in changes.items():
            for problem in disorder(its):
                raise ConfigError(f"events of node {name!r}: {problem}")
