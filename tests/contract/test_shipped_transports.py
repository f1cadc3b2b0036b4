"""Every shipped transport keeps the contract, on threads and on processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import distributed_c10d as c10d

from uneven.errors import PeerError
from uneven.run.lines.group_lines import CollectiveTransport
from uneven.run.lines.in_process_rendezvous import Hub, MeetingPlace
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import Traffic
from uneven.testing.contracts import check_transport
from uneven.testing.ranks import RankContext, ranks


@pytest.mark.parametrize("size", [1, 2, 5])
def test_threads(size: int) -> None:
    hub = Hub(size)
    with ThreadPoolExecutor(size) as pool:
        for done in [pool.submit(check_transport, hub.endpoint(rank)) for rank in range(size)]:
            done.result(timeout=20)


def test_threads_say_who_was_missing() -> None:
    first = Hub(3, timeout_s=0.05).endpoint(0)
    with pytest.raises(PeerError, match="rank 1, 2"):
        first.gather([1.0]).result()


@ranks(3)
def test_processes(me: RankContext) -> None:
    roll = RollCall(MeetingPlace(c10d._get_default_store()), "uneven", me.rank, me.size, 20.0)
    check_transport(CollectiveTransport(20.0, roll, Traffic()))
