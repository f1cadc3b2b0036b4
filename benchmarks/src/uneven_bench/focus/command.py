"""The command of ``uneven bench focus``, which imports its modules only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def focus(
    quick: Annotated[bool, typer.Option("--quick", help="A shorter stream; ends sooner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    case: Annotated[str | None, typer.Option("--case", metavar="NAME", help="One case alone.")] = None,
) -> None:
    """Recorded video: Focus against ingest-heavy, query-all, a NoScope-style cascade, FAISS and TASTI-style.

    All are given the same frames and boxes; costs are processor seconds. The truth networks are trained here on the
    first run, which takes ten minutes more, and kept in the user's cache. Data from UNEVEN_DATA. Takes ten minutes at
    most, --quick a minute and a half.

    Cases: synthetic (pictures of CIFAR-10 in a fixed scene of twelve hours, also with other targets), clips (real
    scenes), change (the scene shows other classes from some day on), speed (a clip of 640 x 480 on one core), kills
    (ten processes killed at ingest, ten in queries).
    """
    from uneven_bench.focus.bench import run
    from uneven_bench.focus.page import tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told, case), tables, json)
