"""The command of ``uneven bench graph``, which imports its modules only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def graph(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    case: Annotated[str | None, typer.Option("--case", metavar="NAME", help="One case alone.")] = None,
) -> None:
    """Graphs: kernels, training steps, cuts and exchanges against DGL, PyG and torch.

    Real graphs from UNEVEN_DATA. DGL and PyG are compared if they are installed ('./benchmarks[graph]'); malloc keeps
    what is freed, for all alike. --quick takes a minute and a half, and leaves four workers out unless a case asks for
    them; a case is meant to take ten minutes at most.

    Cases: kernel (one thread), step, cuts, exact, exchanges (four workers, ours and DistGNN's), links (the same at 100
    Mbit/s, as root), unequal (four workers with .6, .3, .2 and .1 of a core), accuracy, large.
    """
    from uneven_bench.graph.bench import run
    from uneven_bench.graph.page import tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told, case), tables, json)
