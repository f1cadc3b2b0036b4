"""Sessions that agree through a parameter server, on real processes with real shards: each worker at its own pace."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from policy_runs import Run, everybodys, flat, idle, same
from session_parts import N, X, net, tensors
from session_parts import everybodys as all_of
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from tiers import rest
from uneven import journal
from uneven.cluster.virtual import datasets
from uneven.errors import NonFiniteError
from uneven.policy.core.records import ExchangeRecord, StepRecord
from uneven.policy.samples.order import epoch_order
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.forked.scripts import run_script
from uneven_bench.inside import inside


def digits() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Training samples that know their index, and held-out images with labels."""
    found = datasets.digits()
    (x, y), (held_out, labels) = found.train.tensors, found.test.tensors
    return TensorDataset(x[:1440].flatten(1), y[:1440], torch.arange(1440)), held_out.flatten(1), labels


def clocks(run: Run) -> dict[int, int]:
    """Finished steps of each worker that was waited for, as of the newest copy that this one got."""
    (link,) = run.agreement.aggregator.copy.client._links.values()  # type: ignore[union-attr]
    return {entry.rank: entry.clock for entry in link.held.entries if entry.here}


@ranks(2)
def test_asp_trains_on_digits_at_unequal_paces(me: RankContext) -> None:
    """Every sample once an epoch, more of them on the fast worker; the model to evaluate is the copy."""
    torch.manual_seed(0)
    data, held_out, labels = digits()
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    session = uneven.Session(sync="asp", balance="even")
    session.setup(model, optimizer)
    exchanges: list[ExchangeRecord] = []
    inside(session).records(exchanges.append)
    taken = []
    loader = session.loader(data, global_batch_size=96)
    steps = torch.distributed.distributed_c10d._get_default_store()
    for epoch in range(4):
        seen: list[int] = []
        for x, y, index in loader:
            if not seen:
                dist.barrier()  # each has one batch, and there are 28 more
            while me.rank == 1 and steps.add("steps", 0) < 20 * (epoch + 1):
                time.sleep(0.001)  # a slow worker: the other one takes most of the epoch
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += index.tolist()
            steps.add("steps", 1 - me.rank)
        with session.evaluation_model():
            right = (model(held_out).argmax(1) == labels).float().mean().item()
            copy = everybodys(flat(model))
        assert (copy[0] == copy[1]).all(), "the same copy, bit by bit"
        assert sorted(all_of(seen)) == list(range(1440)), f"every sample once in epoch {epoch}"
        taken.append(len(seen))
    assert right > 0.85
    assert len(exchanges) == sum(-(-one // 48) for one in taken), "one exchange a step"
    assert all(one.moment == "step" and one.members == 2 and one.gap == 1 for one in exchanges)
    assert sum(one.samples for one in exchanges) == sum(taken)
    assert {one.sent_bytes for one in exchanges} == {4 * 650}
    assert any(one.late > 0 for one in exchanges), "the other one pushed meanwhile"
    assert all(one.distance >= 0 for one in exchanges)
    assert all_of([sum(taken)])[0] > 1440 * 2, "the slow worker takes less than half"
    session.close()


@ranks(2)
def test_after_a_nan_at_an_evaluation_a_worker_ends_and_its_shard_serves_the_others(me: RankContext) -> None:
    session = uneven.Session(sync="shadow:easgd", balance="even", nonfinite="raise", timeout_s=10)
    model = net()
    session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = session.loader(TensorDataset(*tensors()), X)
    next(iter(loader))
    if me.rank == 0:  # the shard is in this process
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)
        with pytest.raises(NonFiniteError), session.evaluation_model():
            pass
    else:
        with session.evaluation_model():
            assert flat(model).isfinite().all()
    session.close()


def union(epochs: int) -> nn.Module:
    """One process, plain SGD, on the full batches of everybody together."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = tensors()
    for epoch in range(epochs):
        order = torch.from_numpy(epoch_order(length=N, seed=0, epoch=epoch))
        for part in order[: N - N % X].split(X):
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@ranks(2)
def test_ssp_bounds_the_lead_is_bsp_at_its_edge_and_easgd_keeps_the_sum(me: RankContext) -> None:
    strict = Run("ssp:staleness=0", drop_last=True)
    for epoch in range(3):
        seen = strict.epoch_in_rounds()
        assert sorted(all_of(seen)) == sorted(epoch_order(length=N, seed=0, epoch=epoch)[: N - N % X].tolist())
    same(strict.shown(), flat(union(3)))
    strict.session.close()

    bounded = Run("ssp:staleness=2")
    for _ in range(6):
        leads = []
        for x, y, _index in bounded.loader:
            mine = bounded.agreement.clock  # type: ignore[union-attr]
            assert clocks(bounded)[me.rank] == mine, "what it starts from holds all its own steps"
            leads.append(mine - min(clocks(bounded).values()))
            bounded.step(x, y)
            time.sleep(0.003 * me.rank)
        assert all(lead <= 2 for lead in leads[:-1]), "nobody leads by more than staleness + 1 finished steps"
        assert leads[-1] <= 3, "the last batch does not wait for who has found no more samples"
    bounded.session.close()

    spring = Run("easgd:alpha=0.2,every=1", make=idle)
    start = spring.shown()
    spring.differ()
    held = everybodys(flat(spring.model)).sum(0) + start
    for count, (x, y, _index) in enumerate(spring.loader):
        if not count:
            dist.barrier()  # both have a batch
        spring.step(x, y)
    centre = spring.shown()
    assert (everybodys(centre) == centre).all()
    same(everybodys(flat(spring.model)).sum(0) + centre, held)
    assert not torch.allclose(centre, start, atol=1e-2), "the replicas have drawn it"
    assert any(all_of([one.distance > 0 for one in spring.exchanges]))
    spring.session.close()


@ranks(2)
def test_a_checkpoint_holds_the_copy_and_every_sample_comes_once_over_both_runs(me: RankContext) -> None:
    """Saved in the middle of an epoch, by one worker, inside ``evaluation_model``."""
    first = Run("asp")
    seen = first.epoch(2)
    for count, (x, y, index) in enumerate(first.loader, 1):  # the epoch that was left is over; this is the next
        first.step(x, y)
        seen = [*(seen if count > 1 else []), *index.tolist()]
        if count == 2:
            with first.session.evaluation_model():
                model = {key: value.clone() for key, value in first.model.state_dict().items()}
                state: Any = first.session.state_dict()
                copy = flat(first.model)
            break
    first.session.close()
    lefts: list[Any] = [None, None]
    dist.all_gather_object(lefts, json.loads(state["loader"])["left"])
    assert lefts[0] == lefts[1]
    torch.testing.assert_close(state["vectors"]["centre"], copy)

    os.environ["UNEVEN_NODE"] = f"node{me.rank}"  # two machines, as far as anybody can tell: encrypted, over TCP
    second = Run("asp")
    second.model.load_state_dict(model)
    second.session.load_state_dict(state)
    rest = second.epoch()
    assert sorted(all_of(seen + rest)) == list(range(N))
    second.session.close()


@ranks(1)
def test_alone_it_is_the_plain_loop(me: RankContext) -> None:
    for sync in ("asp", "ssp"):
        run = Run(sync, drop_last=True)
        for _ in range(2):
            run.epoch()
        same(run.shown(), flat(union(2)))
        run.session.close()


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset
import uneven
from uneven.cluster.virtual.datasets import digits

torch.manual_seed(0)
found = digits()
(x, y), (held_out, labels) = found.train.tensors, found.test.tensors
x, held_out = x.flatten(1), held_out.flatten(1)
session = uneven.Session()
model = torch.nn.Linear(64, 10)
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))
loader = session.loader(TensorDataset(x[:1440], y[:1440]), global_batch_size=96, num_workers=1)
killed = False
for epoch in range(4):
    for number, (a, b) in enumerate(loader):
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
        optimizer.zero_grad()
        if session.rank == 0 and epoch >= 1 and number >= 2 and not killed:  # it may get few batches of an epoch
            killed = True
            where = json.loads(Path(os.environ["UNEVEN_RUN"], "server", "shard-0.address").read_text())
            os.kill(where["pid"], signal.SIGKILL)
with session.evaluation_model():
    right = (model(held_out).argmax(1) == labels).float().mean().item()
    left = json.loads(session.state_dict()["loader"])["left"]
Path(sys.argv[1], f"told-{session.rank}").write_text(json.dumps([right, left]))
"""


@pytest.mark.parametrize("sync", ["ssp:staleness=3", rest("backup:spares=1")])
def test_a_plain_script_trains_with_servers_of_which_one_is_killed(tmp_path: Path, sync: str) -> None:
    """It does not even close the session. Its loader reads ahead in a process of its own."""
    (tmp_path / "train.py").write_text(SCRIPT)
    chosen = ["--nproc", "2", "--servers", "2", "--sync", sync, "--balance", "even", "--run-dir", "run"]
    run = ["-m", "uneven_bench.forked.run", "run"]
    done = run_script([*run, *chosen, "train.py", tmp_path], cwd=tmp_path, timeout_s=100)
    assert done.returncode == 0, done.stderr
    assert "shard 0 of the parameter server was killed by SIGKILL and is started again" in done.stderr
    told = [json.loads((tmp_path / f"told-{rank}").read_text()) for rank in range(2)]
    assert told[0] == told[1], "the same copy, and the whole next epoch is left"
    assert told[0][0] > 0.85
    assert told[0][1] == [[0, 1440]]
    steps, exchanges = 0, 0
    for records in journal.read(tmp_path / "run").ranks.values():
        steps += sum(one.batch for one in records if isinstance(one, StepRecord))
        exchanges += sum(one.samples for one in records if isinstance(one, ExchangeRecord))
    assert steps == exchanges == 4 * 1440


UNCLOSED = """
import sys
import time
from pathlib import Path

import torch
import uneven

session = uneven.Session()
model = torch.nn.Linear(200, 200)  # 160 kB: no message of this size is sent with a copy
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
data = torch.utils.data.TensorDataset(torch.randn(40, 200))
for number, (x,) in enumerate(session.loader(data, 10)):
    if session.rank == 1 and number:
        until_s = time.monotonic() + 20
        while not Path("last").exists() and time.monotonic() < until_s:  # rank 0 is in its last lines
            time.sleep(0.02)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
Path("last" if session.rank == 0 else "other").touch()
"""


def test_a_script_that_never_closes_serves_the_others_when_it_is_over_in_rank_0(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNCLOSED)
    chosen = ["--nproc", "2", "--sync", "asp", "--balance", "even", "--timeout", "15", "--run-dir", "run"]
    done = run_script(["-m", "uneven_bench.forked.run", "run", *chosen, "train.py"], cwd=tmp_path, timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "other").exists()
