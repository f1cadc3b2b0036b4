"""``uneven demo``."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from uneven.cli.options import option


def demo(
    data: Annotated[
        str,
        option(
            "digits|fashion-mnist",
            "Data set. digits comes with uneven; fashion-mnist is read from the folder UNEVEN_DATA.",
            "--data",
        ),
    ] = "digits",
    epochs: Annotated[int, option("N", "Epochs of each training.", "--epochs", min=1)] = 12,
) -> None:
    """Train on four workers of unequal speed, first with DDP and equal batches, then balanced.

    The workers are processes on this machine with 0.6, 0.4, 0.2 and 0.1 of a core. The live view shows how each worker
    spends its time; a table and an HTML report follow. The demo takes one to two minutes on two cores. It writes both
    runs and the report into ./runs.

    \b
    Examples:
      uneven demo
      UNEVEN_DATA=~/data uneven demo --data fashion-mnist --epochs 1
    """
    from uneven.cli.demo.show import WAYS, check, phase, show
    from uneven.cluster.virtual.datasets import images
    from uneven.errors import access
    from uneven.journal.report.console import Console

    check(images(data), epochs)  # raise errors here, not in a worker
    console = Console()
    runs = Path("runs")
    stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-demo"
    phases = []
    for number, (name, way) in enumerate(WAYS.items(), 1):
        console.rule(f"{number} of {len(WAYS)}: {name}")
        run = runs / f"{stem}-{way}"
        with access(f"make the run directory {run}"):
            run.mkdir(parents=True)
        phases.append(phase(name, run, data, epochs, console))
    show(phases, runs / f"{stem}.html", console)
