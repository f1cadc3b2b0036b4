"""The command ``python -m uneven.server DIRECTORY SHARD MEMBERS``: one shard in its own process, until SIGTERM."""

from functools import partial

from uneven.server.host import serve
from uneven.server.program import run_shard

if __name__ == "__main__":
    run_shard("uneven.server", serve, growing=partial(serve, growing=True))
