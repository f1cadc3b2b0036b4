"""FlexRR on real ranks: the gradient is that of one process on the whole batch, whoever did which micro-batch."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from uneven.testing.ranks import RankContext, ranks
from uneven_bench.peers.flexrr.carrier import FlexRRCarrier

SHARES = (24, 20, 26, 30)  # the last micro-batch of some is smaller
FIRSTS = (0, 24, 44, 70)
GRAIN = 4


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(iteration)
    total = sum(SHARES)
    return torch.randn(total, 6, generator=source), torch.randint(3, (total,), generator=source)


def held(first: int, received: list[int]) -> bool:
    return (first == 4 and not sum(received)) or (first == 8 and max(received) < 3)


def train(me: RankContext, iterations: int, *, held_up: bool = False) -> list[int]:
    """Compare every iteration's gradient with one process's; what this rank did."""
    model = network()
    carrier = FlexRRCarrier(model, grain=GRAIN, timeout_s=30.0)
    for iteration in range(iterations):
        x, y = batch(iteration)
        waits = held_up and me.rank == 0 and iteration == 0

        def loss(owner: int, first: int, samples: int, x: Any = x, y: Any = y, waits: bool = waits) -> torch.Tensor:
            # At its second piece rank 0 waits until somebody is nearly through, at its third until a helper has written
            # for the third time: nearly through, finished, begun.
            while waits and owner == 0 and held(first, carrier.mailbox.received):
                time.sleep(0.001)
            part = slice(FIRSTS[owner] + first, FIRSTS[owner] + first + samples)
            assert first + samples <= SHARES[owner]
            return F.cross_entropy(model(x[part]), y[part], reduction="sum")

        carrier.backward(SHARES, loss)
        wanted = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    carrier.close()
    tally = carrier.tally
    return [tally.own, tally.helped, tally.dropped, tally.messages]


def each_piece_once(iterations: int) -> Any:
    pieces = iterations * sum(-(-share // GRAIN) for share in SHARES)

    def check(results: list[list[int]]) -> None:
        assert sum(own + helped for own, helped, *_ in results) == pieces

    return check


def rank_0_was_helped(results: list[list[int]]) -> None:
    each_piece_once(3)(results)
    assert results[0][0] < 3 * 6
    assert sum(helped for _, helped, *_ in results[1:]) >= 1


@ranks(4, check=rank_0_was_helped)
def test_a_straggler_is_helped_and_the_gradient_is_that_of_bsp(me: RankContext) -> list[int]:
    return train(me, 3, held_up=True)


@ranks(4, check=each_piece_once(20))
def test_nobody_is_waited_for_in_vain(me: RankContext) -> list[int]:
    return train(me, 20)


@ranks(1)
def test_alone_it_does_everything(me: RankContext) -> None:
    model = network()
    carrier = FlexRRCarrier(model, grain=3)
    x, y = batch(0)
    done = carrier.backward(
        (10,), lambda _, first, n: F.cross_entropy(model(x[first : first + n]), y[first : first + n], reduction="sum")
    )
    carrier.close()
    assert (done, carrier.tally.own) == (10, 4)
    wanted = torch.autograd.grad(F.cross_entropy(model(x[:10]), y[:10]), list(model.parameters()))
    torch.testing.assert_close([p.grad for p in model.parameters()], list(wanted))
