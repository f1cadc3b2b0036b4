"""``python -m uneven_bench.elastic.forked_torchrun …`` is ``torchrun …`` with forked workers.

Forks need not import torch, which would slow all processes of this shared machine. The launchers of the other arms do
the same: see :mod:`uneven_bench.forked.run`.
"""

from __future__ import annotations

import sys

from uneven_bench.forked.run import fork_workers

if __name__ == "__main__":
    fork_workers()
    from torch.distributed.run import main

    main(sys.argv[1:])
