"""The tables of ``uneven bench focus``."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from uneven_bench.harness.show import table_of


def tables(result: dict[str, Any]) -> list[Table]:
    found = []
    for name, scene in result["scenes"].items():
        found += [_methods(name, scene), _classes(name, scene), _parts(name, scene)]
    rows = [(key, _said(value)) for key, value in result.items() if key != "scenes" and value]
    return [*found, *([table_of("And", ("what", "figure"), rows)] if rows else [])]


def _methods(name: str, scene: dict[str, Any]) -> Table:
    heavy, ours = scene["methods"]["ingest-heavy"]["ingest_s"], scene["methods"]["focus"]["query_s"]
    rows = []
    for method, one in scene["methods"].items():
        each = one["classes"].values()
        rows.append((
            method, f"{one['ingest_s']:.2f}", f"{heavy / one['ingest_s']:.1f}" if one["ingest_s"] else "–",
            f"{one['query_s']:.3f}", f"{one['query_s'] / ours:.1f}", f"{min(row['recall'] for row in each):.3f}",
            f"{min(row['precision'] for row in each):.3f}", f"{one['met']} of {len(one['classes'])}",
        ))  # fmt: skip
    title = (
        f"{name}: {scene['frames']:,} frames, {scene['objects']:,} objects; processor seconds, frames and boxes "
        f"({scene['boxes_s']:.0f} s) left out"
    )
    columns = ("", "ingest s", "x cheaper", "query s", "÷ focus", "least recall", "least precision", "reach both")
    return table_of(title, columns, rows)


def _classes(name: str, scene: dict[str, Any]) -> Table:
    rows = [
        (label, f"{one['recall']:.3f}", f"{one['precision']:.3f}", f"{one['calls']}",
         *(f"{scene['methods'][rival]['classes'][label]['query_s'] / max(one['query_s'], 1e-9):.1f}"
           for rival in (f"cascade, {what} differ, as accurate as focus" for what in ("frames", "objects"))))
        for label, one in scene["methods"]["focus"]["classes"].items()
    ]  # fmt: skip
    columns = ("class", "recall", "precision", "calls", "x faster than a cascade as accurate", "objects differ")
    return table_of(f"{name}: focus by class, on the part that tests", columns, rows)


def _parts(name: str, scene: dict[str, Any]) -> Table:
    shown = {
        **scene["ablation"],
        **scene["policies"],
        **{f"targets {one} %": row for one, row in scene["targets"].items()},
    }
    columns = ("", "network", "K", "Skip_th", "calls a query", "least recall", "least precision")
    rows = [
        (part, one["network"], f"{one['k']}", f"{one['skip']}", f"{one['calls']:.0f}", f"{one['recall']:.3f}",
         f"{one['precision']:.3f}")
        for part, one in shown.items() if one is not None
    ]  # fmt: skip
    return table_of(f"{name}: parts of the idea, policies, other targets", columns, rows)


def _said(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
