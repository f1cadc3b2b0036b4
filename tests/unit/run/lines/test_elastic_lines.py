"""What a line in an elastic run refuses; sums that survive are played in tests/ranks/test_elastic_ways.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.errors import ConfigError, PeerError, TrainingError
from uneven.policy.core.membership import Generation
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.lines.elastic_lines import ElasticLines
from uneven.run.membership.generations import Membership
from uneven.runtime.tcp_store import reach


class Nobody:
    """Hears of no change."""

    def flush(self) -> None: ...

    def announce(self) -> float:
        return 0.0

    def changed(self, *_: object) -> None: ...

    def landed(self, *_: object) -> None: ...

    def drawn(self) -> int:
        return -1


@pytest.fixture
def rounds() -> Iterator[ElasticCommunicator]:
    """Of a worker that is alone at the moment."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    connect = partial(reach, "127.0.0.1", kept.port, 60.0)
    membership = Membership(0, 1, (1, 4), connect, silence_s=0.0, timeout_s=10.0)
    it = ElasticCommunicator(membership, Nobody(), report_length=2)
    it.circle = membership.circle("exchanges")
    yield it
    it.circle.drop()
    membership.close()


@pytest.fixture
def lines(rounds: ElasticCommunicator) -> ElasticLines:
    return ElasticLines(0, rounds, lambda what: nullcontext())


def test_whole_numbers_and_broadcasts_are_exact(lines: ElasticLines) -> None:
    line = lines.open("mine")
    counts, given = torch.arange(6).reshape(2, 3), torch.tensor([0.1, float("inf")])
    line.sum(counts).wait()
    line.broadcast(given, 0).wait()
    assert torch.equal(counts, torch.arange(6).reshape(2, 3))
    assert given.tolist() == [pytest.approx(0.1), float("inf")]


def test_one_exchange_is_waited_for_before_the_next(lines: ElasticLines) -> None:
    line = lines.open("mine")
    first = line.sum(torch.ones(2))
    with pytest.raises(TrainingError, match="wait for one before the next"):
        line.sum(torch.ones(2))
    first.wait()
    line.sum(torch.ones(2)).wait()


def test_pieces_of_any_size_and_type_come_as_they_are(lines: ElasticLines) -> None:
    line = lines.open("mine")
    for x in (torch.tensor([0.1, torch.nan]), torch.arange(6).reshape(2, 3), torch.tensor(True), torch.ones(0)):
        into, back = [torch.zeros_like(x)], [torch.zeros_like(x)]
        assert line.gather(x, into).wait() == (0,)
        assert line.all_to_all([x], back).wait() == (0,)
        assert all(torch.equal(one.nan_to_num(7.0), x.nan_to_num(7.0)) for one in (*into, *back))


def test_the_place_of_a_lost_worker_is_filled_with_zeros(lines: ElasticLines, rounds: ElasticCommunicator) -> None:
    """As after a loss that the part has not heard of when it begins."""
    lines.members_changed((0, 3))
    line, into = lines.open("mine"), [torch.full((2,), torch.nan) for _ in range(2)]
    assert line.gather(torch.ones(2), into).wait() == (0,)
    assert [one.tolist() for one in into] == [[1.0, 1.0], [0.0, 0.0]]


def test_what_only_two_would_do_is_refused(lines: ElasticLines) -> None:
    lines.members_changed((0, 3))
    line, x = lines.open("mine"), torch.ones(2)
    for begin in (lambda: line.send(x, 3), lambda: line.receive(x, 3)):
        with pytest.raises(ConfigError, match="on a line in an elastic run"):
            begin()
    with pytest.raises(ConfigError, match="give all members"):
        lines.open("some", [0])


@pytest.mark.parametrize("known", [False, True])
def test_a_broadcast_of_one_that_is_gone_ends_with_its_name_and_another_one_repeats_it(
    lines: ElasticLines, rounds: ElasticCommunicator, known: bool
) -> None:
    lines.members_changed((0, 3))
    rounds.membership.enter(Generation(number=1, members=(0,) if known else (0, 3), came={}, why={}))
    if not known:
        rounds.circle = None
        rounds.membership.board.remove_member(3, "it was killed")
    line = lines.open("mine")
    with pytest.raises(PeerError, match=r"worker 3, .* is gone: repeat it from another worker"):
        line.broadcast(torch.ones(2), 3).wait()
    assert line.broadcast(torch.ones(2), 0).wait() == (0,)
