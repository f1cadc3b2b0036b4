"""The tables of ``uneven bench sync``."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from uneven_bench.show import table_of
from uneven_bench.sync.cases import BARE, TWINS
from uneven_bench.sync.table import OURS_NOT


def tables(result: dict[str, Any]) -> list[Table]:
    found = []
    for name, case in result["cases"].items():
        found += [_case(name, case), _exchanges(name, case)]
    return [*found, _overall(result)]


def _case(name: str, case: dict[str, Any]) -> Table:
    shown = Table(
        title=f"{name}: {case['about']}; losses after {case['equal_samples']:,.0f} samples and after "
        f"{case['equal_time_s']:.1f} s"
        + (f"; fr- is every {case['twins_every']} steps" if set(case["policies"]) & set(TWINS.values()) else ""),
        caption="per s: samples; share: of the unsynchronised, with the middle half of the rounds; n samples, t seconds"
        + ("; bare: beside gloo's sums of zeros" if BARE in case["policies"] else "")
        + "".join(f"; left out: {name}, {why.partition(':')[0]}" for name, why in case["left_out"].items()),
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    shown.add_column("", no_wrap=True)
    headings = ["per s", "share", "", "of bare", "loss at n", "loss at t", "DDP's loss", "sync gap", "kB a step"]
    rows = {}
    for policy, row in case["policies"].items():
        low, high = row["of_unsynchronised_spread"]
        target_s, gap = row["time_to_target_s"], row["sync_gap"]
        rows[policy] = (
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
    told = [place for place in range(len(headings)) if any(cells[place] for cells in rows.values())]
    for place in told:  # without DDP or the bare sums, comparisons with them are left out
        shown.add_column(headings[place], justify="right", no_wrap=place < 3)
    for policy, cells in rows.items():
        shown.add_row(Text(policy, "" if policy in OURS_NOT else "bold"), *(cells[place] for place in told))
    return shown


def _exchanges(name: str, case: dict[str, Any]) -> Table:
    shown = table_of(
        f"{name}: one exchange of 4 MB",
        ("", "ms", "MB sent", "messages", "faster than the ring", "predicted by bytes", "by messages"),
    )
    for way, row in case["exchanges"].items():
        low, high = row["faster_spread"]
        shown.add_row(
            "ring of everybody" if way == "everybody" else f"groups: {way}",
            f"{row['seconds'] * 1e3:.0f}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['messages']:g}",
            f"{row['faster_than_ring']:.2f} [{low:.2f} … {high:.2f}]",
            f"{row['predicted_by_bytes']:.2f}",
            f"{row['predicted_by_messages']:.2f}",
        )
    return shown


def _overall(result: dict[str, Any]) -> Table:
    shown = table_of("In short", ("", "measured"))
    worst = result["shadow_worst"]
    if worst is not None:
        shown.add_row(
            f"shadow policies, least of the unsynchronised samples/s ({worst['policy']} in {worst['case']})",
            f"{result['shadow_of_unsynchronised']:.3f}",
        )
    if result["shadow_of_bare"] is not None:
        shown.add_row("the same of what is left beside gloo's bare sums", f"{result['shadow_of_bare']:.3f}")
    for key, what in (("shadow_vs_ddp_100mbit", "best shadow policy"), ("best_vs_ddp_100mbit", "best policy of ours")):
        if result[key] is not None:
            shown.add_row(f"{what} reaches DDP's loss at 100 Mbit/s sooner by a factor of", f"{result[key]:.2f}")
    for case, apart in result["shadow_vs_twin"].items():
        for policy, loss in apart.items():
            each = f" ({min(loss['each']):+.4f} … {max(loss['each']):+.4f})" if len(loss["each"]) > 1 else ""
            shown.add_row(f"{policy} less its twin, loss at equal samples, {case}", f"{loss['mean']:+.4f}{each}")
    for case, one in result["ds_sync_vs_ring"].items():
        told = f"{one['measured']:.2f}, predicted {one['predicted']:.2f}"
        shown.add_row(f"DS-Sync's exchange, faster than the ring, {case}", told)
    return shown
