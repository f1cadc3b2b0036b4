"""The tables of ``uneven bench lb-bsp``."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from uneven_bench.show import table_of


def tables(result: dict[str, Any]) -> list[Table]:
    found = [_case(name, rows) for name, rows in result["cases"].items()]
    if len(result["cases"]) > 1:
        found.append(_summary(result))
    costs = table_of("What it costs", ("", "measured"))
    if "equal_workers_ratio" in result:
        low, high = result["equal_workers_spread"]
        costs.add_row("equal workers, DDP ÷ DDP once more", f"{result['equal_workers_ddp_ratio']:.3f}")
        costs.add_row("equal workers, ours ÷ DDP", f"{result['equal_workers_ratio']:.3f} [{low:.3f} … {high:.3f}]")
    for kind, key in (("unequal", "control_share"), ("equal", "equal_workers_control_share")):
        if key in result:
            costs.add_row(f"measuring and deciding, {kind} workers", f"{result[key]:.2%} of an iteration")
    if costs.row_count:
        found.append(costs)
    return found


def _case(name: str, rows: dict[str, Any]) -> Table:
    shown = Table(
        title=f"{name}: {rows['about']}; {rows['workload']}, global batch {rows['global_batch']}", box=SIMPLE_HEAD
    )
    for heading in ("", "rounds", "ms per iteration", "of limit", "waiting", "to target", "", "accuracy"):
        shown.add_column(heading, justify="right" if shown.columns else "left", no_wrap=True)
    for method, row in rows["methods"].items():
        low, high = row["iteration_spread_s"]
        after = f" ({row['of_limit_after']:.3f})" if "of_limit_after" in row else ""
        iterations, seconds = row["iterations_to_target"], row["time_to_target_s"]
        shown.add_row(
            Text(method, "bold") if method == rows["ours"] else method,
            str(row["rounds"]),
            f"{row['iteration_s'] * 1e3:.1f} [{low * 1e3:.1f} … {high * 1e3:.1f}]",
            f"{row['of_limit']:.3f}{after}",
            f"{row['wait_share']:.1%}",
            "" if iterations is None else str(iterations),
            "" if seconds is None else f"{seconds:.1f} s",
            "" if row["accuracy"] is None else f"{row['accuracy']:.3f}",
        )
    return shown


def _summary(result: dict[str, Any]) -> Table:
    shown = table_of("Ours against the best rival", ("case", "of limit", "best rival", "gain"))
    for name, rows in result["cases"].items():
        low, high = rows["gain_spread"]
        shown.add_row(
            name,
            f"{rows['methods'][rows['ours']]['of_limit']:.3f}",
            rows["best_rival"],
            f"{rows['gain_over_best_rival']:.3f} [{low:.3f} … {high:.3f}]",
        )
    for name in result["left_out"]:
        shown.add_row(name, "left out: links are limited as root alone, see `uneven doctor`", "", "")
    return shown
