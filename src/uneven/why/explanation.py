"""The explanation of a recorded run: read, judged, and each remedy simulated."""

from collections.abc import Sequence
from pathlib import Path

from uneven import journal
from uneven.journal.pure.member_changes import of_newest_workers
from uneven.policy.core.records import FactsRecord, Record, RunRecord
from uneven.why.pure.causes import FactSums, judge
from uneven.why.pure.findings import Explanation
from uneven.why.pure.remedies import with_remedies


def explain(run: str | Path, *, remedies: bool = True) -> Explanation:
    """Read a run's journal and return who is slow, why, and the gain of each remedy.

    Args:
        run: a run directory, of ``uneven why`` or of any session.
        remedies: simulate them, which takes a second or more.

    Raises:
        JournalError: the journal is missing or cannot be read.

    Example::

        found = uneven.why.explain("runs/mine")
        for suspect in found.suspects:
            print(suspect.rank, suspect.cause, suspect.late_s)
    """
    path = Path(run)
    records = of_newest_workers(journal.read(path).records())
    found = explained(path.resolve().name, records)
    return with_remedies(found, records) if remedies else found


def explained(name: str, records: Sequence[Record]) -> Explanation:
    """Return the explanation of a run's records, without remedies."""
    hosts = {one.rank: one.host for one in records if isinstance(one, RunRecord)}
    by_rank: dict[int, list[FactsRecord]] = {}
    for one in records:
        if isinstance(one, FactsRecord):
            by_rank.setdefault(one.rank, []).append(one)
    facts = {rank: FactSums.of(found) for rank, found in by_rank.items()}
    return judge(name, journal.iterations(records), facts, hosts)
