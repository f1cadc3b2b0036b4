"""The tables of ``uneven bench sync``."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from uneven_bench.harness.figures import shown
from uneven_bench.harness.show import bold, table_of
from uneven_bench.sync.cases import BARE, TWINS
from uneven_bench.sync.table import OURS_NOT


def tables(result: dict[str, Any]) -> list[Table]:
    found = []
    for name, case in result["cases"].items():
        found += [_case(name, case), _exchanges(name, case)]
    return [*found, _overall(result)]


def _case(name: str, case: dict[str, Any]) -> Table:
    title = (
        f"{name}: {case['about']}; losses after {case['equal_samples']:,.0f} samples and after "
        f"{case['equal_time_s']:.1f} s"
        + (f"; fr- is every {case['twins_every']} steps" if set(case["policies"]) & set(TWINS.values()) else "")
    )
    caption = (
        "per s: samples; share: of the unsynchronised, with the middle half of the rounds; n samples, t seconds"
        + ("; bare: beside gloo's sums of zeros" if BARE in case["policies"] else "")
        + "".join(f"; left out: {name}, {why.partition(':')[0]}" for name, why in case["left_out"].items())
    )
    headings = ("", "per s", "share", "", "of bare", "loss at n", "loss at t", "DDP's loss", "sync gap", "kB a step")
    rows = []
    for policy, row in case["policies"].items():
        low, high = row["of_unsynchronised_spread"]
        target_s, gap = row["time_to_target_s"], row["sync_gap"]
        rows.append(
            (
                bold(policy, policy not in OURS_NOT),
                f"{row['samples_per_s']:,.0f}",
                f"{row['of_unsynchronised']:.3f}",
                f"{low:.2f}…{high:.2f}",
                "" if row["of_bare"] is None else f"{row['of_bare']:.2f}",
                f"{row['loss_equal_samples']:.3f}",
                f"{row['loss_equal_time']:.3f}",
                "" if target_s is None else f"{target_s:.1f} s",
                "" if gap is None else f"{gap:.1f}",
                f"{row['bytes'] / 1e3:.0f}",
            )
        )
    told = [place for place in range(len(headings)) if any(cells[place] for cells in rows)]
    columns = [headings[place] for place in told]  # without DDP or the bare sums, comparisons with them are left out
    return table_of(title, columns, [[cells[place] for place in told] for cells in rows], narrow=True, caption=caption)


def _exchanges(name: str, case: dict[str, Any]) -> Table:
    rows = [
        (
            "ring of everybody" if way == "everybody" else f"groups: {way}",
            f"{row['seconds'] * 1e3:.0f}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['messages']:g}",
            shown([row["faster_than_ring"], *row["faster_spread"]]),
            f"{row['predicted_by_bytes']:.2f}",
            f"{row['predicted_by_messages']:.2f}",
        )
        for way, row in case["exchanges"].items()
    ]
    columns = ("", "ms", "MB sent", "messages", "faster than the ring", "predicted by bytes", "by messages")
    return table_of(f"{name}: one exchange of 4 MB", columns, rows)


def _overall(result: dict[str, Any]) -> Table:
    rows, worst = [], result["shadow_worst"]
    if worst is not None:
        what = f"shadow policies, least of the unsynchronised samples/s ({worst['policy']} in {worst['case']})"
        rows.append((what, f"{result['shadow_of_unsynchronised']:.3f}"))
    if result["shadow_of_bare"] is not None:
        rows.append(("the same of the time that gloo's bare sums leave", f"{result['shadow_of_bare']:.3f}"))
    for key, what in (("shadow_vs_ddp_100mbit", "best shadow policy"), ("best_vs_ddp_100mbit", "best policy of ours")):
        if result[key] is not None:
            rows.append((f"{what} reaches DDP's loss at 100 Mbit/s sooner by a factor of", f"{result[key]:.2f}"))
    for case, apart in result["shadow_vs_twin"].items():
        for policy, loss in apart.items():
            each = f" ({min(loss['each']):+.4f} … {max(loss['each']):+.4f})" if len(loss["each"]) > 1 else ""
            rows.append((f"{policy} less its twin, loss at equal samples, {case}", f"{loss['mean']:+.4f}{each}"))
    for case, one in result["ds_sync_vs_ring"].items():
        told = f"{one['measured']:.2f}, predicted {one['predicted']:.2f}"
        rows.append((f"DS-Sync's exchange, faster than the ring, {case}", told))
    return table_of("In short", ("", "measured"), rows)
