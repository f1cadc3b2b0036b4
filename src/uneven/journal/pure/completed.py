"""Steps that were recorded without a session, completed by the records of the other workers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from uneven.journal.pure.metrics import iterations
from uneven.policy.core.records import Record, StepRecord


def completed(ranks: Mapping[int, Sequence[Record]]) -> dict[int, tuple[Record, ...]]:
    """Return the records of a run with the global batch, and each worker's own side of the exchange.

    A worker without a session cannot know them: it records a global batch of 0. Other runs are returned as they are.
    """
    if not any(isinstance(one, StepRecord) and not one.global_batch for found in ranks.values() for one in found):
        return {rank: tuple(found) for rank, found in ranks.items()}
    known = {one.iteration: one for one in iterations(record for found in ranks.values() for record in found)}

    def whole(record: Record) -> Record:
        if not isinstance(record, StepRecord) or record.global_batch or record.iteration not in known:
            return record
        one = known[record.iteration]
        if record.rank not in one.timings:
            return record
        own_s = min(one.timings[record.rank].communicate_s, record.exchange_s)
        return replace(record, global_batch=one.global_batch, transfer_s=own_s)

    return {rank: tuple(map(whole, found)) for rank, found in ranks.items()}
