"""Membership on a real store: what one worker does when another is gone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.core.membership import Generation
from uneven.run.elastic.membership import Membership
from uneven.run.elastic.succession import Succession
from uneven.run.lines.circle import Broken

LIMIT = timedelta(seconds=60)


def test_a_group_is_made_after_one_whose_member_was_gone_before_it_was_made() -> None:
    """The thread that makes the first one waits for its member until a time-out, which the second one must not."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)

    way = Succession(0, ("127.0.0.1", kept.port), 0.0, 60.0)
    here = Membership(0, 2, (1, 2), way, silence_s=0.0, timeout_s=10.0)
    try:
        here.board.bury(1, "it was killed")
        with pytest.raises(Broken):
            here.circle("exchanges")
        here.enter(Generation(number=1, members=(0,), left=(1,), came={}, why={"1": "it was killed"}))
        assert here.circle("exchanges").size == 1
    finally:
        here.close()
