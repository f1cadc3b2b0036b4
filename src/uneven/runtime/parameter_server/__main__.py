"""The command ``python -m uneven.runtime.parameter_server DIRECTORY SHARD MEMBERS``: one shard in its own process,
until SIGTERM."""

from functools import partial

from uneven.runtime.messages.process import run_shard
from uneven.runtime.parameter_server.shard_host import sockets_of

if __name__ == "__main__":
    run_shard("uneven.runtime.parameter_server", sockets_of, growing=partial(sockets_of, growing=True))
