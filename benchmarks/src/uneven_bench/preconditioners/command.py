"""The command of ``uneven bench preconditioners``, which imports its modules only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def preconditioners(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    data: Annotated[str, typer.Option("--data", help="digits or fashion-mnist (from UNEVEN_DATA).")] = "digits",
    case: Annotated[str | None, typer.Option("--case", metavar="NAME", help="One case alone.")] = None,
) -> None:
    """K-FAC and SOAP: what they cost in a step, and where they pay.

    Steps of ResNets, an MLP and a transformer on four workers against kfac-pytorch (where KFAC_PYTORCH says
    where it is installed), SGD, AdamW and Muon; bytes and memory; exactness on unequal shares; unequal workers; links
    of 100 Mbit/s; time to a target on three tasks; settings that blow up.

    Cases: steps, exact, unequal, links, target, blow-ups; steps:mlp and target:cnn are one model or task
    alone, target:cnn:soap one method.

    --quick plays steps of one ResNet, exact and a third of the settings alone, in a few minutes. The full cases
    have not been timed.
    """
    from uneven.cluster.virtual.datasets import images
    from uneven_bench.preconditioners.bench import run
    from uneven_bench.preconditioners.page import tables
    from uneven_bench.show import show

    images(data)  # raise here if it is missing, not in a worker
    show(lambda told: run(quick, data, told, case), tables, json)
