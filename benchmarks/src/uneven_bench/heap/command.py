"""The command of ``uneven bench heap``; what it needs is imported when it is run."""

from __future__ import annotations

from typing import Annotated

import typer


def heap(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    data: Annotated[str, typer.Option("--data", help="digits or fashion-mnist (from UNEVEN_DATA).")] = "digits",
) -> None:
    """What it brings to keep the memory that a step frees.

    For the next step. Two minutes, --quick one.
    """
    from uneven.cluster.virtual.datasets import images
    from uneven_bench.heap.bench import run, tables
    from uneven_bench.show import show

    images(data)  # said here, not by a worker, if it is not there
    show(lambda told: run(quick, data, told), tables, json)
