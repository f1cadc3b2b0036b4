"""``python -m uneven_bench.elastic.forked_torchrun …`` is ``torchrun …``, but its workers are forks of it.

They need not import torch then, which on a machine of one's own nobody else would notice, and here everybody would. The
same is done for the launchers of the other arms: see :mod:`uneven_bench.forked.run`.
"""

from __future__ import annotations

import sys

from uneven_bench.forked.run import fork_workers

if __name__ == "__main__":
    fork_workers()
    from torch.distributed.run import main

    main(sys.argv[1:])
