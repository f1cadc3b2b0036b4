"""Backup workers on real ranks: the first gradients count, the late are dropped, nobody is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from uneven.errors import ConfigError, PeerError
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.peers.backup.carrier import BackupCarrier
from uneven_bench.peers.mailbox import Mailbox

TOTAL = 12
UNTIL = 4


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(version: int, rank: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(100 * version + rank)
    return torch.randn(samples, 4, generator=source), torch.randint(2, (samples,), generator=source)


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def parameters(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).tolist()


def as_one_process(updates: list[list[int]], samples: int) -> list[float]:
    """The same updates, each from the union of the batches that counted."""
    model = network()
    step = optimizer(model.parameters())
    for version, who in enumerate(updates):
        x, y = (torch.cat(rows) for rows in zip(*(batch(version, rank, samples) for rank in who), strict=True))
        step.zero_grad()
        F.cross_entropy(model(x), y).backward()
        step.step()
    return parameters(model)


def the_late_is_dropped(results: list[dict[str, Any]]) -> None:
    first = results[0]
    assert first["dropped"][2] >= 1
    assert all(2 not in who for who in first["updates"][:2])
    assert [len(who) for who in first["updates"]] == [2] * UNTIL
    samples = results[0]["samples"]
    assert samples == 6  # 12 over the two that count
    torch.testing.assert_close(first["parameters"], as_one_process(first["updates"], samples), rtol=1e-4, atol=1e-5)
    assert all(row["parameters"] == first["parameters"] and row["version"] == UNTIL for row in results)
    assert sum(row["sent"] for row in results) == 2 * UNTIL + sum(first["dropped"])


@ranks(3, check=the_late_is_dropped)
def test_the_first_gradients_make_the_update_and_the_late_is_dropped(me: RankContext, tmp_path: str) -> dict[str, Any]:
    model, reached = network(), Path(tmp_path) / "version-2"
    carrier = BackupCarrier(model, optimizer, spares=1, timeout_s=30.0)
    samples = carrier.samples_each(TOTAL)

    def loss(version: int) -> torch.Tensor:
        if me.rank == 0 and version == 2:
            reached.touch()
        while me.rank == 2 and version == 0 and not reached.exists():
            time.sleep(0.002)
        x, y = batch(version, me.rank, samples)
        return F.cross_entropy(model(x), y)

    sent = carrier.train(UNTIL, loss)
    assert len(carrier.exposed_s) == sent
    carrier.close()
    updates = [list(who) for who in carrier.updates]
    return {
        "sent": sent, "version": carrier.version, "parameters": parameters(model), "samples": samples,
        "dropped": list(carrier.dropped), "updates": updates,
    }  # fmt: skip


def it_is_bsp(results: list[list[float]]) -> None:
    torch.testing.assert_close(results[0], as_one_process([[0, 1]] * UNTIL, 6), rtol=1e-4, atol=1e-5)
    assert results[0] == results[1]


@ranks(2, check=it_is_bsp)
def test_without_spares_it_is_bsp(me: RankContext) -> list[float]:
    model = network()
    carrier = BackupCarrier(model, optimizer, spares=0, timeout_s=30.0)

    def loss(version: int) -> torch.Tensor:
        x, y = batch(version, me.rank, carrier.samples_each(TOTAL))
        return F.cross_entropy(model(x), y)

    carrier.train(2, loss)
    carrier.train(UNTIL, loss)  # goes on where it stopped
    carrier.close()
    assert carrier.dropped == (0, 0)
    return parameters(model)


@ranks(2)
def test_somebody_must_be_waited_for(me: RankContext) -> None:
    with pytest.raises(ConfigError, match="at least one worker must be waited for"):
        BackupCarrier(network(), optimizer, spares=2)


@ranks(2, fresh=True)
def test_a_letter_that_does_not_come_is_not_waited_for_without_end(me: RankContext) -> None:
    mailbox = Mailbox(timeout_s=1.0)
    mailbox.send(me.rank, (7,))
    assert mailbox.get().numbers == (7,), "a letter to oneself"
    assert mailbox.poll() is None
    with pytest.raises(PeerError, match=f"rank {me.rank}"):
        mailbox.get()


@ranks(3)
def test_letters_keep_their_order_and_bring_vectors(me: RankContext) -> None:
    mailbox = Mailbox(timeout_s=30.0)
    for number in range(20):
        vector = torch.full((3,), float(number)) if number % 2 else None
        mailbox.send((me.rank + 1) % 3, (me.rank, number), vector)
    before = (me.rank - 1) % 3
    for number in range(20):
        letter = mailbox.get()
        assert (letter.sender, letter.numbers) == (before, (before, number))
        assert (letter.vector is None) if number % 2 == 0 else letter.vector.tolist() == [number] * 3  # type: ignore[union-attr]
    assert mailbox.received[before] == 20
    mailbox.close()
