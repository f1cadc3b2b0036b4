"""The output of ``uneven plan``: advice, ranking, reasons, and combinations that were left out."""

import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from uneven.cluster.pure.plan import Allowance, LeftOut, Plan, Price, Row, findings, price, priced, reason, spot
from uneven.cluster.pure.plan.memory_plan import MemoryPlan, divided, machines
from uneven.cluster.pure.plan.reasons import listed
from uneven.cluster.pure.plan.table_plan import TablePlanned, planned
from uneven.journal.report.console import Console, columns
from uneven.journal.report.pure.text import count, percent, seconds, span
from uneven.policy.balance import balancers
from uneven.policy.sync import exact

if TYPE_CHECKING:
    from uneven.cluster.pure.describe.spec import ClusterSpec
    from uneven.cluster.virtual import Goal

_WIDEST = 110
_HELD = "\u00a0"


def amount(value: float) -> str:
    """Return an amount of money as text, to cents or to two digits: ``5.8`` → ``5.80``, ``0.0042`` → ``0.0042``."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.2g}" if 0 < value < 0.1 else f"{value:,.2f}"


@dataclass(frozen=True, slots=True)
class MachineChange:
    """The price of the best combination with another number of machines."""

    words: str
    price: Price


@dataclass(frozen=True, slots=True)
class PlanPage:
    """The data of the page."""

    spec: "ClusterSpec"
    plan: Plan
    left: tuple[LeftOut, ...]
    iterations: int
    goal: "Goal | None"
    took_s: float  # wall time
    # show each row of the ranking, because balancers were named; by default the best of each policy
    every: bool
    allowance: Allowance
    changes: tuple[MachineChange, ...]

    @property
    def priced(self) -> bool:
        """Whether the description has prices."""
        return priced(self.spec)

    def price(self, row: Row) -> Price:
        """Return the price of a row."""
        return price(self.spec, row.result.figures)

    def money(self, value: float) -> str:
        """Return an amount as text: ``5.8`` → ``$ 5.80``."""
        return f"{self.spec.currency} {amount(value)}"

    @property
    def memory(self) -> MemoryPlan | None:
        """The division of the model by memory, if the description has its size."""
        work = self.spec.workload
        if not work.state_bytes:
            return None
        return divided(machines(self.spec), work.state_bytes, work.pass_bytes, work.global_batch)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows shown; always with the baseline and the best one that a real run supports."""
        plan = self.plan
        best = {row.result.choice.sync: row for row in reversed(plan.shown)}
        kept = [*best.values(), plan.best_carried]
        base = plan.baseline.result.choice
        return tuple(row for row in plan.shown if self.every or row in kept or row.result.choice == base)


def show(page: PlanPage, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.width = min(console.width, _WIDEST)
    spec, plan = page.spec, page.plan
    console.print(Text(f"{spec.name}", style="bold").append(f"  {_scene(page)}", style="dim"))
    for line in advice(page):
        _say(console, line)
    console.print()
    for line in findings(spec, plan):
        _say(console, f"{line}.")
    _say(
        console,
        f"The limit is {count(plan.limit_per_s)} samples/s: all nodes always compute, and communication is free.",
    )
    console.print(_table(page))
    _say(console, _notes(page), style="dim")
    if page.priced:
        _show_prices(page, console)
    console.print(Text("\nWhy", style="bold"))
    for numbers, line in _whys(page):
        _say(console, line, head=f"{numbers:>3}")
    if page.left:
        console.print(Text("\nLeft out", style="bold"))
        for line in _left(page.left):
            _say(console, line)
    if spec.tables.features:
        _show_table_servers(planned(spec), console)


def _show_prices(page: PlanPage, console: Console) -> None:
    """Print the price of spot machines, and of one machine more or fewer."""
    best = page.plan.best_carried or page.plan.best
    before, bought = page.price(best), spot(page.spec, best.result.figures)
    console.print(Text(f"\nPrices under {best.result.choice.sync}, {best.result.choice.balance} shares", style="bold"))
    prices = [("as described", before), *([("on spot machines", bought.price)] if bought else [])]
    rows = [
        (words, count(one.samples_per_s), page.money(one.per_hour), page.money(one.per_million))
        for words, one in (*prices, *((change.words, change.price) for change in page.changes))
    ]
    console.print(columns(("machines", "samples/s", "an hour", "10⁶ samples"), rows))
    if bought is not None:
        _say(
            console,
            f"Spot machines are there {percent(bought.available)} of the time, with "
            f"{bought.interruptions_per_hour:.3g} interruptions per hour; starts, pauses and repeated batches cost "
            f"{percent(bought.lost)} of their samples.",
        )


def _show_table_servers(found: TablePlanned, console: Console) -> None:
    """Print the number of table servers, the lookahead, and the bottleneck."""
    console.print(Text("\nTable servers", style="bold"))
    rows = ((str(one.servers), count(one.per_s), percent(one.server_load), one.limit) for one in found.rows)
    console.print(columns(("servers", "samples/s", "of their time", "limit"), rows, left=(3,)))
    best = found.best
    _say(
        console,
        f"Take --tables {best.servers} and ahead={best.ahead}: {count(best.per_s)} samples/s; the bottleneck is "
        f"{best.limit}. Exchanges of the dense part are not counted.",
    )


def _scene(page: PlanPage) -> str:
    nodes = len(page.spec.nodes)
    played = len(page.plan.rows)
    what = "combination" if played == 1 else "combinations"
    return (
        f"{nodes} node{'s' if nodes > 1 else ''}, global batch {count(page.spec.workload.global_batch)}; "
        f"{played} {what} of {page.iterations} iterations, simulated in {seconds(page.took_s)}"
    )


def _say(console: Console, text: str, *, head: str = " ", style: str = "") -> None:
    """Print a paragraph, indented below its head."""
    kept = re.sub(r"(?<=\d) (?=[%×]|m?s\b)", _HELD, text)  # a number stays with its unit
    lines = textwrap.wrap(kept, max(20, console.width - len(head) - 1), break_long_words=False)
    for place, line in enumerate(lines):
        shown = f"{head if place == 0 else ' ' * len(head)} {line.replace(_HELD, ' ')}"
        console.print(Text(shown, style=style), soft_wrap=True)


def _notes(page: PlanPage) -> str:
    base = page.plan.baseline.result.choice
    note = f"Speed-up is relative to {base.balance} shares under {base.sync}"
    note += "." if page.goal is None else ", in time to the goal; in brackets, the best that was reached."
    if any(row.twins for row in page.rows):
        note += " * Others are equally fast within 1 %."
    if any(row.result.unshown for row in page.rows):
        note += " † Exchanges are further apart than in published runs that learned."
    if hidden := len(page.plan.shown) - len(page.rows):
        note += f" Not shown: {hidden} slower rows of these policies; --balance NAME,… or --format json shows them."
    return note


def _table(page: PlanPage) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", justify="right", min_width=3)
    for name in ("balance", "sync"):
        table.add_column(name, no_wrap=True)
    if page.goal is not None:
        table.add_column(f"to {percent(page.goal.accuracy)}", justify="right", no_wrap=True)
        table.add_column("samples", justify="right", no_wrap=True)
    # With a goal or prices, the other columns would not fit a narrow terminal.
    for name in ("samples/s", *_headings(page), "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("real run", no_wrap=True)
    best = page.plan.best_carried
    for place, row in enumerate(page.rows, 1):
        result = row.result
        style = "bold" if best is not None and result is best.result else ""
        learnt = _learnt(row) if page.goal is not None else ()
        table.add_row(
            str(place),
            balancers.marked(result.choice.balance) + (" *" if row.twins else ""),
            result.choice.sync + ("" if result.unshown is None else " †"),
            *learnt,
            count(result.figures.samples_per_s),
            *_cells(page, row),
            _speed_up(row, page),
            "yes" if result.refused is None else "not yet",
            style=style,
        )
    return table


def _headings(page: PlanPage) -> tuple[str, ...]:
    money = page.spec.currency
    if page.goal is not None:
        return (money,) if page.priced else ()
    if page.allowance.limited:
        return (f"{money}/10⁶" if page.priced else "of limit", "10⁶ within")
    return (f"{money}/hour", f"{money}/10⁶") if page.priced else ("of limit", "waiting")


def _cells(page: PlanPage, row: Row) -> tuple[str, ...]:
    """Return the cells below :func:`_headings`."""
    result, own = row.result, page.price(row)
    if page.goal is not None:
        reached_s = None if result.lesson is None else result.lesson.reached_s
        return ("–" if reached_s is None else amount(own.of_s(reached_s)),) if page.priced else ()
    if page.allowance.limited:
        first = amount(own.per_million) if page.priced else f"{row.of_limit:.2f}"
        return first, count(page.allowance.samples(result) / 1e6)
    if page.priced:
        return amount(own.per_hour), amount(own.per_million)
    return f"{row.of_limit:.2f}", percent(result.figures.wait_share)


def _learnt(row: Row) -> tuple[str, str]:
    lesson = row.result.lesson
    if lesson is None or lesson.diverged:
        return "astray", "–"
    if lesson.reached_s is None or lesson.reached_samples is None:
        return f"({percent(lesson.best)})", "–"
    return seconds(lesson.reached_s), count(lesson.reached_samples)


def speed_up(row: Row, page: PlanPage) -> float | None:
    """Return the speed-up over the baseline: in time to the goal, without a goal in samples/s; None if unknown."""
    base = page.plan.baseline.result
    if page.goal is None:
        below = base.figures.samples_per_s
        return row.result.figures.samples_per_s / below if below > 0 else None
    own, other = row.result.lesson, base.lesson
    if own is None or other is None or own.reached_s is None or other.reached_s is None:
        return None
    return other.reached_s / own.reached_s


def _speed_up(row: Row, page: PlanPage) -> str:
    value = speed_up(row, page)
    return "–" if value is None else f"{value:.2f} ×"


def _whys(page: PlanPage) -> Iterator[tuple[str, str]]:
    """Yield number and reason of the best of each policy and of the baseline; one line for equal reasons."""
    places_of: dict[str, list[int]] = {}
    syncs: set[str] = set()
    plan, rows = page.plan, page.rows
    for place, row in enumerate(rows, 1):
        choice = row.result.choice
        if choice.sync not in syncs or choice == plan.baseline.result.choice:
            syncs.add(choice.sync)
            places_of.setdefault(reason(row, plan), []).append(place)
    for text, places in places_of.items():
        names = [rows[place - 1] for place in places]
        named = listed([f"{row.result.choice.balance} under {row.result.choice.sync}" for row in names])
        twins = dict.fromkeys(name for row in names for name in row.twins)
        also = f" (* also {listed(list(twins))})" if twins else ""
        yield str(places[0]), f"{named}{also}: {text}."


def _left(left: tuple[LeftOut, ...]) -> list[str]:
    text_lines = []
    ordered = sorted(left, key=lambda one: one.why)
    for why, group in groupby(ordered, key=lambda one: one.why):
        ones = list(group)
        syncs = list(dict.fromkeys(one.sync for one in ones))
        balances = list(dict.fromkeys(one.balance for one in ones if one.balance))
        what = f"{listed(balances)} under {listed(syncs)}" if balances else listed(syncs)
        text_lines.append(f"{what}: {why}.")
    return text_lines


def advice(page: PlanPage) -> list[str]:
    best, carried = page.plan.best, page.plan.best_carried
    if len(page.spec.nodes) == 1:
        return ["There is nothing to plan: a single worker divides no batch and exchanges nothing."]
    text_lines = []
    if carried is None:
        text_lines.append("No real run supports the simulated policies yet: add --sync bsp.")
    else:
        choice, gain = carried.result.choice, speed_up(carried, page)
        base = page.plan.baseline.result.choice
        sync = "" if choice.sync == "bsp" else f" --sync {choice.sync}"
        text_lines.append(f"Today:    uneven run --balance {choice.balance}{sync} SCRIPT")
        if gain is not None and choice != base:
            what = "the samples/s of" if page.goal is None else "as fast as"
            text_lines[-1] += f"    ({gain:.2f} × {what} {base.balance} shares under {base.sync})"
    if (memory := page.memory) is not None:
        text_lines.append(f"Memory:   {memory.told(machines(page.spec))}")
    if page.allowance.limited:
        text_lines.append(f"Within:   {_within(page, carried or best)}")
    if best.result.refused is not None:
        choice, gain = best.result.choice, speed_up(best, page)
        more = "" if gain is None else f" ({gain:.2f} ×)"
        text_lines.append(f"Not yet:  {choice.balance} under {choice.sync}{more}, which can only be simulated so far")
    syncs = [row.result.choice.sync for row in (carried, best) if row is not None]
    loose = [sync for sync in syncs if not exact(sync, [node.site for node in page.spec.nodes])]
    if page.goal is None and loose:
        text_lines.append(
            f"Caution:  under {loose[0]} a model may need more samples than under bsp, and samples/s does not show it: "
            f"add --train digits to rank by the time to an accuracy."
        )
        plain = next((row for row in page.plan.shown if row.result.choice.sync == "bsp"), None)
        if plain is not None and plain.result.refused is None:
            gain = speed_up(plain, page)
            more = "" if gain is None else f" ({gain:.2f} ×)"
            balance = plain.result.choice.balance
            text_lines.append(f"Exact:    uneven run --balance {balance} SCRIPT{more}, the gradient of one process")
    return text_lines


def _within(page: PlanPage, row: Row) -> str:
    """Return how far budget and deadline reach."""
    allowance, own = page.allowance, page.price(row)
    limits = [page.money(allowance.budget)] * math.isfinite(allowance.budget)
    limits += [span(allowance.deadline_s)] * math.isfinite(allowance.deadline_s)
    lesson, names = row.result.lesson, listed(limits)
    if lesson is None:
        took_s = allowance.seconds(row.result)
        paid = f" and cost {page.money(own.of_s(took_s))}" if page.priced else ""
        return f"{names}: {count(allowance.samples(row.result))} samples, which take {span(took_s)}{paid}"
    if not allowance.reaches(row.result):
        return f"no combination reaches the accuracy within {names}"
    paid = f" and {page.money(own.of_s(lesson.reached_s or 0.0))}" if page.priced else ""
    return f"the accuracy takes {span(lesson.reached_s or 0.0)}{paid} of {names}"


def as_json(page: PlanPage, task: str | None) -> dict[str, Any]:
    plan, best = page.plan, page.plan.best_carried
    return {
        "cluster": page.spec.name,
        "nodes": len(page.spec.nodes),
        "iterations": page.iterations,
        "task": task,
        "accuracy": None if page.goal is None else page.goal.accuracy,
        "limit_per_s": plan.limit_per_s,
        "findings": findings(page.spec, plan),
        "rows": [_row(row, page) for row in plan.rows],
        "left_out": [{"balance": one.balance, "sync": one.sync, "why": one.why} for one in page.left],
        "best": _named(plan.best),
        "best_carried": None if best is None else _named(best),
        "took_s": page.took_s,
        **({} if page.memory is None else {"memory": asdict(page.memory)}),
        **(_prices(page, best or plan.best) if page.priced else {}),
        **({"tables": asdict(planned(page.spec))} if page.spec.tables.features else {}),
    }


def _prices(page: PlanPage, best: Row) -> dict[str, Any]:
    bought = spot(page.spec, best.result.figures)
    return {
        "currency": page.spec.currency,
        "spot": None if bought is None else asdict(bought) | amounts(bought.price),
        "machines": [{"words": one.words, **amounts(one.price)} for one in page.changes],
    }


def amounts(one: Price) -> dict[str, float]:
    """Return a price as it is printed in JSON."""
    return {"samples_per_s": one.samples_per_s, "per_hour": one.per_hour, "per_million": one.per_million}


def _named(row: Row) -> dict[str, str]:
    return {"balance": row.result.choice.balance, "sync": row.result.choice.sync}


def _row(row: Row, page: PlanPage) -> dict[str, Any]:
    figures, lesson = row.result.figures, row.result.lesson
    shown: dict[str, Any] = {
        **_named(row),
        "samples_per_s": figures.samples_per_s,
        "of_limit": row.of_limit,
        "iteration_s": figures.iteration_s,
        "wait_share": figures.wait_share,
        "communicate_share": figures.communicate_share,
        "speed_up": speed_up(row, page),
        "carried": row.result.refused is None,
        "shown_to_learn": row.result.unshown is None,
        "why": reason(row, page.plan),
    }
    if page.priced:
        shown |= {"per_hour": page.price(row).per_hour, "per_million": page.price(row).per_million}
    if page.allowance.limited:
        shown["samples_within"] = page.allowance.samples(row.result)
    if figures.own:
        shown["preconditioner"] = [one._asdict() for one in figures.own]
    if lesson is not None:
        shown |= {
            "reached_s": lesson.reached_s,
            "reached_samples": lesson.reached_samples,
            "best_accuracy": lesson.best,
            "diverged": lesson.diverged,
        }
    return shown
