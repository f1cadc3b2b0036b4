"""The tables of ``uneven bench far-sites``."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from uneven_bench.harness.show import table_of


def tables(result: dict[str, Any]) -> list[Table]:
    found = [
        _virtual(f"{task}, {name}", world) for task, each in result["virtual"].items() for name, world in each.items()
    ]
    found += [_emulated(name, world) for name, world in result["emulated"].items()]
    for norm, skews in result.get("accuracy", {}).items():
        names = list(next(iter(skews.values())))
        rows = [(f"{skew} %", *(f"{each[name]:.1%}" for name in names)) for skew, each in skews.items()]
        title = f"Accuracy with {'batch' if norm == 'bn' else 'group'} norm, by skew of the labels"
        found.append(table_of(title, ("", *names), rows, narrow=True))
    if "scout" in result:
        found.append(_scout(result["scout"]))
    if "filter_10m_ms" in result:
        row = ("one thread", f"{result['filter_10m_ms']:.1f} ms")
        found.append(table_of("Ten million entries, 1 % significant", ("", "picked, packed and written"), [row]))
    if result["left_out"]:
        found.append(table_of("Left out", ("", "why"), result["left_out"].items()))
    return found


def _virtual(name: str, world: dict[str, Any]) -> Table:
    title = (
        f"{name}, in virtual time: sooner at a loss of {world['target_loss']:.3f}; losses after "
        f"{world['equal_s']:.0f} s and after {world['equal_bytes'] / 1e6:.1f} MB over all lines"
    )
    rows = [
        (
            policy, f"{1e3 * row['step_s']:,.0f} ms", f"{row['step_bytes'] / 1e3:,.0f}", _times(row["times_sooner"]),
            _times(row["times_fewer_bytes"]), f"{row['loss_equal_time']:.3f}", f"{row['loss_equal_bytes']:.3f}",
            f"{row['final_loss']:.3f}", f"{row['final_loss_vs_bsp']:+.3f}", f"{row['final_accuracy']:.1%}",
        )
        for policy, row in world["policies"].items()
    ]  # fmt: skip
    columns = (
        "",
        "a step",
        "kB a step",
        "sooner",
        "fewer bytes",
        "loss at s",
        "loss at MB",
        "at the end",
        "less BSP's",
        "accuracy",
    )
    return table_of(title, columns, rows, narrow=True)


def _emulated(name: str, world: dict[str, Any]) -> Table:
    title = (
        f"{name}, real workers on emulated lines: sooner at a loss of {world['target_loss']:.3f}; losses after "
        f"{world['equal_steps']:.0f} steps" + "".join(f"; {why}" for why in world["left_out"])
    )
    rows = [
        (
            policy,
            f"{1e3 * row['step_s']:,.0f} ms",
            f"{row['sent_bytes'] / 1e3:,.0f}",
            "never" if row["to_loss_s"] is None else f"{row['to_loss_s']:.1f} s",
            _times(row["times_sooner"]),
            f"{row['final_loss']:.3f}",
            f"{row['final_loss_vs_bsp']:+.3f}",
        )
        for policy, row in world["policies"].items()
    ]
    columns = ("", "a step", "kB a worker and step", "to the loss", "sooner", "at the end", "less BSP's")
    return table_of(title, columns, rows, narrow=True)


def _scout(skews: dict[str, Any]) -> Table:
    rows = [
        (
            f"{skew} %",
            row["oracle"],
            f"{row['bytes_vs_oracle']:.2f}",
            f"{row['bytes_vs_bsp']:.3f}",
            f"{row['accuracy']['scout']:.1%}",
            f"{100 * row['accuracy_vs_bsp']:+.1f}",
        )
        for skew, row in skews.items()
    ]
    columns = ("", "best fixed", "bytes ÷ its", "bytes ÷ BSP's", "accuracy", "less BSP's")
    return table_of("The tuner", columns, rows, narrow=True)


def _times(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} ×"
