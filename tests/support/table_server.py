"""A table server of a test that runs in a process of ``uneven.testing.ranks``, of which it is a fork."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from uneven.embedding.table_host import PROGRAM, TABLES
from uneven.runtime.jobs import command
from uneven.runtime.messages.process import ShardKeeper
from uneven_bench.forked.run import Forked


@contextlib.contextmanager
def served(run: Path, workers: int = 1) -> Iterator[ShardKeeper]:
    """Let the tables of this process be on a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "Popen", Forked)
        patch.setenv("UNEVEN_RUN", str(run))
        with ShardKeeper(run / TABLES, 1, workers, program=PROGRAM) as keeper:
            yield keeper
