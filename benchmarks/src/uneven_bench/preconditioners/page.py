"""The tables of ``uneven bench preconditioners``."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from uneven_bench.harness.show import table_of


def tables(result: dict[str, Any]) -> list[Table]:
    found = []
    if "step_s" in result:
        found += [_steps(model, result) for model in result["step_s"]]
    if "links" in result:
        found.append(_steps("resnet20 on links of 100 Mbit/s", _as_steps("resnet20 on links of 100 Mbit/s", result)))
    rows = [
        (f"largest difference, {shares}, {name}", f"{error:.2g}")
        for shares, them in result.get("exact_error", {}).items()
        for name, error in them.items()
    ]
    rows += [
        (f"factor memory on the fullest worker, {m}", f"{x:.2f}") for m, x in result.get("memory_share", {}).items()
    ]
    if "hook_overhead" in result:
        rows.append(("hooks on a plain step", f"{result['hook_overhead']:+.1%}"))
    if "unequal_gain" in result:
        rows += [("unequal workers, times sooner", f"{result['unequal_gain']:.2f}")]
        rows += [("of the limit", f"{result['unequal_of_limit']:.2f}")]
        errors = result["unequal"]["plan"]["error"]
        rows += [(f"a plan's step over that of {arm}", f"{off:+.0%}") for arm, off in errors.items()]
    if "blow_ups" in result:
        told = result["blow_ups"]
        rows += [
            (f"settings of {told['settings']} that blow up, λ {which}", str(told[which]))
            for which in ("fixed", "adaptive")
        ]
    rows += [(f"left out: {name}", why) for name, why in result["left_out"].items()]
    found.append(table_of("And", ("what", "figure"), rows))
    for task, them in result.get("time_to_target", {}).items():
        lines = [
            (
                name,
                _or_dash(one["epochs"], "{:.0f}"),
                _or_dash(one["seconds"], "{:.2f}"),
                f"{one['best']:.3g}",
                str(one["setting"]),
            )
            for name, one in them.items()
        ]
        found.append(table_of(f"To the target: {task}", ("method", "epochs", "CPU s", "best", "setting"), lines))
    return found


def _steps(model: str, result: dict[str, Any]) -> Table:
    lines = [
        (
            name,
            *(_or_dash(kinds.get(kind), "{:.1f}", 1e3) for kind in ("plain", "factor", "refresh")),
            *_against(model, name, result),
        )
        for name, kinds in result["step_s"][model].items()
    ]
    columns = (
        "arm",
        "plain ms",
        "factor ms",
        "refresh ms",
        "÷ kfac-pytorch 1/10",
        "10/100",
        "÷ SGD 1/10",
        "10/100",
        "bytes",
    )
    return table_of(f"Steps of {model}", columns, lines)


def _as_steps(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the case of links in the form of the others."""
    return {key: {name: them} for key, them in result["links"].items()} | {"bytes_vs_kfac_pytorch": {name: {}}}


def _against(model: str, name: str, result: dict[str, Any]) -> tuple[str, ...]:
    who, _, share = name.partition(" ")
    if who != "ours":
        return ("",) * 5
    theirs = result["step_vs_kfac_pytorch"][model].get(share, {})
    sgd = result["step_vs_sgd"][model][share]
    sent = result["bytes_vs_kfac_pytorch"][model].get(share)
    each = (theirs.get("1/10"), theirs.get("10/100"), sgd["1/10"], sgd["10/100"], sent)
    return tuple(_or_dash(one, "{:.2f}") for one in each)


def _or_dash(value: float | None, how: str, times: float = 1.0) -> str:
    return "–" if value is None else how.format(times * value)
