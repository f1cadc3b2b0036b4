"""The gains of remedies, from records alone."""

from __future__ import annotations

import pytest

from uneven.policy.core.records import FactsRecord, Record, RunRecord, StepRecord
from uneven.why.pure.remedies import simulation


def recorded(quotas: bool) -> list[Record]:
    """Return 60 steps of two workers. Both take 8 ms of a processor, and rank 1 has a tenth of one: 80 ms.

    Rank 0 waits, saves its quota of 0.3, and so computes for 8 ms instead of 27.
    """
    settings = {"balance": "even", "sync": "bsp"}
    records: list[Record] = [
        RunRecord(
            run="mine", rank=0, world_size=2, host="here", pid=1, started_at_s=0.0, settings=settings, versions={}
        )
    ]
    for rank, compute_s, cores in ((0, 0.008, 0.3), (1, 0.08, 0.1)):
        for number in range(60):
            step = StepRecord(
                rank=rank,
                iteration=number,
                epoch=0,
                batch=8,
                global_batch=16,
                data_s=0.0,
                compute_s=compute_s,
                exchange_s=0.082 - compute_s,
                control_s=0.0,
                ended_at_s=0.082 * (number + 1),
            )
            records.append(step)
        values = {"steps": 60.0, "ran_s": 60 * 0.008} | ({"quota_cores": cores} if quotas else {})
        records.append(FactsRecord(rank=rank, iteration=59, at_s=5.0, values=values))
    return records


@pytest.mark.parametrize(("quotas", "gain"), [(True, 0.082 / (0.008 / 0.3 + 0.002)), (False, 0.082 / 0.010)])
def test_a_worker_that_no_longer_waits_computes_within_its_quota(quotas: bool, gain: float) -> None:
    found = simulation("mine", recorded(quotas), ["rank 1 as fast as rank 0"], seed=0)
    as_it_was, faster = found.played
    assert as_it_was.samples_per_s == pytest.approx(16 / 0.082, rel=0.02)
    assert found.gain(faster) == pytest.approx(gain, rel=0.05)
