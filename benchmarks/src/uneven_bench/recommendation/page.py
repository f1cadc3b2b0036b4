"""The tables of ``uneven bench recommendation``, and its pictures of the scaling."""

from __future__ import annotations

import statistics
from typing import Any

from rich.table import Table

from uneven.journal.report.page import Page
from uneven.journal.report.pure.draw import Figure, colour, layout, line
from uneven_bench.harness.show import table_of
from uneven_bench.recommendation.tuning import LearningSettings


def tables(result: dict[str, Any]) -> list[Table]:
    more = [_faults(result)] if {"killed", "checkpoint"} & result.keys() else []
    if "examples_per_s" not in result:
        return [*_qualities(result), *more]
    rates = table_of(f"{result['rounds']} rounds of {result['window_s']:g} s", ("", "examples/s"))
    for name, rate in result["examples_per_s"].items():
        rates.add_row(name, f"{rate:,.0f}")
    ratios = table_of("what follows", ("", "measured", "bar"))
    for trainers, scale in result["scaling"].items():
        ratios.add_row(f"EPS({trainers}) ÷ {trainers} EPS(1)", f"{scale:.2f}", "≥ 0.94" if trainers == "8" else "")
    for key, words, bar in (
        ("share_evenness", "examples/s ÷ share, least ÷ greatest", "≥ 0.8"),
        ("beside_slow", "three beside a slow one ÷ three beside one like them", "≥ 0.98"),
        ("vs_one_process", "two trainers and a server ÷ the best process on one core", "≥ 1.5"),
        ("of_two_cores", "the same ÷ two such processes, which share nothing", ""),
        ("vs_ddp_sparse", "the same ÷ DDP with sparse gradients", "≥ 8"),
        ("trainer_cpu_ratio", "a trainer's processor time ÷ with tables in its process", "≤ 1.15"),
        ("trainer_cpu_ratio_bare", "the same ÷ a bare loop's with tables in its process", ""),
        ("server_us_per_sample", "µs of the server a sample", "≤ 10"),
    ):
        if (measured := result[key]) is not None:
            ratios.add_row(words, f"{measured:.2f}", bar)
    for batch, bar in (("128", "≥ 2.5"), ("512", "≥ 1.5"), ("2048", "≥ 1.1")):
        if (measured := result["vs_torchrec"].get(batch)) is not None:
            ratios.add_row(f"two trainers and a server ÷ TorchRec, batch {batch}", f"{measured:.2f}", bar)
    for (shares, measured), bar in zip(result["vs_torchrec_unequal"].items(), ("≥ 3.5", "≥ 5"), strict=False):
        ratios.add_row(f"÷ TorchRec on {shares} at equal processor time", f"{measured:.2f}", bar)
    return [rates, ratios, *_qualities(result), *more]


def scaling_page(result: dict[str, Any]) -> str:
    """Return examples a second by the number of trainers, and of each unequal one, as one offline HTML file."""
    lead = f"{result['rounds']} rounds, medians; the server runs beside them."
    page = Page("Trainers with their tables on a server", lead)
    alone = result["examples_per_s"]["1 at 0.2 core"]
    counts = [float(one) for one in result["scaling"]]
    most = list(result["scaling"])[-1]
    measured = [int(count) * scale * alone for count, scale in result["scaling"].items()]
    page.figure(
        "Examples a second over the number of trainers",
        _drawn(counts, measured, [count * alone for count in counts], "trainers of 0.2 core"),
        f"Of {most} trainers each does {result['scaling'][most]:.0%} of what one alone does.",
    )
    for rows in result["trainers_per_s"].values():
        shares, rates = [one["share"] for one in rows], [one["per_s"] for one in rows]
        per_core = sum(rates) / sum(shares)
        numbers = [float(place) for place in range(len(rows))]
        page.figure(
            f"Examples a second of each trainer, on {', '.join(f'{one:g}' for one in shares)} of a core",
            _drawn(numbers, rates, [share * per_core for share in shares], "trainer"),
            "In proportion is what each would do if all had the same rate for a core.",
        )
    return page.html()


def _drawn(x: list[float], measured: list[float], proportional: list[float], what: str) -> Figure:
    shown = layout("examples/s", x_title=what)
    shown["yaxis"]["rangemode"] = "tozero"
    shown["xaxis"]["tickvals"] = x
    return {
        "data": [
            line(x, proportional, "in proportion", colour(7, 8)) | {"line": {"color": colour(7, 8), "dash": "dot"}},
            line(x, measured, "measured", colour(0, 8), marks=True),
        ],
        "layout": shown,
    }


def _faults(result: dict[str, Any]) -> Table:
    shown = table_of("shards that are killed, shards that save", ("", "measured", "bar"))
    if one := result.get("killed"):
        shown.add_row(f"log loss after {one['kills']} kills", f"{one['logloss_vs_undisturbed']:+.2%}", "≤ +1 %")
        outside = one["eps_outside"]
        spread = f" ({min(outside):.2f} to {max(outside):.2f})" if len(outside) > 1 else ""
        shown.add_row("examples/s outside of them ÷ undisturbed", f"{statistics.median(outside):.2f}{spread}", "≥ 0.9")
        shown.add_row("a batch in which a shard is away, s", f"{one['away_s']:.2f}", "")
        shown.add_row(f"updates lost, of {one['updates']}", ", ".join(map(str, one["lost"])), "")
    if one := result.get("checkpoint"):
        shown.add_row("GB of tables in a shard", f"{one['gigabytes']:.2f}", "")
        shown.add_row("more memory while it saves, MB", f"{one['more_bytes'] / 2**20:.0f}", "no second copy")
        shown.add_row("a save, s", f"{one['took_s']:.1f}", "")
        shown.add_row("examples/s meanwhile ÷ else", f"{one['eps_while']:.2f}", "")
        shown.add_row("a save a minute costs", f"{one['stall']:.1%}", "≤ 2 %")
    return shown


def _qualities(result: dict[str, Any]) -> list[Table]:
    """Return tables of each way at its own best settings, and of all at equal ones."""
    if "quality" not in result:
        return []
    own = _quality("one pass in virtual time, each way at its own best settings", result)
    return [
        own,
        *(
            _quality(f"the same, all at {LearningSettings(**one['settings']).text}", one)
            for one in result["quality_at_equal_settings"]
        ),
    ]


def _quality(title: str, result: dict[str, Any]) -> Table:
    shown = table_of(title, ("", "first sum, table lr, dense lr", "log loss", "AUC"))
    for name, each in result["quality"].items():
        loss, auc = (statistics.fmean(each[key]) for key in ("log_loss", "auc"))
        shown.add_row(name, LearningSettings(**each["settings"]).text, f"{loss:.4f}", f"{auc:.4f}")
    for other, bar in (("synchronous", "≤ +1 %"), ("sequential", "≤ +3 %")):
        each = result["by_seed"][other]
        worse, most = f"{result[f'logloss_vs_{other}']:+.2%}", f"{min(each):+.2%} … {max(each):+.2%}"
        shown.add_row(f"asynchronous, worse than {other} by", bar, worse, most)
    for name, twin in result["foreground_twins"].items():
        bar, each = "≤ 0" if name == "easgd-30" else "", result["by_seed"][name]
        less, most = f"{twin['logloss_difference']:+.4f}", f"{min(each):+.4f} … {max(each):+.4f}"
        shown.add_row(f"S-EASGD less FR-{name}, log loss", bar, less, most)
        shown.add_row(f"S-EASGD ÷ FR-{name}, examples a unit of time", "", f"{twin['eps_ratio']:.2f}")
    return shown
