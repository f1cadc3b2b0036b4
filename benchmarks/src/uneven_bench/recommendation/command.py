"""The command of ``uneven bench recommendation``; what it needs is imported when it is run."""

from __future__ import annotations

from typing import Annotated

import typer


def recommendation(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Trainers with embedding tables on a server.

    Examples a second by the number of trainers at a fifth of a core each, on unequal shares, and against one process
    and DDP with sparse gradients; processor time of trainers and server.

    --quick, one round of half the cases, a minute and a half. The full cases have not been timed.
    """
    from uneven_bench.recommendation.bench import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told), tables, json)
