"""The command of ``uneven bench far-sites``, which imports its modules only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def far_sites(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    data: Annotated[str, typer.Option("--data", help="digits or fashion-mnist (from UNEVEN_DATA).")] = "digits",
    case: Annotated[str | None, typer.Option("--case", metavar="NAME", help="One case alone.")] = None,
) -> None:
    """Sites on slow lines, and sites with data unlike each other's.

    Gaia, local steps, the largest entries, both together, DiLoCo, against BSP, DDP and, where installed, torchft and
    hivemind: losses at equal time and bytes in virtual time, times of real runs on emulated lines, as root; then batch
    norm and group norm under skewed labels, and a tuner against every fixed setting.

    Cases: filter, learning, cifar10, text, 20mbit, 100mbit, three_sites, skew, scout; CIFAR-10 and text from
    UNEVEN_DATA.

    Forty minutes, --case NAME ten at most; --quick a minute and a half, without real runs, of which --quick --case
    20mbit plays one.
    """
    from uneven.cluster.virtual.datasets import images
    from uneven_bench.far_sites.bench import run, tables
    from uneven_bench.show import show

    images(data)  # raise here if it is missing, not in a worker
    show(lambda told: run(quick, data, told, case=case), tables, json)
