"""Membership on a real store: what one worker does when another is gone, or the store is."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined] # its stubs say that they are private

from uneven.errors import PeerError
from uneven.policy.core.membership import Generation
from uneven.run.lines.abortable_group import GroupAborted
from uneven.run.membership.failure_detector import FailureDetector
from uneven.run.membership.generations import Membership
from uneven.runtime.membership_board import NEWS, WORKERS, Board
from uneven.runtime.tcp_store import reach

LIMIT = timedelta(seconds=60)
OPEN_FILES = Path("/proc/self/fd")


def test_a_group_is_made_after_one_whose_member_was_gone_before_it_was_made() -> None:
    """The thread that makes the first one waits for its member until a time-out, which the second one must not."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)

    connect = partial(reach, "127.0.0.1", kept.port, 60.0)
    here = Membership(0, 2, (1, 2), connect, silence_s=0.0, timeout_s=10.0)
    try:
        here.board.remove_member(1, "it was killed")
        with pytest.raises(GroupAborted):
            here.circle("exchanges")
        here.enter(Generation(number=1, members=(0,), left=(1,), came={}, why={"1": "it was killed"}))
        assert here.circle("exchanges").size == 1
    finally:
        here.close()


def test_a_worker_at_its_end_does_not_wait_for_one_that_leaves_only_now() -> None:
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    connect = partial(reach, "127.0.0.1", kept.port, 60.0)
    one, two = crew = [Membership(worker, 2, (1, 2), connect, silence_s=0.0, timeout_s=20.0) for worker in range(2)]
    try:
        with ThreadPoolExecutor(1) as pool:
            ends = pool.submit(one.part_company, partial(one.follow, closing=True))
            while two.board.look("through/0") is None:
                time.sleep(0.005)
            two.follow(leaving=True)
            ends.result(60.0)
        assert one.generation.left == (1,)
    finally:
        for it in crew:
            it.close()


@pytest.mark.parametrize(
    "what", [lambda it: it.part_company(lambda: None), Membership.lost, Membership.follow, Membership.connected]
)
def test_without_the_store_of_the_run_each_question_raises_one_error(what: Any) -> None:
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    here = Membership(0, 2, (1, 2), partial(reach, "127.0.0.1", kept.port, 1.0), silence_s=0.0, timeout_s=10.0)
    try:
        del kept
        with pytest.raises(PeerError, match=r"^worker 0 cannot reach the store of the run: its process ended, or"):
            what(here)
    finally:
        here.close()


def test_a_worker_that_no_launcher_has_started_yet_is_not_gone() -> None:
    """The launchers of ``uneven run --join`` start one after another, and only then do their workers begin to beat."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    board = Board(kept)
    watch = FailureDetector(board, 0, (0, 1), silence_s=10.0)
    watch.close()  # its thread has another clock than this test
    beats: dict[int, tuple[int, float]] = {}

    def gone(now_s: float) -> bool:
        watch._look_after(beats, now_s, slept=False)
        return 1 in board.dead((1,))

    board.count(WORKERS, 1)
    assert not any(map(gone, (0.0, 11.0, 1000.0)))
    board.count(WORKERS, 1)
    assert not gone(1011.0), "Python starts"
    board.count("beats/1", 1)
    assert not gone(1012.0)
    assert gone(1023.0)


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="this system does not list open files")
def test_a_connection_that_fails_in_time_costs_one_descriptor() -> None:
    """Others of this process are looked at to find the one whose limit is to be set: files, and pipes, too."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    reads, writes = os.pipe()
    try:
        before = len([*OPEN_FILES.iterdir()])
        stores = [reach("127.0.0.1", kept.port, 60.0, gone_s=10.0) for _ in range(3)]
        there = len([*OPEN_FILES.iterdir()]) - before
    finally:
        os.close(reads)
        os.close(writes)
    assert there == 2 * len(stores), "both ends are here"


def test_all_newcomers_of_a_generation_are_admitted_in_any_order() -> None:
    board = Board(HashStore())
    keys = [board.ask(one, {}) for one in (1, 2)]
    board.asking()
    board.admit(map(int, ["2", "1"]), 1)
    assert [board.look(key) for key in keys] == ["1", "1"]


def test_a_newcomer_gets_the_state_of_the_run_from_its_own_site() -> None:
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    connect = partial(reach, "127.0.0.1", kept.port, 60.0)
    sites = ["a", "b", "b", "c", "a", "b"]
    crew = [
        Membership(worker, 3, (1, 6), connect, silence_s=0.0, timeout_s=10.0, site=site)
        for worker, site in enumerate(sites)
    ]
    try:
        new = Generation(number=1, members=tuple(range(6)), came={"3": {}, "4": {}, "5": {}}, why={})
        assert [one.donors(new) for one in crew] == [{3: 0, 4: 0, 5: 1}] * 6
        later = Generation(number=2, members=(2, 4, 5), came={"5": {}}, left=(0, 1, 3), why={})
        assert crew[5].donors(later) == {5: 2}
        assert crew[5].donors(Generation(number=3, members=(2, 4), came={}, left=(5,), why={})) == {}
    finally:
        for one in crew:
            one.close()


def test_a_member_that_does_not_come_to_a_group_is_named_and_reported() -> None:
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    here = Membership(0, 2, (1, 2), partial(reach, "127.0.0.1", kept.port, 60.0), silence_s=0.0, timeout_s=0.3)
    try:
        with pytest.raises(PeerError, match="worker 1 did not come, but seems alive"):
            here.circle("exchanges")
        assert here.board.look("missed/1") == "the group of the members"
    finally:
        here.close()


def test_a_loss_of_one_generation_is_none_of_the_next() -> None:
    """One thread asks for the old one, and another enters the next one meanwhile."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    here = Membership(0, 2, (1, 2), partial(reach, "127.0.0.1", kept.port, 60.0), silence_s=0.0, timeout_s=10.0)
    board = here.board
    dead = board.dead
    try:
        board.write("said/0/1", "{}")
        board.count(NEWS, 1)

        def enters(members: tuple[int, ...]) -> dict[int, str]:
            board.dead = dead  # type: ignore[method-assign]
            here.enter(Generation(number=1, members=(0, 1), came={}, why={}))
            assert not here.lost()
            return dead(members)

        board.dead = enters  # type: ignore[method-assign]
        here.lost()
        assert not here.lost()
    finally:
        here.close()


def test_a_wait_for_a_member_that_is_alive_ends_with_an_error_of_the_run() -> None:
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    connect = partial(reach, "127.0.0.1", kept.port, 60.0)
    crew = [Membership(worker, 2, (1, 2), connect, silence_s=0.0, timeout_s=2.0) for worker in range(2)]
    try:
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(lambda it: it.circle("exchanges"), crew)
        with pytest.raises(PeerError, match=r"all are alive\. One of them hangs, or the network is slow"):
            one.wait(one.sum(torch.zeros(1)))
        for it in (one, other):
            it.drop()
    finally:
        for each in crew:
            each.close()
