"""``python -m uneven.embedding DIRECTORY SHARD MEMBERS``: one shard of the tables in its own process."""

from uneven.embedding.table_host import sockets_of
from uneven.runtime.messages.process import run_shard

if __name__ == "__main__":
    run_shard("uneven.embedding", sockets_of)
