"""The meeting point of a rival's workers, in a process without faults: ``… KIND FILE ADDRESS``.

It writes its address to the file. ``lighthouse`` is torchft's, ``store`` a TCPStore for torchrun's agents.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from uneven_bench.harness.program import write_whole

_LOOK_EVERY_S = 1.0


def main(kind: str, where: Path, here: str) -> None:
    """Serve until it is killed; ``here`` is its address for the others."""
    served: Any
    if kind == "lighthouse":
        os.environ.setdefault("RUST_LOG", "error")  # else it prints every quorum; torchft reads it at its import
        from torchft.coordination import LighthouseServer

        served = LighthouseServer(bind="0.0.0.0:0", min_replicas=1)
        address = f"http://{here}:{urlsplit(served.address()).port}"
    else:
        from torch._C._distributed_c10d import TCPStore

        served = TCPStore(here, 0, is_master=True, wait_for_workers=False)
        address = f"{here}:{served.port}"
    write_whole(where, address)
    while served:
        time.sleep(_LOOK_EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
