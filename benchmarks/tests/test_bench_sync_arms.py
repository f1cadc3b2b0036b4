"""The arms of ``uneven bench sync`` on real ranks: each learns, and shows the model that counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from uneven.testing.ranks import RankContext, ranks
from uneven_bench.sync.arm import RATE, SyncArm
from uneven_bench.sync.arms import make

STEPS = 8
TOGETHER = {
    "ddp": "ddp", "fp16": "ddp:hook=fp16", "powersgd": "ddp:hook=powersgd", "post-local": "post-local:every=4",
    "bsp": "even bsp", "local": "even local:every=4", "shuffle": "even shuffle", "ssp": "even ssp:staleness=1",
}  # fmt: skip
SHARED = {"asp": "even asp", "easgd": "even easgd:every=2", "shadow-copy": "even shadow:easgd"}
APART = {"alone": "none", "bare": "bare", "shadow": "even shadow:ma", **SHARED}
MOVED = {"shadow", "ssp", *SHARED}
"""An exchange of theirs may have landed meanwhile, or what was in hand has been pushed."""


def data() -> TensorDataset:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(48, 6, generator=source)
    return TensorDataset(x, (x.sum(1) > 0).long())


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def weights(arm: SyncArm) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in arm.model.parameters()]).clone()


def spread(vector: torch.Tensor) -> float:
    """Largest difference of any entry between the ranks."""
    high, low = vector.clone(), vector.clone()
    dist.all_reduce(high, dist.ReduceOp.MAX)
    dist.all_reduce(low, dist.ReduceOp.MIN)
    return float((high - low).max())


@ranks(2)
def test_arms_learn_what_they_should_and_show_the_model_that_counts(me: RankContext, tmp_path: Any) -> None:
    arms = {name: make(who, model(), data(), 4, Path(tmp_path) / name) for name, who in (TOGETHER | APART).items()}
    first = weights(arms["ddp"])
    blocks = {name: arm.train(seconds=0.05, steps=STEPS) for name, arm in arms.items()}
    shown = {}
    for name, arm in arms.items():
        before = weights(arm)
        with arm.counted():
            shown[name] = weights(arm)
        assert name in MOVED or torch.equal(weights(arm), before)
        assert not torch.equal(first, before)
        assert arm.own_pace == (name in APART)
    for name in TOGETHER:
        assert blocks[name].steps == STEPS
        assert blocks[name].samples == 4 * STEPS == 2 * me.size * STEPS
    assert all(blocks[name].steps > 0 for name in APART)
    torch.testing.assert_close(shown["bsp"], shown["ddp"])
    assert all(spread(shown[name]) == 0.0 for name in (*TOGETHER, *SHARED, "shadow"))
    assert all(spread(shown[name]) > 0.01 * RATE for name in ("alone", "bare"))
    for name in ("alone", "shadow"):
        for _ in range(2):  # by turns: each stretch begins with a batch that it has asked for itself
            assert arms[name].train(seconds=0.05, steps=0, through=True).steps > 0
        assert arms[name]._hand is None, "nothing is in hand while others train"
    for arm in arms.values():
        arm.close()
