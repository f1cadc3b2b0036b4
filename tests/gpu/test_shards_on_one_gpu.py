"""``fully_shard`` on devices. Two workers share the GPU, so gloo carries their exchanges through host memory.

NCCL, which has its own streams, carries them only where it lets workers share a GPU.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpu_training import CLASSES, FEATURES, alone, assert_same, mlp, momentum, together
from test_workers_on_one_gpu import skip_if_told, slow_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.utils.data import TensorDataset

import uneven
from uneven.journal import read
from uneven.policy.core.records import StepRecord
from uneven.testing.ranks import RankContext, ranks

pytestmark = pytest.mark.timeout(180)


def sharded(model: nn.Module, workers: int, device: str = "cuda", **how: Any) -> nn.Module:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = init_device_mesh(device, (workers,))
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


def whole(model: nn.Module, like: nn.Module) -> nn.Module:
    shards = {name: one.to(one.device_mesh.device_type) for name, one in model.state_dict().items()}
    like.load_state_dict({name: one.full_tensor().to("cuda") for name, one in shards.items()})
    return like


@pytest.mark.parametrize("offloads", [False, True])
@ranks(2, join=False, fresh=True)
def test_equal_one_process_on_unequal_shares(me: RankContext, offloads: bool) -> None:
    """With ``offloads``, the second worker keeps its shard in host memory."""
    model = sharded(mlp("cuda"), 2, **({"offload_policy": CPUOffloadPolicy()} if offloads and me.rank else {}))
    splits = together(model, momentum, 3, device="cuda")
    assert len(splits) > 5, "the split did not move"
    assert_same(whole(model, mlp("cuda")), alone(mlp("cuda"), momentum, 3))


@ranks(2, join=False, fresh=True)
def test_a_worker_without_a_gpu_holds_a_shard(me: RankContext) -> None:
    device = "cpu" if me.rank else "cuda"
    model = sharded(mlp(device), 2, device)
    together(model, momentum, 3)
    assert_same(whole(model, mlp("cuda")), alone(mlp("cuda"), momentum, 3))


def follow(me: RankContext, run_dir: str) -> None:
    """Train where a sample takes one worker three times as long; the shares follow."""
    data = TensorDataset(torch.randn(4800, FEATURES), torch.randint(0, CLASSES, (4800,)))
    with uneven.Session(balance="lb-bsp", run_dir=run_dir) as session:
        model = sharded(mlp("cuda", torch.float32), 2)
        trained, optimizer = session.setup(model, momentum(model))
        for x, y in session.loader(data, global_batch_size=48):
            time.sleep(slow_of(me.rank) * len(x))
            F.cross_entropy(trained(x.cuda()), y.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
        shares = session.shares
    assert 30 <= shares[0] <= 40, f"{shares}, and 36 to 12 would be even"
    steps = [one for one in read(Path(run_dir)).records() if isinstance(one, StepRecord)] if me.rank == 0 else []
    assert all(one.exchange_s >= 0.0 and one.compute_s > 0.0 for one in steps)


@ranks(2, join=False, fresh=True)
def test_shares_follow_speed(me: RankContext, tmp_path: str) -> None:
    follow(me, tmp_path)


@ranks(2, join=False, fresh=True, check=skip_if_told)
def test_nccl_where_it_lets_workers_share_a_gpu(me: RankContext, tmp_path: str) -> str:
    """Its exchanges run in streams, and marks in the stream of computation find the waits."""
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=me.rank, world_size=me.size)
    try:
        try:
            dist.all_reduce(torch.ones(1, device="cuda"))
            torch.cuda.synchronize()
        except RuntimeError as error:
            return str(error).splitlines()[-1]
        model = sharded(mlp("cuda"), 2)
        together(model, momentum, 3)
        assert_same(whole(model, mlp("cuda")), alone(mlp("cuda"), momentum, 3))
        follow(me, tmp_path)
        return ""
    finally:
        dist.destroy_process_group()
