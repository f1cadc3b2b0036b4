"""The tables of ``uneven bench elastic``."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from uneven_bench.elastic.cases import KINDS, OURS, OVERHEAD, SPOT
from uneven_bench.harness.show import bold, table_of


def tables(result: dict[str, Any]) -> list[Table]:
    found = [_faults(name, case) for name, case in result["cases"].items() if name not in (OVERHEAD, *SPOT) and case]
    if spots := {SPOT[name]: case for name, case in result["cases"].items() if name in SPOT and case}:
        found.append(_spot(spots))
    if overheads := result["cases"].get(OVERHEAD):
        found.append(_overhead(overheads))
    return [*found, _short(result)]


def _faults(name: str, case: dict[str, dict[str, Any]]) -> Table:
    kinds = [kind for kind in KINDS if any(kind in one["pause_s"] for one in case.values())]
    rows: list[tuple[Any, ...]] = []
    for arm, one in case.items():
        replayed = one["replay_error"]
        rows.append(
            (
                bold(arm, arm == OURS),
                *(_pause(one["pause_s"].get(kind)) for kind in kinds),
                f"{1e3 * one['step_s']:.0f} ms",
                one["lost"],
                one["twice"],
                one["more_steps"],
                one["survivors_ended"],
                "" if replayed is None else f"{replayed:.1e}",
            )
        )
        rows += [(Text(f"  {wrong}", "red"),) for wrong in one["wrong"]]
    return table_of(
        f"{name}: pause beyond a usual step, seconds, median (worst)",
        ("", *kinds, "step", "lost", "twice", "steps more", "ended", "replay"),
        rows,
        collapse_padding=True,
        pad_edge=False,
        caption="lost, twice: samples of epochs that were over; ended: survivors that a fault ended; † none continued",
    )


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
    rows = [
        (
            bold(arm, arm == OURS),
            f"{each['goodput']:.3f}",
            f"{each['useful']:,}",
            each["lost"],
            each["twice"],
            each["more_steps"],
            "" if each["lived"] else "nobody was left",
        )
        for arm, each in spots.items()
    ]
    return table_of(
        f"Spot machines: {one['changes']} comings and goings in {one['seconds']:.0f} s, 2 … {one['most']} there",
        ("", "goodput", "samples", "lost", "twice", "steps more", ""),
        rows,
        caption=f"after {one['record']}; goodput: useful samples ÷ those of DDP, undisturbed, on the machines there",
    )


def _overhead(overheads: dict[str, dict[str, Any]]) -> Table:
    rows = [
        (
            size,
            f"{one['ratio']:.3f}",
            f"{min(one['ratios']):.2f} … {max(one['ratios']):.2f}",
            *(f"{1e3 * step_s:.1f} ms" for step_s in one["step_s"]),
        )
        for size, one in overheads.items()
    ]
    title = "Nothing happens: step time with --elastic ÷ without, paired"
    return table_of(title, ("", "ratio", "least … most", "with", "without"), rows)


def _short(result: dict[str, Any]) -> Table:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    rows = [(f"{arm} is left out: {why}", "") for arm, why in result["left_out"].items()]
    if result["faults"] is not None:
        rows.append(("faults of ours", str(result["faults"])))
    if result["lost"] is not None:
        rows.append(("samples lost, used twice", f"{result['lost']}, {result['twice']}"))
    for key, words, form in (
        ("replay_error", "replay error", ".1e"),
        ("goodput", "goodput", ".3f"),
        ("goodput_vs_torchrun", "goodput ÷ torchrun's", ".2f"),
        ("goodput_vs_torchft", "goodput ÷ torchft's", ".2f"),
    ):
        if result[key] is not None:
            rows.append((words, format(result[key], form)))
    return table_of(f"In short ({versions})", ("", ""), rows, show_header=False)
