"""The command of ``uneven bench gpu``, which imports its modules only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def gpu(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    case: Annotated[str | None, typer.Option("--case", metavar="NAME", help="One case alone.")] = None,
) -> None:
    """Costs and gains of the library on a GPU.

    A session's step against the plain loop's; K-FAC and SOAP against SGD, AdamW and, where KFAC_PYTORCH says where it
    is installed, kfac-pytorch; two workers that share the GPU, one of which takes three times as long for a sample; a
    worker on the GPU with one on a core.

    Cases: session, second-order, pair, unlike. One CUDA device is needed. Two minutes, --quick one.
    """
    from uneven_bench.gpu.bench import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told, case), tables, json)
