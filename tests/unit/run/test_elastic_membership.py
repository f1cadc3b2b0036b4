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


def test_who_enters_a_generation_again_still_knows_that_all_have() -> None:
    """Newcomers do, with the state that they are given; else those that came together could never go on by majority."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)

    here = Membership(0, 1, (1, 2), Succession(0, ("127.0.0.1", kept.port), 0.0, 60.0), silence_s=0.0, timeout_s=10.0)
    try:
        first = Generation(number=1, members=(0,), left=(), came={}, why={})
        here.enter(first)
        assert not here.settled
        here.circle("exchanges")
        here.enter(first)
        assert here.settled
        here.enter(Generation(number=2, members=(0,), left=(), came={}, why={}))
        assert not here.settled
    finally:
        here.close()
