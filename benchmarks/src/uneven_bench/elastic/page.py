"""The tables of ``uneven bench elastic``."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from uneven_bench.elastic.cases import KINDS, OURS, OVERHEAD, SPOT
from uneven_bench.show import table_of


def tables(result: dict[str, Any]) -> list[Table]:
    found = [_faults(name, case) for name, case in result["cases"].items() if name not in (OVERHEAD, *SPOT) and case]
    if spots := {SPOT[name]: case for name, case in result["cases"].items() if name in SPOT and case}:
        found.append(_spot(spots))
    if overheads := result["cases"].get(OVERHEAD):
        found.append(_overhead(overheads))
    return [*found, _short(result)]


def _faults(name: str, case: dict[str, dict[str, Any]]) -> Table:
    kinds = [kind for kind in KINDS if any(kind in one["pause_s"] for one in case.values())]
    shown = Table(
        title=f"{name}: pause beyond a usual step, seconds, median (worst)",
        caption="lost, twice: samples of epochs that were over; ended: survivors that a fault ended; † nobody went on",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for heading in ("", *kinds, "step", "lost", "twice", "steps more", "ended", "replay"):
        shown.add_column(heading, justify="right" if shown.columns else "left")
    for arm, one in case.items():
        replayed = one["replay_error"]
        shown.add_row(
            Text(arm, "bold" if arm == OURS else ""),
            *(_pause(one["pause_s"].get(kind)) for kind in kinds),
            f"{1e3 * one['step_s']:.0f} ms",
            str(one["lost"]),
            str(one["twice"]),
            str(one["more_steps"]),
            str(one["survivors_ended"]),
            "" if replayed is None else f"{replayed:.1e}",
        )
        for wrong in one["wrong"]:
            shown.add_row(Text(f"  {wrong}", "red"))
    return shown


def _pause(of: dict[str, Any] | None) -> str:
    if of is None:
        return ""
    ended = f" †{of['without_end']}" if of["without_end"] else ""
    if of["median"] is None:
        return ended.strip()
    worst = "" if of["worst"] is None or of["count"] == 1 else f" ({of['worst']:.2f})"
    return f"{of['median']:.2f}{worst}{ended}"


def _spot(spots: dict[str, dict[str, Any]]) -> Table:
    one = next(iter(spots.values()))
    shown = Table(
        title=f"Spot machines: {one['changes']} comings and goings in {one['seconds']:.0f} s, 2 … {one['most']} there",
        caption=f"after {one['record']}; goodput: useful samples ÷ those of DDP, undisturbed, on the machines there",
        box=SIMPLE_HEAD,
    )
    for heading in ("", "goodput", "samples", "lost", "twice", "steps more", ""):
        shown.add_column(heading, justify="right" if shown.columns else "left")
    for arm, each in spots.items():
        shown.add_row(
            Text(arm, "bold" if arm == OURS else ""),
            f"{each['goodput']:.3f}",
            f"{each['useful']:,}",
            *map(str, (each["lost"], each["twice"], each["more_steps"])),
            "" if each["lived"] else "nobody was left",
        )
    return shown


def _overhead(overheads: dict[str, dict[str, Any]]) -> Table:
    shown = table_of(
        "Nothing happens: step time with --elastic ÷ without, paired", ("", "ratio", "least … most", "with", "without")
    )
    for size, one in overheads.items():
        with_s, without_s = one["step_s"]
        shown.add_row(
            size,
            f"{one['ratio']:.3f}",
            f"{min(one['ratios']):.2f} … {max(one['ratios']):.2f}",
            f"{1e3 * with_s:.1f} ms",
            f"{1e3 * without_s:.1f} ms",
        )
    return shown


def _short(result: dict[str, Any]) -> Table:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    shown = Table(title=f"In short ({versions})", box=SIMPLE_HEAD, show_header=False)
    shown.add_column("")
    shown.add_column("", justify="right")
    for arm, why in result["left_out"].items():
        shown.add_row(Text(f"{arm} is left out: {why}"), "")
    rows = {
        "faults of ours": result["faults"],
        "samples lost, used twice": None if result["lost"] is None else f"{result['lost']}, {result['twice']}",
        "replay error": _number(result["replay_error"], ".1e"),
        "goodput": _number(result["goodput"], ".3f"),
        "goodput ÷ torchrun's": _number(result["goodput_vs_torchrun"], ".2f"),
        "goodput ÷ torchft's": _number(result["goodput_vs_torchft"], ".2f"),
    }
    for name, value in rows.items():
        if value is not None:
            shown.add_row(name, str(value))
    return shown


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)
