"""The tables of ``uneven bench graph``."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from uneven_bench.harness.show import table_of


def tables(result: dict[str, Any]) -> list[Table]:
    found, rows = [], list[tuple[str, ...]]()
    for kind, cells in result.get("kernel", {}).items():
        title = f"Kernel, {kind.replace('_', ' and ')}, one thread: how many times faster ours is"
        found.append(_ratios(title, cells, "gathered_gb_per_s"))
    if "step" in result:
        found.append(_ratios("A step: how many times faster ours is", result["step"]))
        rows = [(name, *_each(cell.get("bf16", {}))) for name, cell in result["step"].items()]
        found.append(table_of("The same with bfloat16 features", ("step", "times faster than"), rows))
    if "cuts" in result:
        found.append(_cuts(result["cuts"]))
    for what in ("exchanges", "links"):
        for name, one in result.get(what, {}).items():
            rows = [
                (mode, f"{1e3 * s:.1f}", f"{one['bytes'][mode] / 1e6:.2f}", f"{one['accuracy'][mode]:.3f}")
                for mode, s in one["seconds"].items()
            ]
            title = f"{what.capitalize()}, four workers, {name}"
            found.append(table_of(title, ("exchange", "ms an epoch", "MB an epoch", "test accuracy"), rows))
    skipped = ("kernel", "step", "cuts", "exchanges", "links", "left_out", "exact")
    lines = [(key, _said(value)) for key, value in result.items() if key not in skipped and value not in (None, {})]
    lines += [(f"left out: {name}", why) for name, why in result["left_out"].items()]
    found.append(table_of("And", ("what", "figure"), lines))
    return found


def _ratios(title: str, cells: dict[str, Any], last: str = "") -> Table:
    rivals = sorted({name for cell in cells.values() for name in cell["ratios"]})
    rows = []
    for name, cell in cells.items():
        shown = [
            f"{cell['ratios'][rival]:.2f} [{cell['middle'][rival][0]:.2f}–{cell['middle'][rival][1]:.2f}]"
            if rival in cell["ratios"]
            else "–"
            for rival in rivals
        ]
        rows.append((name, f"{1e3 * cell['seconds']['ours']:.2f}", *shown, *([f"{cell[last]:.0f}"] if last else [])))
    return table_of(title, ("graph", "ours, ms", *rivals, *(["GB/s gathered"] if last else [])), rows)


def _cuts(cuts: dict[str, Any]) -> Table:
    rows = []
    for name, one in cuts.items():
        for parts, each in one["rows"].items():
            halo = one["metis_halo_rows"].get(parts)
            speed = " ".join(f"{method} {per_s / 1e6:.0f}" for method, per_s in one["edges_per_s"].items())
            shown = (f"{each[method]:,}" for method in ("ne", "libra", "hdrf", "dbh", "random"))
            rows.append((f"{name}, {parts}", *shown, "–" if halo is None else f"{halo / 2:,.0f}", speed))
    columns = ("graph, parts", "ne", "libra", "hdrf", "dbh", "random", "metis ÷ 2", "million edges/s at 4")
    return table_of("Cuts: rows that an exchange moves each way", columns, rows)


def _each(ratios: dict[str, float]) -> tuple[str]:
    return (", ".join(f"{name} {value:.2f}" for name, value in ratios.items()) or "–",)


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_said(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
