"""The command ``uneven store``: host the store of an elastic run on a machine that stays."""

from typing import Annotated

from uneven.cli import options
from uneven.cli.options import option
from uneven.runtime.launch.launch_spec import DEFAULT_PORT, bounds_of, check_silence

Host = Annotated[str, option("HOST", "Address of this machine that the workers can reach.")]
Port = Annotated[int, option("PORT", "Port to listen on; 0 is any free port.", min=0, max=65535)]
Bounds = Annotated[
    str,
    option(
        "MIN:MAX", "Start the run when MIN workers have joined, and end it when fewer are left; accept at most MAX."
    ),
]


def store(
    elastic: Bounds, host: Host = "127.0.0.1", port: Port = DEFAULT_PORT, silence: options.Silence = 10.0
) -> None:
    """Host the store of an elastic run, on a machine that stays.

    The workers of a run coordinate through its store. If a machine without workers hosts it, any worker may be lost,
    also the first one. The loss of the store ends the run. A store serves one run and ends with it. Ctrl-C ends both.
    The store has no password: give an address of a trusted network.

    Exit codes: 0 the training is finished; 1 all workers were lost before; 2 wrong setting; 130 stopped with Ctrl-C.

    \b
    Examples:
      uneven store --elastic 1:4                     for workers on this machine
      uneven store --elastic 2:8 --host 10.0.0.1     for workers on other machines, and there:
      uneven run --nproc 4 --join 10.0.0.1:29500 train.py
    """
    # Checked first, because the import of torch takes seconds.
    bounds = bounds_of(elastic)
    check_silence(silence)
    from uneven.runtime.launch.store_server import keep  # imports torch

    keep(host, port, bounds, silence)
