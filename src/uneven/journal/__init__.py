"""The journal of a run: append-only records, one file per rank.

::

    RUN/run.toml                    written by the launcher, optional
    RUN/journal/rank00000.jsonl     one JSON object per line, see uneven.policy.core.records
    RUN/journal/rank00001.jsonl     …

Each rank writes its file with a :class:`Writer` (in a run, through a :class:`BackgroundWriter`), without communication;
a simulation writes all files with :class:`ManyWriters`. Readers use :func:`read` or a :class:`Follower`.
``journal.pure.metrics`` joins the records of all ranks into iterations, or ``journal.pure.apart`` cuts the steps of
asynchronous workers into global batches; ``journal.pure.summary`` summarizes them.
"""

from uneven.journal.pure.member_changes import LEFT, MemberChange, MemberChanges
from uneven.journal.pure.messages import END, PLAN, plan_message, planned_iterations
from uneven.journal.pure.metrics import Iteration, Timing, iterations
from uneven.journal.pure.summary import Summary, WorkerSummary, summarize
from uneven.journal.reader import Follower, Journal, newest_run, rank_path, rank_paths, read
from uneven.journal.writer import BackgroundWriter, ManyWriters, Writer

__all__ = [
    "END",
    "LEFT",
    "PLAN",
    "BackgroundWriter",
    "Follower",
    "Iteration",
    "Journal",
    "ManyWriters",
    "MemberChange",
    "MemberChanges",
    "Summary",
    "Timing",
    "WorkerSummary",
    "Writer",
    "iterations",
    "newest_run",
    "plan_message",
    "planned_iterations",
    "rank_path",
    "rank_paths",
    "read",
    "summarize",
]
