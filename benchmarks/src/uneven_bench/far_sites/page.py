"""The tables of ``uneven bench far-sites``."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table


def tables(result: dict[str, Any]) -> list[Table]:
    found = [
        _virtual(f"{task}, {name}", world) for task, each in result["virtual"].items() for name, world in each.items()
    ]
    found += [_emulated(name, world) for name, world in result["emulated"].items()]
    found += [_accuracy(norm, each) for norm, each in result.get("accuracy", {}).items()]
    if "scout" in result:
        found.append(_scout(result["scout"]))
    if "filter_10m_ms" in result:
        shown = _table("Ten million entries, 1 % significant", "picked, packed and written")
        shown.add_row("one thread", f"{result['filter_10m_ms']:.1f} ms")
        found.append(shown)
    if result["left_out"]:
        shown = _table("Left out", "why")
        for name, why in result["left_out"].items():
            shown.add_row(name, why)
        found.append(shown)
    return found


def _virtual(name: str, world: dict[str, Any]) -> Table:
    shown = _table(
        f"{name}, in virtual time: sooner at a loss of {world['target_loss']:.3f}; losses after "
        f"{world['equal_s']:.0f} s and after {world['equal_bytes'] / 1e6:.1f} MB over all lines",
        "a step", "kB a step", "sooner", "fewer bytes", "loss at s", "loss at MB", "at the end", "less BSP's",
        "accuracy",
    )  # fmt: skip
    for policy, row in world["policies"].items():
        shown.add_row(
            policy, f"{1e3 * row['step_s']:,.0f} ms", f"{row['step_bytes'] / 1e3:,.0f}", _times(row["times_sooner"]),
            _times(row["times_fewer_bytes"]), f"{row['loss_equal_time']:.3f}", f"{row['loss_equal_bytes']:.3f}",
            f"{row['final_loss']:.3f}", f"{row['final_loss_vs_bsp']:+.3f}", f"{row['final_accuracy']:.1%}",
        )  # fmt: skip
    return shown


def _emulated(name: str, world: dict[str, Any]) -> Table:
    shown = _table(
        f"{name}, real workers on emulated lines: sooner at a loss of {world['target_loss']:.3f}; losses after "
        f"{world['equal_steps']:.0f} steps" + "".join(f"; {why}" for why in world["left_out"]),
        "a step",
        "kB a worker and step",
        "to the loss",
        "sooner",
        "at the end",
        "less BSP's",
    )
    for policy, row in world["policies"].items():
        to_s = row["to_loss_s"]
        shown.add_row(
            policy,
            f"{1e3 * row['step_s']:,.0f} ms",
            f"{row['sent_bytes'] / 1e3:,.0f}",
            "never" if to_s is None else f"{to_s:.1f} s",
            _times(row["times_sooner"]),
            f"{row['final_loss']:.3f}",
            f"{row['final_loss_vs_bsp']:+.3f}",
        )
    return shown


def _accuracy(norm: str, skews: dict[str, dict[str, float]]) -> Table:
    names = list(next(iter(skews.values())))
    shown = _table(f"Accuracy with {'batch' if norm == 'bn' else 'group'} norm, by skew of the labels", *names)
    for skew, each in skews.items():
        shown.add_row(f"{skew} %", *(f"{each[name]:.1%}" for name in names))
    return shown


def _scout(skews: dict[str, Any]) -> Table:
    shown = _table("The tuner", "best fixed", "bytes ÷ its", "bytes ÷ BSP's", "accuracy", "less BSP's")
    for skew, row in skews.items():
        shown.add_row(
            f"{skew} %",
            row["oracle"],
            f"{row['bytes_vs_oracle']:.2f}",
            f"{row['bytes_vs_bsp']:.3f}",
            f"{row['accuracy']['scout']:.1%}",
            f"{100 * row['accuracy_vs_bsp']:+.1f}",
        )
    return shown


def _table(title: str, *headings: str) -> Table:
    shown = Table(title=title, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    shown.add_column("", no_wrap=True)
    for heading in headings:
        shown.add_column(heading, justify="right")
    return shown


def _times(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} ×"
