"""Tensors that are exchanged through host memory, as a GPU's need it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lines_contract import exchange_all
from uneven.policy.core.membership import Members
from uneven.run.lines import ThreadLines, staging
from uneven.run.lines.communicator import RoundPlace, Weight, unscaled
from uneven.run.lines.staging import HostCarrier, HostRounds
from uneven.run.replicas.flat import Flat
from uneven.testing.staging import staging_forced
from uneven_bench.forked.scripts import run_script


class Copied:
    """The end of a copy that a device makes; it is there once a caller waits for it, or a test sets it."""

    made: list[Copied]

    def __init__(self) -> None:
        self.passed = False
        self.made.append(self)

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True


class Doubled:
    """Rounds among two workers that have the same tensors."""

    whole = False

    def __init__(self, in_place: bool = True) -> None:
        self.in_place = in_place
        self.added: list[torch.Tensor] = []

    def begin(self, place: RoundPlace) -> None:
        self.added = []

    def add(self, own: torch.Tensor, weight: Weight = unscaled, *, into: torch.Tensor | None = None) -> Any:
        self.added.append(own)
        total = own if into is None else into
        torch.mul(own, 2.0 * weight(), out=total)
        return type("Piece", (), {"sum": total, "fine": True, "sent_bytes": 8})

    def land(self, *, words: bool = False) -> Members:
        return (0, 1)

    def meet(self, device: torch.device, ends: Any) -> Any:
        return device.type

    def nonfinite(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    with staging_forced():
        yield


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Copied]:
    Copied.made = []
    monkeypatch.setattr(staging, "mark_copied", lambda device: Copied())
    return Copied.made


@pytest.mark.parametrize("in_place", [True, False])
def test_an_exchange_begins_once_its_copy_is_there_while_the_next_bucket_fills(
    copies: list[Copied], in_place: bool
) -> None:
    inner = Doubled(in_place)
    rounds, buckets = HostRounds(inner), [torch.full((3,), float(number)) for number in range(4)]
    assert rounds.meet(torch.device("cuda"), lambda: None) == "cpu", "words travel with the copies"
    for _ in range(2):
        rounds.begin(RoundPlace("gradients"))
        before = [one.clone() for one in buckets]
        pieces = [rounds.add(one, lambda: 0.25) for one in buckets[:2]]
        assert not inner.added
        copies[-1].passed = True  # a later one does not overtake
        pieces.append(rounds.add(buckets[2], lambda: 0.25))
        assert not inner.added
        copies[-3].passed = True
        pieces.append(rounds.add(buckets[3], lambda: 0.25))
        assert len(inner.added) == 2
        assert rounds.land() == (0, 1)
        assert len(inner.added) == 4
        for piece, own, old in zip(pieces, buckets, before, strict=True):
            assert piece.sum is own
            assert own.tolist() == (old / 2).tolist()


def test_host_memory_is_used_again(copies: list[Copied]) -> None:
    inner = Doubled()
    rounds, bucket = HostRounds(inner), torch.ones(3)
    found = []
    for other in (torch.ones(2), torch.ones(4)):
        rounds.begin(RoundPlace("gradients"))
        rounds.add(bucket)
        rounds.add(other)
        rounds.land()
        assert other[0] == 2.0
        found.append(inner.added)
    assert found[0][0] is found[1][0]
    assert [one[1].shape for one in found] == [(2,), (4,)]


def test_sparse_tensors_stay_where_they_are(copies: list[Copied]) -> None:
    inner = Doubled()
    rounds, own = HostRounds(inner), torch.tensor([0.0, 3.0]).to_sparse()
    inner.add = lambda own, weight, into=None: inner.added.append(own)  # type: ignore[assignment,method-assign]
    rounds.begin(RoundPlace("gradients"))
    rounds.add(own)
    assert inner.added[0] is own


def test_every_exchange_of_a_line() -> None:
    class Staged(ThreadLines):
        def _carrier(self, members: Members) -> HostCarrier:
            return HostCarrier(super()._carrier(members))

    places = ThreadLines.of(3)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(exchange_all, [Staged(one.rank, one._places) for one in places]))


def test_a_replica_on_a_device_has_its_vectors_on_the_host(tmp_path: Path) -> None:
    """In a separate process: torch keeps the kind of device that Python pretends."""
    ended = run_script([Path(__file__).with_name("python_device.py")], cwd=tmp_path, timeout_s=100)
    assert ended.returncode == 0, ended.stderr


def test_vectors_stay_where_the_back_end_takes_them() -> None:
    assert Flat([torch.ones(2, device="meta")]).room(1).device.type == "meta"
    assert Flat([torch.ones(2, device="meta")], on_host=True).room(1).device.type == "cpu"
