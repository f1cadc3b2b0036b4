"""What people do in their loops: readers, streams, odd models, evaluation, closures. Values are compared."""

from __future__ import annotations

import copy
import dataclasses
import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import uneven
from uneven import journal
from uneven.balance import Balancer
from uneven.core.actions import Split
from uneven.core.apportion import proportional
from uneven.core.records import StepRecord
from uneven.core.views import BalanceView
from uneven.data.order import epoch_order
from uneven.errors import TrainingError
from uneven.testing.ranks import RankContext, ranks

N, X = 50, 12  # four full iterations and a last part of 2


class Moving(Balancer):
    """Another very unequal split after every report."""

    def split(self, view: BalanceView) -> Split:
        weights = [1.0 + (7 * view.iteration + 3 * rank) % 11 for rank in view.members]
        return Split(proportional(weights, view.global_batch, view.limits))


def tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(N, 5, generator=generator).to(dtype)
    return x, torch.randint(0, 3, (N,), generator=generator)


class Numbered(TensorDataset):
    """Samples that know their index."""

    def __init__(self) -> None:
        super().__init__(*tensors(), torch.arange(N))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Numbered())


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches(epochs: int, dtype: torch.dtype = torch.float32) -> Any:
    """The union batches of every iteration, as one process sees them."""
    x, y = tensors(dtype)
    for epoch in range(epochs):
        for part in torch.from_numpy(epoch_order(length=N, seed=0, epoch=epoch)).split(X):
            yield x[part], y[part]


def reference(epochs: int, model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    optimizer = sgd(model)
    for x, y in batches(epochs, dtype):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_same(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-5) -> None:
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def everybodys(values: list[Any]) -> list[Any]:
    table: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(table, values)
    return [value for row in table for value in row]


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 3}]
)
@ranks(2)
def test_readers_with_a_moving_split(me: RankContext, options: dict[str, Any]) -> None:
    with uneven.Session(balance=Moving()) as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        mine = options if me.rank == 0 else {}  # rank 1 reads by itself: the look-ahead is agreed
        loader = session.loader(Numbered(), X, **mine)
        splits = set()
        for _ in range(3):
            used = []
            for x, y, index in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                splits.add(session.shares)
                used += index.tolist() if session._loop._part.batch(me.rank) else []
            assert sorted(everybodys(used)) == list(range(N))
        assert len(splits) > 3, "the split did not move"
    assert_same(model, reference(3, net()))


@ranks(2)
def test_a_stream_with_a_moving_split(me: RankContext) -> None:
    splits = set()
    with uneven.Session(balance=Moving()) as session:
        model = net()
        session.setup(model)
        loader = session.loader(Stream(), X, num_workers=1)
        for _ in range(2):
            used = []
            for x, y, index in loader:
                F.cross_entropy(model(x), y).backward()
                model.zero_grad()
                splits.add(session.shares)
                used += index.tolist() if session._loop._part.batch(me.rank) else []
            assert sorted(everybodys(used)) == list(range(N))
    assert len(splits) > 3


def collate_sum(items: list[Any]) -> dict[str, Any]:
    return {"x": torch.stack([item[0] for item in items]), "count": len(items)}


@ranks(2)
def test_a_collate_function(me: RankContext) -> None:
    with uneven.Session(balance="static:shares=1/2") as session:
        session.setup(net())
        counts = [batch["count"] for batch in session.loader(Numbered(), X, collate_fn=collate_sum)]
    assert counts == ([4, 4, 4, 4, 1] if me.rank == 0 else [8, 8, 8, 8, 1])


@ranks(3)
def test_batch_norm_with_a_last_part_too_small_for_everybody(me: RankContext) -> None:
    """Two samples are left: one rank takes them, the others pass padding through that counts for nothing."""
    with uneven.Session(balance="static:shares=1/1/2") as session:
        torch.manual_seed(4)
        model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(Numbered(), X, min_batch=2)
        counted = []
        for x, y, _ in loader:
            assert len(x) >= 2
            if len(counted) == 4:
                before = copy.deepcopy(model[0])
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            counted.append(session._loop._part.batch(me.rank))
        assert counted[-1] == (2 if me.rank == 2 else 0)
        before(x)  # on the rank that counts, its own statistics are everybody's
        table = [torch.empty_like(before.running_mean) for _ in range(3)]
        dist.all_gather(table, before.running_mean)
        torch.testing.assert_close(model[0].running_mean, table[2])


@pytest.mark.parametrize(("name", "tolerance"), [("float64", 1e-12), ("bfloat16", 5e-2)])
@ranks(2)
def test_a_model_of_another_type(me: RankContext, name: str, tolerance: float) -> None:
    dtype = getattr(torch, name)
    with uneven.Session(balance=Moving()) as session:
        model = net().to(dtype)
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(TensorDataset(*tensors(dtype)), X)
        for _ in range(2):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert_same(model, reference(2, net().to(dtype), dtype), tolerance)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


class Structured(nn.Module):
    """Its output is a dictionary or a dataclass."""

    def __init__(self, as_dict: bool) -> None:
        super().__init__()
        self.net = net()
        self.as_dict = as_dict

    def forward(self, *, x: torch.Tensor) -> Any:
        hidden = self.net[1](self.net[0](x))
        logits = self.net[2](hidden)
        return {"logits": logits, "hidden": hidden} if self.as_dict else Output(logits, hidden)


@pytest.mark.parametrize("as_dict", [True, False])
@pytest.mark.parametrize("unused", [True, False])
@ranks(2)
def test_structured_outputs_and_keyword_inputs(me: RankContext, as_dict: bool, unused: bool) -> None:
    with uneven.Session(balance=Moving()) as session:
        model = Structured(as_dict)
        model, optimizer = session.setup(model, sgd(model), find_unused_parameters=unused)
        for x, y in session.loader(TensorDataset(*tensors()), X):
            output = model(x=x)
            F.cross_entropy(output["logits"] if as_dict else output.logits, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model.net, reference(1, net()))


@ranks(2)
def test_evaluation_on_one_rank_in_mid_epoch_disturbs_nothing(me: RankContext) -> None:
    held_out, _ = tensors()
    with uneven.Session(balance=Moving()) as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        for count, (x, y) in enumerate(session.loader(TensorDataset(*tensors()), X)):
            if me.rank == 0 and count in (0, 1, 3):
                model.eval()
                with torch.no_grad():
                    for _ in range(count + 1):
                        model(held_out)
                if count == 3:
                    model(held_out)  # forgotten no_grad
                model.train()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, reference(1, net()))


@ranks(2)
def test_several_forward_passes_before_one_backward(me: RankContext) -> None:
    theirs = net()
    steps = sgd(theirs)
    with uneven.Session(balance=Moving()) as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(TensorDataset(*tensors()), X)
        for (x, y), (whole_x, whole_y) in zip(loader, batches(1), strict=True):
            (F.cross_entropy(model(x), y) + F.cross_entropy(model(-x), y)).backward()
            (F.cross_entropy(theirs(whole_x), whole_y) + F.cross_entropy(theirs(-whole_x), whole_y)).backward()
            for one in (optimizer, steps):
                one.step()
                one.zero_grad(set_to_none=False)
    assert_same(model, theirs)


@ranks(2)
def test_gradients_that_are_zeroed_in_place(me: RankContext) -> None:
    with uneven.Session(balance=Moving()) as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(TensorDataset(*tensors()), X)
        for _ in range(2):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
    assert_same(model, reference(2, net()))


@ranks(2)
def test_an_optimizer_with_a_closure_whose_loss_is_everybodys(me: RankContext) -> None:
    """LBFGS searches along the loss, so the closure has to return the same one on every rank."""
    theirs = net()
    search = torch.optim.LBFGS(theirs.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    for x, y in batches(1):

        def whole(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            search.zero_grad()
            loss = F.cross_entropy(theirs(x), y)
            loss.backward()
            return loss

        search.step(whole)
    with uneven.Session(balance=Moving()) as session:
        model = net()
        model, optimizer = session.setup(
            model, torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
        )
        for x, y in session.loader(TensorDataset(*tensors()), X):
            weight = session.shares[me.rank] / sum(session.shares)

            def part(x: torch.Tensor = x, y: torch.Tensor = y, weight: float = weight) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                everybodys_loss = loss.detach() * weight
                dist.all_reduce(everybodys_loss)
                return everybodys_loss

            optimizer.step(part)
    assert_same(model, theirs, 1e-3)


@ranks(2)
def test_copies_of_the_model_are_nobodys_replicas(me: RankContext) -> None:
    """An averaged model and a saved one take no hooks along: one rank alone may use and train them."""
    with uneven.Session(balance=Moving()) as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        averaged = torch.optim.swa_utils.AveragedModel(model)
        for x, y in session.loader(TensorDataset(*tensors()), X):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
            if me.rank == 0:
                F.cross_entropy(averaged(x), y).backward()
        if me.rank == 0:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            again = torch.load(file, weights_only=False)
            again(tensors()[0]).sum().backward()
            assert_same(again, model, 0.0)
    assert_same(model, reference(1, net()))


@pytest.mark.parametrize("when", ["before", "after", "in place"])
@ranks(2)
def test_a_compiled_model(me: RankContext, when: str) -> None:
    """Without the code generator, which takes half a minute; the hooks meet the same graph."""
    torch._dynamo.reset()
    with uneven.Session(balance=Moving()) as session:
        model = net()
        compiled = torch.compile(model, backend="aot_eager") if when == "before" else model
        session.setup(compiled)
        if when == "after":
            compiled = torch.compile(model, backend="aot_eager")
        elif when == "in place":
            model.compile(backend="aot_eager")
        optimizer = sgd(model)
        for x, y in session.loader(TensorDataset(*tensors()), X):
            F.cross_entropy(compiled(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, reference(1, net()))


@pytest.mark.parametrize("how", ["forward", "part", "compiled before"])
@ranks(2)
def test_a_forward_pass_past_the_hooks_is_noticed(me: RankContext, how: str) -> None:
    """Nothing would be exchanged, and each rank would train a model of its own."""
    torch._dynamo.reset()
    model = net()
    compiled = torch.compile(model, backend="eager")
    if how == "compiled before":
        for size in (50, 40, 30):  # now for any size; torch does not look for new hooks
            compiled(tensors()[0][:size])
    call = {"forward": model.forward, "part": lambda x: model[2](model[1](model[0](x))), "compiled before": compiled}
    with uneven.Session() as session:
        _, optimizer = session.setup(model, sgd(model))
        x, y = next(iter(session.loader(TensorDataset(*tensors()), X)))
        optimizer.step()  # without gradients it changes nothing
        F.cross_entropy(call[how](x), y).backward()
        with pytest.raises(TrainingError, match="no gradients were exchanged"):
            optimizer.step()


@ranks(2)
def test_steps_on_the_same_gradients(me: RankContext) -> None:
    with uneven.Session() as session:
        model = net()
        _, optimizer = session.setup(model, sgd(model))
        for x, y in session.loader(TensorDataset(*tensors()), X):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.step()
        with pytest.raises(TrainingError, match="no gradients were exchanged"):
            optimizer.step()


@ranks(2)
def test_a_model_is_free_again_after_the_session(me: RankContext) -> None:
    model = net()
    for _ in range(2):
        with uneven.Session(balance=Moving()) as session:
            session.setup(model)
            for x, y in session.loader(TensorDataset(*tensors()), X):
                F.cross_entropy(model(x), y).backward()
                model.zero_grad()
    if me.rank == 0:
        F.cross_entropy(model(tensors()[0]), tensors()[1]).backward()
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert list(model.state_dict()) == list(net().state_dict())


@ranks(2)
def test_two_sessions_at_a_time(me: RankContext) -> None:
    """Two models, each with its own loader and split; the group lives until the last one is closed."""
    first, second = uneven.Session(balance=Moving()), uneven.Session(balance="static:shares=3/1")
    one, two = net(), net()
    one, stepper = first.setup(one, sgd(one))
    two, other = second.setup(two, sgd(two))
    pairs = zip(first.loader(TensorDataset(*tensors()), X), second.loader(TensorDataset(*tensors()), X), strict=True)
    for (x, y), (u, v) in pairs:
        F.cross_entropy(one(x), y).backward()
        F.cross_entropy(two(u), v).backward()
        for optimizer in (stepper, other):
            optimizer.step()
            optimizer.zero_grad()
    first.close()
    F.cross_entropy(two(u), v).backward()
    second.close()
    assert_same(one, reference(1, net()))
    assert_same(two, reference(1, net()))


def work(seconds: float) -> None:
    """Compute for so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@ranks(2)
def test_who_computes_longer_waits_less(me: RankContext, tmp_path: str) -> None:
    with uneven.Session(balance="even", journal=tmp_path) as session:
        model = net()
        session.setup(model)
        began = time.perf_counter()
        for x, y in session.loader(TensorDataset(*tensors()), X):
            work(0.06 if me.rank == 1 else 0.001)
            F.cross_entropy(model(x), y).backward()
            model.zero_grad()
        took = time.perf_counter() - began
    dist.barrier()
    steps = [record for record in journal.read(Path(tmp_path)).ranks[me.rank] if isinstance(record, StepRecord)]
    assert [step.iteration for step in steps] == [0, 1, 2, 3, 4]
    # Data, compute and exchange tile the loop: all but the start of the loader lies in one of them.
    measured = sum(step.data_s + step.compute_s + step.exchange_s for step in steps)
    assert 0.8 * took <= measured <= took
    iterations = journal.metrics.iterations(journal.read(Path(tmp_path)).records())
    assert len(iterations) == 5
    waits = [sum(one.timings[rank].wait_s for one in iterations[1:]) for rank in range(2)]
    computes = [sum(one.timings[rank].compute_s for one in iterations[1:]) for rank in range(2)]
    assert waits[0] > waits[1]
    assert computes[1] > computes[0]
