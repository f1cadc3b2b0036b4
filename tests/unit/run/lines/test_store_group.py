"""A process group over a store: what its members exchange, in which order, and without one of them."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from uneven.run.lines.store_group import StoreGroup, host_backend

LIMIT = timedelta(seconds=0.05)


def two() -> tuple[HashStore, StoreGroup, StoreGroup]:
    store = HashStore()
    return store, *(StoreGroup(store, rank, 2, LIMIT) for rank in (0, 1))


def finished(*works: dist.Work) -> None:
    for work in works:
        work.wait()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_sums_are_equal_to_the_bit(dtype: torch.dtype) -> None:
    store, *groups = two()
    given = [torch.arange(6).reshape(2, 3).to(dtype) / (3 if dtype.is_floating_point else 1) + rank for rank in (0, 1)]
    given = [one.to(dtype) for one in given]
    held = [one.clone().t() for one in given]  # not contiguous
    finished(*[group.allreduce([one]) for group, one in zip(groups, held, strict=True)])
    assert all(one.equal((given[0] + given[1]).t()) for one in held)
    assert store.num_keys() == 0


def test_members_take_what_one_has_and_gather_what_all_have() -> None:
    store, *groups = two()
    opts = dist.BroadcastOptions()
    opts.rootRank = 1
    held = [torch.tensor([rank, 7 * rank]) for rank in (0, 1)]
    finished(*[group.broadcast([one], opts) for group, one in zip(groups, held, strict=True)])
    assert held[0].tolist() == held[1].tolist() == [1, 7]
    rows = [list(torch.empty(2, 2).unbind()) for _ in groups]
    works = [group.allgather([rows[rank]], [torch.full((2,), float(rank))]) for rank, group in enumerate(groups)]
    finished(*works, *[group.barrier() for group in groups])
    assert [[row.tolist() for row in each] for each in rows] == [[[0.0, 0.0], [1.0, 1.0]]] * 2
    assert store.num_keys() == 0


def test_members_begin_exchanges_of_two_groups_in_different_orders() -> None:
    store = HashStore()
    first, second = ([StoreGroup(dist.PrefixStore(name, store), rank, 2, LIMIT) for rank in (0, 1)] for name in "ab")
    held: Any = {place: torch.full((1,), float(number)) for number, place in enumerate(["a0", "b0", "a1", "b1"])}
    works = [
        first[0].allreduce([held["a0"]]),
        second[0].allreduce([held["b0"]]),
        second[1].allreduce([held["b1"]]),
        first[1].allreduce([held["a1"]]),
    ]
    finished(*works)
    assert [held[place].item() for place in ("a0", "a1", "b0", "b1")] == [2.0, 2.0, 4.0, 4.0]


def test_a_member_that_does_not_come_ends_the_wait() -> None:
    _, group, _ = two()
    work = group.allreduce([torch.zeros(1)])
    with pytest.raises(RuntimeError, match="timeout"):
        work.wait()


def test_what_a_store_cannot_add_up_is_refused_by_name() -> None:
    _, group, _ = two()
    with pytest.raises(RuntimeError, match="no gloo, and the run's store adds up dense tensors only"):
        group.allreduce([torch.eye(2).to_sparse()])


@pytest.fixture
def no_gloo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dist.distributed_c10d, "_GLOO_AVAILABLE", False)
    monkeypatch.setattr(dist.Backend, "register_backend", lambda name, make, devices: named.append(name))
    named: list[str] = []
    yield
    assert named == ["uneven_store"]


def test_gloo_is_taken_where_torch_has_it() -> None:
    assert host_backend() == "gloo"


@pytest.mark.usefixtures("no_gloo")
def test_the_store_is_taken_where_torch_has_no_gloo() -> None:
    assert host_backend() == "uneven_store"
