"""What happens when a worker leaves its connection."""

from __future__ import annotations

import pytest

from uneven.errors import PeerError
from uneven.run.start.connect import Connection


def test_after_an_error_on_leaving_no_other_worker_is_waited_for() -> None:
    connection, told = Connection(transport=None, roll=None, own_group=None, world=None, timeout_s=1.0), []  # type: ignore[arg-type]
    connection.leaving = told.append  # of an elastic run: it waits for the others, and reports the run as finished

    def last_exchange(failed: bool) -> None:
        if told:
            raise PeerError("worker 1 did not take part")

    connection.left_by(last_exchange)
    connection.leaving(False)
    with pytest.raises(PeerError):
        connection.leaving(False)
    assert told == [False, True]
