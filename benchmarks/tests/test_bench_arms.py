"""The arms of ``uneven bench lb-bsp`` on real ranks: all train the same model on the same samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from uneven.errors import ConfigError, LaunchError
from uneven.policy.balance.balancer import Balancer, standing
from uneven.policy.core.actions import Split
from uneven.policy.core.views import BalanceView
from uneven.policy.samples.order import epoch_order
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.harness.stage import play
from uneven_bench.lb_bsp import bench as lb_bsp
from uneven_bench.lb_bsp.arms import Arm, DDPArm, SessionArm
from uneven_bench.lb_bsp.cases import ARMS, LIMIT, OURS, RULES, LbBspCase
from uneven_bench.lb_bsp.rival_arms import AccumulateArm, BackupArm, FlexRRArm, RuleArm
from uneven_bench.lb_bsp.table import summarize
from uneven_bench.peers.accumulate.carrier import AccumulateCarrier
from uneven_bench.workloads.base import TrainingWorkload, stretch

TOTAL, BLOCK, BLOCKS = 12, 3, 2


class ToAndFro(Balancer):
    """One sample from the first to the last, and back."""

    predictor = "last"

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def split(self, view: BalanceView) -> Split:
        shares = list(standing(view))
        if view.observed[0] is not None:
            assert all(one is not None and one.samples > 0 and one.local_s > 0 for one in view.observed)
            self.seen.append(tuple(one.samples for one in view.observed if one is not None))
            step = 1 if len(self.seen) % 2 else -1
            shares[0], shares[-1] = shares[0] - step, shares[-1] + step
        return Split(tuple(shares), "to and fro")


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def work(whole: bool = False) -> TrainingWorkload:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(50, 4, generator=source)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    return TrainingWorkload(about="", train=data, test=data, make=network, rate=0.1, whole=whole)


def as_one_process() -> nn.Module:
    """All blocks, with the whole batch at once."""
    task = work()
    model, (data, _) = network(), stretch(task, BLOCK * TOTAL)
    optimizer = task.optimizer(model.parameters())
    for number in range(BLOCKS):
        data.turn(number)
        order = epoch_order(length=BLOCK * TOTAL, seed=0, epoch=number)
        for start in range(0, BLOCK * TOTAL, TOTAL):
            x, y = data.take(order[start : start + TOTAL])
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@ranks(3, timeout_s=90.0)
def test_every_arm_that_is_exact_ends_where_one_process_does(me: RankContext, tmp_path: Any) -> None:
    even = (4, 4, 4)
    rule = ToAndFro()
    arms: list[Arm] = [
        DDPArm(network(), work(), (6, 5, 1), BLOCK),
        DDPArm(network(), work(whole=True), (6, 5, 1), BLOCK),
        SessionArm(network(), work(), TOTAL, BLOCK, balance="static:shares=3/2/1", folder=Path(tmp_path) / "s"),
        SessionArm(network(), work(whole=True), TOTAL, BLOCK, balance=ToAndFro(), folder=Path(tmp_path) / "o"),
        RuleArm(network(), work(), even, BLOCK, rule=rule, every=1),
        FlexRRArm(network(), work(), even, BLOCK, grain=1),
    ]
    wanted = as_one_process()
    for _ in range(BLOCKS):
        for arm in arms:
            block = arm.block()
            assert (len(block.exposed_s), block.samples) == (BLOCK, 1.0)
    assert [distance(arm.model, wanted) < 1e-5 for arm in arms] == [True] * len(arms)
    assert rule.seen == [(4, 4, 4), (3, 4, 5)] * (BLOCK * BLOCKS // 2)
    assert distance(network(), wanted) > 1e-2  # so the comparison would have noticed
    approximate = [
        AccumulateArm(network(), work(), TOTAL, BLOCK, grain=1),
        BackupArm(network(), work(), TOTAL, BLOCK, spares=1),
    ]
    for _ in range(BLOCKS):
        assert approximate[0].block().samples >= 1.0
        assert approximate[1].block().wall_s > 0.0
    for arm in approximate:
        mine = torch.cat([p.detach().reshape(-1) for p in arm.model.parameters()])
        rank_0 = mine.clone()
        torch.distributed.broadcast(rank_0, src=0)
        torch.testing.assert_close(mine, rank_0)
        assert distance(arm.model, network()) > 1e-3
    for arm in [*arms, *approximate]:
        arm.close()


@ranks(2)
def test_what_all_have_accumulated_is_the_mean_over_all_of_it(me: RankContext) -> None:
    model = network()
    with pytest.raises(ConfigError, match="at least one"):
        AccumulateCarrier(model, grain=0)
    carrier = AccumulateCarrier(model, grain=2, timeout_s=30.0)
    source = torch.Generator().manual_seed(me.rank)
    x, y = torch.randn(40, 4, generator=source), torch.randint(2, (40,), generator=source)
    for _ in range(3):
        done = carrier.backward(
            8, lambda first, n: F.cross_entropy(model(x[first : first + n]), y[first : first + n], reduction="sum")
        )
        own = carrier.own
        table = torch.tensor([own])
        torch.distributed.all_reduce(table)
        assert int(table) == done >= 8
        found = torch.autograd.grad(F.cross_entropy(model(x[:own]), y[:own], reduction="sum"), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            torch.distributed.all_reduce(gradient)
            torch.testing.assert_close(parameter.grad, gradient / done, rtol=1e-4, atol=1e-6)
    carrier.close()


def test_a_case_from_its_description_to_its_keys(tmp_path: Path) -> None:
    case = LbBspCase(
        name="steady", about="two workers", workers=2, shares=((0.9, 0.7), (0.6, 0.9)), global_batch=16, block=2,
        arms={name: who for name, who in {**ARMS, **RULES}.items() if name in ("ddp", "lbb", OURS, LIMIT)}, settling=1,
        rounds=2, profile_s=0.1, catch_up=True,
    )  # fmt: skip
    short = replace(case, name="short", arms={"ddp": "ddp", OURS: "lb-bsp"}, rounds=1)
    said: list[tuple[str, str]] = []
    both = lb_bsp._play(tmp_path / "nodes", [case, short], "digits", lambda name, what, _: said.append((name, what)))
    (_, result), (_, after) = both
    rounds = [one for one in dict.fromkeys(said) if "round" in one[1]]
    assert rounds == [("steady", "round 1"), ("steady", "round 2"), ("short", "round 1")]
    assert list(after["blocks"]) == ["ddp", OURS]
    summary = summarize(case, result)
    json.dumps(summary)
    assert {name: row["rounds"] for name, row in summary["methods"].items()} == dict.fromkeys(case.arms, 2)
    assert all(len(curve) == 3 for curve in result["accuracy"].values())  # settled or caught up, all trained alike
    assert len({curve["3"] for curve in result["accuracy"].values()}) == 1
    assert all(sum(split) == 16 for split in summary["batches"].values())
    assert len(result["control"]) == 2


def test_a_worker_that_dies_is_told_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "output-0.txt").write_text("its last words")
    with pytest.raises(LaunchError, match="its last words"):
        play(tmp_path, "json.tool", 2, isolated=False, said=lambda *_: None)
