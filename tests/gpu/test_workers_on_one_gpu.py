"""Two workers that share a GPU, or one with and one without: gloo carries what NCCL refuses."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpu_training import (
    CLASSES,
    FEATURES,
    Make,
    Moving,
    X,
    adam,
    alone,
    assert_same,
    dataset,
    global_batches,
    mlp,
    momentum,
    together,
)
from test_elastic import HERE, check, run
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError
from uneven.journal import read
from uneven.policy.core.records import StepRecord
from uneven.testing.callbacks import alone as by_itself
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.inside import inside

pytestmark = pytest.mark.timeout(180)

MAKES: dict[str, Make] = {"momentum": momentum, "adam": adam}


@pytest.mark.parametrize("make", MAKES)
@ranks(2, join=False)
def test_equal_one_process_on_unequal_shares(me: RankContext, make: str) -> None:
    model = mlp("cuda")
    splits = together(model, MAKES[make], 3)
    assert len(splits) > 5, "the split did not move"
    assert_same(model, alone(mlp("cuda"), MAKES[make], 3))


@ranks(2, join=False, fresh=True)
def test_a_worker_without_a_gpu_takes_part(me: RankContext) -> None:
    if me.rank:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    device = "cpu" if me.rank else "cuda"
    assert torch.cuda.is_available() == (me.rank == 0)
    model = mlp(device)
    together(model, momentum, 3)
    assert_same(model, alone(mlp(device), momentum, 3))


@ranks(2, join=False)
def test_synchronised_batch_norm_of_torch(me: RankContext) -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(mlp("cuda", norm=nn.BatchNorm1d))
    together(model, momentum, 2, most=4)
    plain = mlp("cuda", norm=nn.BatchNorm1d)
    alone_of_four(plain)
    assert_same(model, plain, 1e-10)


def alone_of_four(model: nn.Module) -> None:
    optimizer = momentum(model)
    for x, y in list(global_batches(1))[:4]:
        F.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "sync",
    [
        "local:every=2",
        "ma",
        "diloco:every=3",
        "bmuf:every=2",
        "shuffle:groups=digits:ma",
        "topk",
        "sparse-local:every=2",
        "geo:bsp",
        "hierarchical:every=3",
    ],
)  # fmt: skip
@ranks(2, join=False, fresh=True)
def test_a_policy_does_on_the_device_what_it_does_on_the_host(me: RankContext, sync: str) -> None:
    os.environ["UNEVEN_SITE"] = "west" if me.rank else "east"
    on_device, on_host = mlp("cuda"), mlp("cpu")
    plain: Make = lambda model: torch.optim.SGD(model.parameters(), lr=0.05)  # noqa: E731
    for model in (on_host, on_device):
        together(model, plain, 2, sync=sync, balance="static:shares=3/1")
    assert_same(on_device, on_host, 1e-6 if sync.startswith(("topk", "sparse", "geo")) else 1e-9)


@pytest.mark.parametrize("sync", ["asp", "ssp", "backup", "easgd", "shadow:easgd", "shadow:ma", "shadow:bmuf"])
@ranks(2, join=False, fresh=True)
def test_a_policy_without_order_learns(me: RankContext, sync: str) -> None:
    model = mlp("cuda")
    x, y = (one.cuda() for one in dataset().tensors)
    before = F.cross_entropy(model(x), y).item()
    together(model, lambda model: torch.optim.SGD(model.parameters(), lr=0.05), 8, sync=sync, balance="even")
    assert F.cross_entropy(model(x), y).item() < before


def slow_of(rank: int) -> float:
    """Seconds a sample: what stands for a slower device, and leaves the shared one alone."""
    return 0.003 if rank else 0.001


@pytest.mark.parametrize("balance", ["lb-bsp", "numerical", "analytic"])
@ranks(2, join=False)
def test_shares_follow_the_devices_time(me: RankContext, balance: str, tmp_path: str) -> None:
    data = TensorDataset(torch.randn(4800, FEATURES), torch.randint(0, CLASSES, (4800,)))
    with uneven.Session(balance=balance, run_dir=tmp_path) as session:
        model = mlp("cuda", torch.float32)
        trained, optimizer = session.setup(model, momentum(model))
        for x, y in session.loader(data, global_batch_size=48):
            time.sleep(slow_of(me.rank) * len(x))
            F.cross_entropy(trained(x.cuda()), y.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
        shares = session.shares
    assert 30 <= shares[0] <= 40, f"{balance}: {shares}, and 36 to 12 would be even"
    steps = [one for one in read(Path(tmp_path)).records() if isinstance(one, StepRecord)] if me.rank == 0 else []
    assert all(one.exchange_s >= 0.0 and one.compute_s > 0.0 for one in steps)


@ranks(2, join=False)
def test_means_counts_passes_and_evaluation(me: RankContext) -> None:
    model = mlp("cuda")
    data = dataset()
    with uneven.Session(balance=Moving()) as session:
        session.setup(model, optimizer := momentum(model))
        loader = session.loader(data, global_batch_size=X, microbatch=5)
        for batch in loader:
            x, y = (one.cuda() for one in batch)
            with session.loss_mean((y != 0).sum()):
                for one, of in session.microbatches((x, y)):
                    loss = F.cross_entropy(model(one), of, ignore_index=0, reduction="sum")
                    (loss / (y != 0).sum().clamp(min=1)).backward()
            mean = session.mean(y.double().mean(), weight=len(y))
            optimizer.step()
            optimizer.zero_grad()
        assert 0.0 < float(mean) < CLASSES

        def count(batch: Any) -> dict[str, Any]:
            x, y = (one.cuda() for one in batch)
            return {"loss": F.cross_entropy(model(x), y, reduction="sum"), "samples": len(y)}

        found = session.evaluate(count, data)
    plain = mlp("cuda")
    optimizer = momentum(plain)
    for x, y in global_batches(1):
        F.cross_entropy(plain(x.cuda()), y.cuda(), ignore_index=0).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same(model, plain, 1e-10)
    x, y = (one.cuda() for one in data.tensors)
    assert found["samples"] == len(data)
    assert found["loss"] == pytest.approx(F.cross_entropy(plain(x), y, reduction="sum").item(), rel=1e-9)


@ranks(2, join=False)
def test_preconditioners_on_unequal_shares(me: RankContext) -> None:
    for share in (1.0, 0.5):
        model = mlp("cuda")
        part = uneven.KFAC(
            damping=0.1, kl_clip=0.01, factor_update_steps=2, inv_update_steps=4, grad_worker_fraction=share
        )
        together(model, momentum, 2, balance="static:shares=3/1", callbacks=[part])
        plain = mlp("cuda")
        worker = by_itself(
            plain, momentum(plain), uneven.KFAC(damping=0.1, kl_clip=0.01, factor_update_steps=2, inv_update_steps=4)
        )
        for x, y in global_batches(2):
            worker.step(x.cuda(), y.cuda())
        assert_same(model, plain, 1e-9)


def test_an_elastic_run_on_a_gpu(tmp_path: Path) -> None:
    """One of them dies and another one leaves: no sample is lost or used twice, and the model is one process's."""
    script = [HERE / "elastic_script.py", tmp_path, 2, 0, "kill@2:7", "leave@1:20", "cuda"]
    with run("--nproc", 3, "--elastic", "1:3", "--run-dir", tmp_path / "run", *script) as it:
        said = it.communicate(170)[1]
    assert it.returncode == 0, said
    check(tmp_path, 2, {0})


@ranks(2, join=False)
def test_calls_for_reports_travel_with_a_gpus_gradients(me: RankContext) -> None:
    with uneven.Session(balance="even") as session:
        model = mlp("cuda")
        trained, optimizer = session.setup(model, momentum(model))
        words = inside(session).gradients.words
        assert words is not None
        heard = []
        for iteration, (x, y) in enumerate(session.loader(dataset(), global_batch_size=X)):
            if me.rank == 1 and iteration == 2:
                words.call([])
            F.cross_entropy(trained(x.cuda()), y.cuda()).backward()
            heard.append(words.take())
            optimizer.step()
            optimizer.zero_grad()
    assert [one is not None and one.called for one in heard[:4]] == [False, False, True, False]


@ranks(2, join=False)
def test_what_no_device_carries_is_refused_by_name(me: RankContext) -> None:
    sparse = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), nn.Linear(4, 3)).cuda()
    with uneven.Session() as session, pytest.raises(ConfigError, match="sparse"):
        session.setup(sparse, torch.optim.SGD(sparse.parameters(), lr=0.1))
    model = mlp("cuda")
    with uneven.Session() as session:
        session.setup(model, momentum(model))
        loader = session.loader(dataset(), global_batch_size=X, together=True)
        with pytest.raises(ConfigError, match=r"together=True\) on cuda:0"):
            next(iter(session.microbatches(next(iter(loader)))))


def skip_if_told(results: list[str]) -> None:
    if any(results):
        pytest.skip(f"needs two GPUs: {results}")


@ranks(2, join=False, fresh=True, check=skip_if_told)
def test_nccl_carries_where_it_lets_workers_share_a_gpu(me: RankContext) -> str:
    """NCCL from 2.28 on does when it is asked; without that, this needs two GPUs."""
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=me.rank, world_size=me.size)
    try:
        try:
            dist.all_reduce(one := torch.ones(1, device="cuda"))
            torch.cuda.synchronize()
        except RuntimeError as error:
            return str(error).splitlines()[-1]
        assert one.item() == me.size
        model = mlp("cuda")
        together(model, momentum, 3)
        assert_same(model, alone(mlp("cuda"), momentum, 3))
        return ""
    finally:
        dist.destroy_process_group()
