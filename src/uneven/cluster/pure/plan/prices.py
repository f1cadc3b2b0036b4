"""The price of a training on a described cluster, and how far a budget and a deadline reach."""

import math
from dataclasses import dataclass
from itertools import pairwise

from uneven.cluster.pure.describe.cluster_events import COMINGS_AND_GOINGS
from uneven.cluster.pure.describe.spec import ClusterSpec, Node
from uneven.cluster.pure.plan.plan_figures import CombinationResult, Figures
from uneven.cluster.pure.simulate.virtual_world import PAUSE_S

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a training in the currency of its cluster."""

    per_hour: float  # of all machines, and of the bytes on lines with a price
    samples_per_s: float

    @property
    def per_million(self) -> float:
        """The price of 10⁶ samples."""
        return self.of_s(1e6 / self.samples_per_s) if self.samples_per_s > 0 else math.inf

    def of_s(self, seconds: float) -> float:
        """Return the price of this many seconds."""
        return self.per_hour * seconds / HOUR_S


def priced(spec: ClusterSpec) -> bool:
    """Return whether the description has a price."""
    machines = any(node.price_per_hour or node.spot_price_per_hour for node in spec.nodes)
    return machines or any(link.price_per_gb for link in spec.links)


def price(spec: ClusterSpec, figures: Figures) -> Price:
    """Return the price of a simulated training: machines from start to end, or while they are there."""
    there_s = {worker.rank: worker.present_s for worker in figures.workers}
    comes = {event.node for event in spec.events if event.do in COMINGS_AND_GOINGS}
    machines = 0.0
    for rank, node in enumerate(spec.nodes):
        part = there_s.get(rank, 0.0) / figures.ended_at_s if node.name in comes else 1.0
        machines += part * node.price_per_hour
    return Price(machines + _traffic(spec, figures), figures.samples_per_s)


def _traffic(spec: ClusterSpec, figures: Figures) -> float:
    """Return the price per hour of the bytes on lines between sites."""
    total = 0.0
    for link in spec.links:
        one, other = link.between
        sent_bytes = sum(figures.sent_bytes.get(line, 0) for line in (f"{one} to {other}", f"{other} to {one}"))
        total += link.price_per_gb * sent_bytes / 1e9
    return total * HOUR_S / figures.ended_at_s


@dataclass(frozen=True, slots=True)
class Spot:
    """The same training on spot machines, as recorded series of their availability show it."""

    price: Price
    available: float  # part of the cluster's speed that is there on average, 0 … 1
    interruptions_per_hour: float  # of all machines together
    lost: float  # part of the samples of the present machines that starts and interruptions cost, 0 … 1


def spot(spec: ClusterSpec, figures: Figures) -> Spot | None:
    """Return the forecast in an elastic run; None if no node has a spot price.

    Each machine computes at its speed in the simulation while it is there, but first it is paid for ``restart_s``. If
    it comes or goes, all workers pause. If it goes, its batch is computed again.
    """
    if not any(node.spot_price_per_hour for node in spec.nodes):
        return None
    workers = {worker.rank: worker for worker in figures.workers}
    paid = whole = there = useful = goes_per_s = repeated_per_s = 0.0
    for rank, node in enumerate(spec.nodes):
        part, goes_s = _recorded(node)
        paid += part * (node.spot_price_per_hour or node.price_per_hour)
        if rank in workers:
            whole += workers[rank].speed_per_s
            there += workers[rank].speed_per_s * part
            useful += workers[rank].speed_per_s * max(0.0, part - node.restart_s * goes_s)
            goes_per_s += goes_s
            repeated_per_s += goes_s * workers[rank].batch
    most_per_s = figures.samples_per_s * there / whole if whole else 0.0
    moving = max(0.0, 1.0 - 2 * goes_per_s * PAUSE_S)
    per_s = max(0.0, figures.samples_per_s * useful / whole * moving - repeated_per_s) if whole else 0.0
    lost = 1.0 - per_s / most_per_s if most_per_s else 0.0
    sent = _traffic(spec, figures) * (there / whole if whole else 0.0)
    return Spot(Price(paid + sent, per_s), there / whole if whole else 0.0, goes_per_s * HOUR_S, lost)


def _recorded(node: Node) -> tuple[float, float]:
    """Return the part of the time that a node is there, and how often it goes per second."""
    if node.spot is None:
        return 1.0, 0.0
    here = [value > 0 for value in node.spot.values]
    goes = sum(now and not later for now, later in pairwise([*here, here[0]]))
    return sum(here) / len(here), goes / (len(here) * node.spot.lasts_s)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of a training: money in the currency of the cluster, and time."""

    spec: ClusterSpec
    budget: float = math.inf
    deadline_s: float = math.inf

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(min(self.budget, self.deadline_s))

    def seconds(self, result: CombinationResult) -> float:
        """Return how long a combination can run within both limits."""
        per_hour = price(self.spec, result.figures).per_hour
        return min(self.deadline_s, self.budget / per_hour * HOUR_S if per_hour else math.inf)

    def samples(self, result: CombinationResult) -> float:
        """Return the samples within both limits."""
        return result.figures.samples_per_s * self.seconds(result)

    def reaches(self, result: CombinationResult) -> bool:
        """Return whether a training reaches its goal within both limits."""
        lesson = result.lesson
        return lesson is not None and lesson.reached_s is not None and lesson.reached_s <= self.seconds(result)
