"""The tables of ``uneven bench lb-bsp``."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from uneven_bench.harness.figures import shown
from uneven_bench.harness.show import bold, table_of


def tables(result: dict[str, Any]) -> list[Table]:
    found = [_case(name, rows) for name, rows in result["cases"].items()]
    if len(result["cases"]) > 1:
        found.append(_summary(result))
    costs = []
    if "equal_workers_ratio" in result:
        both = [result["equal_workers_ratio"], *result["equal_workers_spread"]]
        costs.append(("equal workers, DDP ÷ DDP once more", f"{result['equal_workers_ddp_ratio']:.3f}"))
        costs.append(("equal workers, ours ÷ DDP", shown(both, ".3f")))
    for kind, key in (("unequal", "control_share"), ("equal", "equal_workers_control_share")):
        if key in result:
            costs.append((f"measuring and deciding, {kind} workers", f"{result[key]:.2%} of an iteration"))
    if costs:
        found.append(table_of("What it costs", ("", "measured"), costs))
    return found


def _case(name: str, rows: dict[str, Any]) -> Table:
    lines = []
    for method, row in rows["methods"].items():
        low, high = row["iteration_spread_s"]
        after = f" ({row['of_limit_after']:.3f})" if "of_limit_after" in row else ""
        iterations, seconds = row["iterations_to_target"], row["time_to_target_s"]
        lines.append(
            (
                bold(method, method == rows["ours"]),
                row["rounds"],
                f"{row['iteration_s'] * 1e3:.1f} [{low * 1e3:.1f} … {high * 1e3:.1f}]",
                f"{row['of_limit']:.3f}{after}",
                f"{row['wait_share']:.1%}",
                "" if iterations is None else iterations,
                "" if seconds is None else f"{seconds:.1f} s",
                "" if row["accuracy"] is None else f"{row['accuracy']:.3f}",
            )
        )
    title = f"{name}: {rows['about']}; {rows['workload']}, global batch {rows['global_batch']}"
    columns = ("", "rounds", "ms per iteration", "of limit", "waiting", "to target", "", "accuracy")
    return table_of(title, columns, lines)


def _summary(result: dict[str, Any]) -> Table:
    rows = [
        (
            name,
            f"{one['methods'][one['ours']]['of_limit']:.3f}",
            one["best_rival"],
            shown([one["gain_over_best_rival"], *one["gain_spread"]], ".3f"),
        )
        for name, one in result["cases"].items()
    ]
    why = "left out: links are limited as root alone, see `uneven doctor`"
    rows += [(name, why, "", "") for name in result["left_out"]]
    return table_of("Ours against the best rival", ("case", "of limit", "best rival", "gain"), rows)
