"""``uneven bench server``: the parameter server on the loopback of this machine.

Speed against a plain ZeroMQ copy, 64 workers against four shards for minutes, killed shards, and malformed messages.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from uneven_bench.harness.show import Progress
from uneven_bench.server import copy as server_copy
from uneven_bench.server import crowd as server_crowd
from uneven_bench.server import restart as server_restart
from uneven_bench.server.fuzz import fuzz

BAR_OF_PLAIN = 0.5  # speed of push and pull over that of a plain copy


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Measure all four. Result: ``copy`` (:func:`uneven_bench.server.copy.compare`), ``crowd``
    (:func:`uneven_bench.server.crowd.endure`), ``restart`` (:func:`uneven_bench.server.restart.compare`), ``fuzz``
    (``messages``, ``refused`` by reason, ``seconds``) and ``bar_of_plain``."""
    messages = 50_000 if quick else 1_000_000

    with tempfile.TemporaryDirectory(prefix="uneven-server-") as folder:
        place = Path(folder)
        copy = server_copy.compare(9 if quick else 31, partial(progress, "copying"), place / "copy")
        restart = server_restart.compare(
            *((150, 2) if quick else (600, 6)), data, partial(progress, "killing shards"), place / "restart"
        )
        crowd = server_crowd.endure(20.0 if quick else 600.0, partial(progress, "a crowd"), place / "crowd")
    progress("malformed messages", f"{messages:,}", 0.0)
    began_s = time.perf_counter()
    refused = fuzz(messages, seed=0)
    fuzzed = {"messages": messages, "refused": dict(refused), "seconds": time.perf_counter() - began_s}
    progress("malformed messages", "done", 1.0)
    return {"copy": copy, "restart": restart, "crowd": crowd, "fuzz": fuzzed, "bar_of_plain": BAR_OF_PLAIN}
