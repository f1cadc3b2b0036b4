"""The command of ``uneven bench recommendation``, which imports its modules only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def recommendation(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")] = False,
    case: Annotated[str | None, typer.Option("--case", help="One of them alone.")] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Draw how it scales: one HTML file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Trainers with embedding tables on a server.

    Examples a second by the number of trainers at a fifth of a core each, on unequal shares, next to a slow one, and
    against one process, DDP with sparse gradients and TorchRec where it is installed; processor time of trainers and
    server. Then log loss after one pass in virtual time, against one process, a synchronous batch of the same size and
    foreground twins, each tuned over the same grid, on the flights in UNEVEN_DATA, else on a made log. Then a run in
    which a shard of two is killed thrice, and a shard of two gigabytes that saves while a trainer goes on.

    Cases: scaling, slow, processes, torchrec, quality, killed, checkpoint. --quick, one round of a part of them and one
    seed, four minutes.
    """
    from uneven_bench.recommendation.bench import run
    from uneven_bench.recommendation.page import tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told, case, report), tables, json)
