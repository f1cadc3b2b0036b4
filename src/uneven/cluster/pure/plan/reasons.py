"""The reasons for a combination's speed, in words; every number is simulated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Node, SiteLink, Trace
from uneven.cluster.pure.plan.plan_figures import CombinationResult, Figures
from uneven.cluster.pure.plan.rank import Plan, Row
from uneven.cluster.pure.simulate import OwnOutcome, WorkerOutcome
from uneven.cluster.pure.simulate.routes import pieces_of
from uneven.journal.report.pure.text import percent, seconds, size
from uneven.policy.balance import balancers
from uneven.policy.sync import Pace


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
    load = spec.workload
    moved_bits = 2 * (size - 1) / size * load.gradient_bytes * load.number_bytes * 2
    rates = {node.name: rate for node in spec.nodes if (rate := _rate(node, load.flows)) is not None}
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
    if latency_s and load.all_reduce == "gloo":
        pieces = pieces_of(size, load.gradient_bytes)  # two in the time there and back
        yield Bottleneck(f"the latency of {latency_s * 1e3:.3g} ms{where}", pieces * latency_s)


def _rate(node: Node, flows: int) -> float | None:
    both = [fmean(trace.values) for trace in (node.up_bit_per_s, node.down_bit_per_s) if isinstance(trace, Trace)]
    if not both:
        return None
    achieved, flow_bit_per_s = node.carried
    return min(min(both) * (achieved or 1.0), flows * (flow_bit_per_s or math.inf))


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


_EQUAL = 1.1  # ratio of fastest to slowest below which workers count as equally fast [default]
_HEAVY = 0.15  # part of the time from which communication is mentioned [default]
_UNIT = 1000  # ratio of exchange to computing from which a wrong unit is likely [default]
_SAMPLES = 0.05  # relative difference in samples to the goal that is mentioned [default]


def findings(spec: ClusterSpec, plan: Plan) -> list[str]:
    """Return what the baseline shows about the cluster, in sentences without a full stop."""
    figures = plan.baseline.result.figures
    parts = doubts(spec, figures.communicate_share)
    if len(figures.workers) > 1:
        parts.append(_unequal(plan.baseline.result))
    if figures.communicate_share >= _HEAVY:
        parts.append(_heavy(spec, figures))
    if figures.own:
        parts.append(preconditioning(spec, figures.own))
    parts += _happenings(spec)
    return parts


_SLOWEST_BIT_PER_S = 1000.0  # a lower bandwidth is likely to have another unit [ours]


def doubts(spec: ClusterSpec, communicate_share: float) -> list[str]:
    """Return doubts about a description's links, in sentences without a full stop. ``communicate_share``: part of all
    workers' time in its simulation, 0 … 1."""
    parts = []
    if len(spec.nodes) > 1 and not communicate_share and bottleneck(spec) is None:
        parts.append(
            "No link is limited, so communication is free here: give the nodes up_bit_per_s and down_bit_per_s"
        )
    links = {f"{node.name}'s link up": node.up_bit_per_s for node in spec.nodes}
    links |= {f"{node.name}'s link down": node.down_bit_per_s for node in spec.nodes}
    links |= {f"the line between {' and '.join(link.between)}": link.bit_per_s for link in spec.links}
    slow = {name: max(rate.values) for name, rate in links.items() if rate is not None}
    slow = {name: rate for name, rate in slow.items() if rate < _SLOWEST_BIT_PER_S}
    for name, rate in list(slow.items())[:1]:
        parts.append(f"{name[0].upper()}{name[1:]} has {bits(rate)}. Is the unit right? 50 Mbit/s is 50e6")
    return parts


def preconditioning(spec: ClusterSpec, own: Sequence[OwnOutcome]) -> str:
    """Return what a preconditioner adds to a step, in a sentence without a full stop."""
    one = spec.preconditioner
    assert one is not None
    workers, longest = len(own), max(own, key=lambda it: (it.seconds + it.factors_s, -it.rank))
    held = max(1, round(one.share * workers))
    name = {"kfac": "K-FAC", "soap": "SOAP", "muon": "Muon"}[one.kind]
    owners = ", ".join(f"{spec.nodes[it.rank].name} {it.squares}" for it in own if it.squares)
    factors, refreshes = one.factor_period, one.refresh_period
    return (
        f"{name} on {len(one.layers)} layers, periods {factors} and {refreshes}, f = {held}/{workers}: it takes at "
        f"most {seconds(longest.seconds + longest.factors_s)} of a step, on {spec.nodes[longest.rank].name}, of this "
        f"{seconds(longest.factors_s)} for factors; a worker sends at most "
        f"{size(max(it.sent_bytes for it in own))} a step; owned squares: {owners}"
    )


def reason(row: Row, plan: Plan) -> str:
    """Return the reason for a combination's rank, without a full stop."""
    told = _timing(row.result, plan), _learning(row.result, plan), row.result.unshown
    return "; ".join(filter(None, told))


def _unequal(result: CombinationResult) -> str:
    figures = result.figures
    slow, fast = figures.slowest, figures.fastest
    if figures.unequal < _EQUAL:
        return f"All {len(figures.workers)} nodes compute about as fast: there is little to balance"
    text = f"{slow.node} computes {times(figures.unequal)} slower than {fast.node}, the fastest"
    held_up = _others_wait(figures, slow)
    if result.facts is not None and result.facts.pace is Pace.TOGETHER and held_up >= 0.02:
        how = "equal batches leave" if result.choice.balance == "even" else f"{result.choice.balance} leaves"
        text += f": {how} the others waiting {percent(held_up)} of the time"
    return text


def _heavy(spec: ClusterSpec, figures: Figures) -> str:
    slow = figures.slowest
    talk_s, compute_s = slow.communicate_share * slow.step_s, _compute_s(slow)
    text = f"An exchange takes {seconds(talk_s)}, computing {seconds(compute_s)} on {slow.node}"
    narrow = bottleneck(spec)
    if narrow is not None and narrow.seconds >= talk_s / 4:
        check = "; check that all bandwidths are in bit/s" if talk_s >= _UNIT * compute_s else ""
        return f"{text}: {narrow.what} is the bottleneck{check}"
    if spec.workload.exchange_core_s > 0:
        return f"{text}: most of that is work of the processors"
    return text


def _happenings(spec: ClusterSpec) -> list[str]:
    parts = []
    for do, what in (
        (Do.JOIN, "comes/come"), (Do.LEAVE, "leaves/leave"), (Do.KILL, "dies/die"),
        (Do.SLOW, "is slowed down/are slowed down"), (Do.STOP, "pauses for a while/pause for a while"),
        (Do.CUT_LINK, "has its link cut/have their links cut"),
    ):  # fmt: skip
        one, several = what.split("/")
        nodes = {event.node for event in spec.events if event.do is do and event.node}
        if nodes:
            parts.append(f"{len(nodes)} {several}" if len(nodes) > 1 else f"{next(iter(nodes))} {one}")
    lines = {event.of: event.where for event in spec.events if event.between is not None}
    parts += [f"{where} is cut" for where in lines.values()]
    return ["On the way, " + ", ".join(parts)] if parts else []


def _timing(result: CombinationResult, plan: Plan) -> str:
    facts = result.facts
    if facts is None:
        return "the policy states no facts about itself"
    if facts.pace is Pace.OWN:
        return _own_pace(result)
    if facts.pace is Pace.BOUNDED:
        return _bounded(result)
    if facts.pace is Pace.QUORUM:
        return _quorum(result)
    return _together(result, plan)


def _own_pace(result: CombinationResult) -> str:
    figures = result.figures
    slow, fast = _rarest(figures), _most(figures)
    if figures.steps_apart:
        head = f"no worker waits; an exchange runs in the background, one in {figures.steps_apart:.3g} steps"
    elif figures.communicate_share >= _HEAVY:
        head = f"no worker waits, but the exchange itself takes {percent(figures.communicate_share)} of the time"
    else:
        head = "no worker waits for another"
    if fast.late_rate_per_s < _EQUAL * slow.late_rate_per_s:
        return f"{head}; all take about the same number of steps"
    others = sum(one.late_rate_per_s for one in figures.workers) - slow.late_rate_per_s
    return (
        f"{head}: {fast.node} takes {times(fast.late_rate_per_s / slow.late_rate_per_s)} as many steps as "
        f"{slow.node}, whose updates are {others / slow.late_rate_per_s:.0f} steps stale"
    )


def _bounded(result: CombinationResult) -> str:
    figures = result.figures
    slow, fast = figures.slowest, _most(figures)
    if fast.late_rate_per_s < _EQUAL * slow.late_rate_per_s and _others_wait(figures, slow) > 0.1:
        return (
            f"runs at the pace of {slow.node} once the lead is used up: the others then wait, "
            f"{percent(_others_wait(figures, slow))} of their time in all"
        )
    return f"the allowed lead absorbs the variation: the others wait {percent(_others_wait(figures, slow))}"


def _quorum(result: CombinationResult) -> str:
    figures = result.figures
    late = sorted((one for one in figures.workers if one.dropped), key=lambda one: -one.dropped / one.steps)
    if not late:
        return "no worker came too late"
    first = late[0]
    text = f"does not wait for the last: {percent(figures.dropped_share)} of all steps are dropped"
    return f"{text}, {percent(first.dropped / first.steps)} of those of {first.node}"


def _together(result: CombinationResult, plan: Plan) -> str:
    figures = result.figures
    parts = [_balance(result, plan)]
    every = result.facts.every if result.facts is not None else 1
    before = plan.baseline.result.figures.communicate_share
    if result.facts is not None and result.facts.pace is Pace.GROUPS:
        parts.append("only a group waits for its slowest, and meets another group next")
    elif every > 1 and before >= 0.05:
        parts.append(f"an exchange every {every} steps: communication takes {percent(figures.communicate_share)}")
    elif figures.communicate_share >= _HEAVY:
        parts.append(f"communication takes {percent(figures.communicate_share)}")
    return "; ".join(parts)


def _balance(result: CombinationResult, plan: Plan) -> str:
    figures = result.figures
    least, most = min(one.batch for one in figures.workers), max(one.batch for one in figures.workers)
    if not balancers.resolve(result.choice.balance).adapts and least + 1 >= most:
        if figures.unequal < _EQUAL:
            return "equal batches, about equal workers"
        held_up = _others_wait(figures, figures.slowest)
        return f"equal batches: the others wait {percent(held_up)} of their time for {figures.slowest.node}"
    small = min(figures.workers, key=lambda one: (one.batch, one.rank))
    large = max(figures.workers, key=lambda one: (one.batch, -one.rank))
    if least + 1 >= most:
        return f"chose equal batches; waiting takes {percent(figures.wait_share)}"
    text = f"{large.node} takes {most} samples and {small.node} {least}"
    base = plan.baseline.result.figures.wait_share
    if figures.wait_share < base:
        return f"{text}: waiting takes {percent(figures.wait_share)} instead of {percent(base)}"
    return f"{text}; waiting takes {percent(figures.wait_share)}"


def _learning(result: CombinationResult, plan: Plan) -> str:
    # The number of samples to the goal shows most of the cost of asynchrony.
    lesson, base = result.lesson, plan.baseline.result.lesson
    if lesson is None:
        return ""
    if lesson.diverged:
        return "but the model diverges"
    if lesson.reached_samples is None:
        return f"but it reaches only {percent(lesson.best)}"
    if base is None or base.reached_samples is None or result is plan.baseline.result:
        return ""
    needs = lesson.reached_samples / base.reached_samples
    if abs(needs - 1) < _SAMPLES:
        return ""
    more = "more" if needs > 1 else "fewer"
    than = f"{plan.baseline.result.choice.sync} with {plan.baseline.result.choice.balance} shares"
    return f"needs {percent(abs(needs - 1))} {more} samples than {than}"


def _others_wait(figures: Figures, slow: WorkerOutcome) -> float:
    # Part of their time that all workers except the slowest wait.
    others = [one for one in figures.workers if one.rank != slow.rank]
    time_s = sum(one.step_s * one.steps for one in others)
    return sum(one.wait_share * one.step_s * one.steps for one in others) / time_s if time_s > 0 else 0.0


def _compute_s(worker: WorkerOutcome) -> float:
    return worker.step_s * (1 - worker.wait_share - worker.communicate_share)


def _rarest(figures: Figures) -> WorkerOutcome:
    return min(figures.workers, key=lambda one: (one.late_rate_per_s, one.rank))


def _most(figures: Figures) -> WorkerOutcome:
    return max(figures.workers, key=lambda one: (one.late_rate_per_s, -one.rank))


def times(value: float) -> str:
    """Return a factor as text: ``3.94`` → ``3.9 ×``."""
    return f"{value:.1f} ×" if value < 9.95 else f"{value:.0f} ×"
