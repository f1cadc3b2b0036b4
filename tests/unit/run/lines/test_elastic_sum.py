"""A sum takes the place of what this worker has brought, and a NaN is blamed on the worker that brought it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from uneven.run.lines.communicator import _STRETCH, Contribution
from uneven.run.lines.group_lines import ReducerGroup

BEYOND = _STRETCH + 3
"""Longer than one stretch, and not a whole number of them."""


@pytest.mark.parametrize("weight", [1.0, 0.5])
@pytest.mark.parametrize("place", [0, _STRETCH - 1, _STRETCH, BEYOND - 1])
@pytest.mark.parametrize(("own", "fine"), [(3.0, True), (torch.finfo(torch.float32).max, True), (math.inf, False)])
def test_what_is_brought_is_scaled_and_a_number_that_is_none_is_found(
    place: int, own: float, fine: bool, weight: float
) -> None:
    brought, sent = torch.ones(BEYOND), torch.full((BEYOND + 4,), 2.0)
    brought[place] = brought[place - 1] = own
    piece = Contribution(brought, lambda: weight, sent)
    piece.fill()
    assert piece.fine == fine
    assert torch.equal(piece.sum, brought * weight)
    assert sent[BEYOND:].tolist() == [2.0] * 4


def test_a_padded_batch_counts_nothing_even_where_it_is_no_number() -> None:
    piece = Contribution(torch.full((3,), math.nan), lambda: 0.0, torch.ones(3))
    piece.fill()
    assert piece.fine
    assert piece.sum.tolist() == [0.0] * 3


def test_memory_is_used_again_where_it_fits_and_is_nobody_elses() -> None:
    old = Contribution(torch.ones(4), lambda: 1.0, torch.ones(6))
    piece = Contribution(torch.ones(4), lambda: 1.0, torch.empty(0))
    piece.room(old)
    assert piece.sent.data_ptr() == old.sent.data_ptr()
    for other in (
        Contribution(torch.ones(4), lambda: 1.0, torch.ones(3)),
        Contribution(torch.ones(4), lambda: 1.0, torch.ones(6, dtype=torch.float64)),
        Contribution(torch.ones(4), lambda: 1.0, torch.ones(6), kept=False),
    ):
        piece.room(other)
        assert piece.sent.data_ptr() != other.sent.data_ptr()
        assert piece.sent.numel() == 4


@pytest.mark.parametrize("views", [False, True])
def test_ddp_copies_a_sum_that_comes_late_into_gradients_of_any_layout(views: bool) -> None:
    """One parameter has its channels last, and one gets no gradient. The memory of the sum stays the exchange's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)).to(memory_format=torch.channels_last)
    model.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    x, memory = torch.randn(4, 2, 4, 4), list[torch.Tensor]()
    plain = torch.autograd.grad(model(x).square().sum(), [*model.parameters()], allow_unused=True)

    def hook(state, bucket):  # type: ignore[no-untyped-def] # DDP wants no annotations that are texts
        done = torch.futures.Future[torch.Tensor]()

        def land() -> None:
            piece = Contribution(bucket.buffer(), lambda: 0.5, torch.empty_like(bucket.buffer()), kept=False)
            piece.fill()
            memory[:] = [piece.sum]
            done.set_result(piece.sum)

        torch.autograd.Variable._execution_engine.queue_callback(land)
        return done

    group, options = ReducerGroup(), {"find_unused_parameters": True, "init_sync": False}
    trained = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=views, **options)
    trained.register_comm_hook(None, hook)
    for _ in range(3):
        trained(x).square().sum().backward()
        memory[0].fill_(math.nan)
        for one, theirs in zip(model.parameters(), plain, strict=True):
            if theirs is None:
                assert one.grad is None
            else:
                assert one.grad is not None
                assert one.grad.stride() == one.stride()
                torch.testing.assert_close(one.grad, theirs * 0.5)
        model.zero_grad()
    trained._remove_autograd_hooks()
