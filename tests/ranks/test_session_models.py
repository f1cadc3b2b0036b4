"""Models and optimizers as people have them; what they learn equals one process on the union batch."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from session_parts import Moving, X, assert_same, batches, everybodys, net, reference, sgd, tensors
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from tiers import rest
from uneven.errors import ConfigError, TrainingError
from uneven.policy.balance import Balancer
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView
from uneven.testing.ranks import RankContext, ranks


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


@pytest.mark.parametrize("views", [False, True])
@ranks(2)
def test_gradients_are_parts_of_buckets_only_if_asked_for(me: RankContext, views: bool) -> None:
    with uneven.Session(balance=Moving()) as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model), gradient_as_bucket_view=views)
        for x, y in session.loader(TensorDataset(*tensors()), X):
            F.cross_entropy(model(x), y).backward()
            gradients = [one.grad for one in model.parameters()]
            memory = {one.untyped_storage().data_ptr() for one in gradients if one is not None}
            assert len(memory) == (1 if views else len(gradients))
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, reference(1, net()))


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


@pytest.mark.parametrize("when", ["before", "after", rest("in place")])
@ranks(2)
def test_a_compiled_model(me: RankContext, when: str) -> None:
    """Without the code generator, which takes half a minute; the hooks meet the same graph."""
    torch._dynamo.reset()
    with uneven.Session(balance=Moving()) as session:
        model = net()
        compiled = torch.compile(model, backend="aot_eager", dynamic=True) if when == "before" else model
        session.setup(compiled)
        if when == "after":
            compiled = torch.compile(model, backend="aot_eager", dynamic=True)
        elif when == "in place":
            model.compile(backend="aot_eager")
        optimizer, loss = sgd(model), F.cross_entropy
        if when == "before":  # the first losses are looked at, and that is nothing to the compiler
            loss = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
        for x, y in session.loader(TensorDataset(*tensors()), X):
            loss(compiled(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, reference(1, net()))


@pytest.mark.parametrize("how", ["forward", "part", "compile before"])
@ranks(2)
def test_a_forward_pass_past_the_hooks_is_noticed(me: RankContext, how: str) -> None:
    """Nothing would be exchanged, and each rank would train a model of its own."""
    torch._dynamo.reset()
    model = net()
    compiled = torch.compile(model, backend="eager")
    if how == "compile before":
        for size in (50, 40, 30):  # now for any size; torch does not look for new hooks
            compiled(tensors()[0][:size])
    call = {"forward": model.forward, "part": lambda x: model[2](model[1](model[0](x))), "compile before": compiled}
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


class Starving(Balancer):
    """As little as the limits allow for all workers except one, by turns."""

    def split(self, view: BalanceView) -> Split:
        weights = [1e6 if rank == view.iteration % len(view.members) else 1.0 for rank in view.members]
        return Split(proportional(weights, view.global_batch, view.limits))


@ranks(2)
def test_each_worker_keeps_the_buffers_that_it_calls_its_own(me: RankContext) -> None:
    model = net()
    model.register_buffer("own", torch.full((1 + me.rank,), float(me.rank)))
    model.register_buffer("common", torch.full((2,), float(me.rank)))
    model._ddp_params_and_buffers_to_ignore = ["own"]  # type: ignore[assignment]
    with uneven.Session() as session:
        session.setup(model, optimizer := sgd(model))
        for x, y in session.loader(TensorDataset(*tensors()), X):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert model.own.tolist() == [me.rank] * (1 + me.rank)
    assert model.common.tolist() == [0.0, 0.0]


@ranks(2)
def test_each_worker_keeps_the_statistics_of_batch_norm_that_it_calls_its_own(me: RankContext) -> None:
    for sync in ("bsp", "local:every=1"):
        model = normed()
        model._ddp_params_and_buffers_to_ignore = ["1.running_mean", "1.running_var"]  # type: ignore[assignment]
        with uneven.Session(sync=sync) as session:
            session.setup(model, optimizer := sgd(model))
            for x, y in session.loader(TensorDataset(*tensors()), X):
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            means = everybodys([model[1].running_mean.tolist()])  # type: ignore[index]
            assert means[0] != means[1]


@ranks(2)
def test_a_table_that_each_pass_renormalizes_is_refused(me: RankContext) -> None:
    for table in (nn.Embedding(9, 4, max_norm=0.5), nn.EmbeddingBag(9, 4, max_norm=0.5)):
        with uneven.Session() as session, pytest.raises(ConfigError, match=r"table has max_norm=0\.5.*weight\.renorm"):
            session.setup(nn.ModuleDict({"table": table}))


@pytest.mark.parametrize("sync", ["bsp", "local:every=1"])
@ranks(2)
def test_a_complex_parameter_is_refused(me: RankContext, sync: str) -> None:
    model = net()
    model.weight = nn.Parameter(torch.randn(3, dtype=torch.cfloat))
    with uneven.Session(sync=sync) as session, pytest.raises(ConfigError, match=r"weight is complex.*view_as_real"):
        session.setup(model, sgd(model))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.mark.parametrize("loader_first", [False, True])
@ranks(3)
def test_batch_norm_gets_two_samples_whatever_comes_first(me: RankContext, loader_first: bool) -> None:
    """A share of one sample has no variance. N leaves a last part of two samples, which one worker takes alone."""
    with uneven.Session(balance=Starving(), overhead_budget=0.9) as session:
        model, sizes = normed(), []
        if loader_first:
            loader = session.loader(TensorDataset(*tensors()), X)
        model, optimizer = session.setup(model, sgd(model))
        if not loader_first:
            loader = session.loader(TensorDataset(*tensors()), X)
        for _ in range(3):
            for x, y in loader:
                sizes.append(len(x))
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert min(sizes) == 2


@pytest.mark.parametrize(("size", "most", "words"), [(5, None, "are 5 and 5"), (X, 1, "are 12 and 1")])
@ranks(3)
def test_batch_norm_in_a_batch_too_small_for_all(me: RankContext, size: int, most: int | None, words: str) -> None:
    data, most = TensorDataset(*tensors()), most if me.rank == 0 else None
    message = f"batch norm needs 2 .* at least 6 and a max_batch of at least 2, but these {words}"
    with uneven.Session() as session:
        session.setup(normed())
        with pytest.raises(ConfigError, match=message):
            session.loader(data, size, max_batch=most)
    with uneven.Session() as session:
        session.loader(data, size, max_batch=most)
        with pytest.raises(ConfigError, match=message):
            session.setup(normed())
    with uneven.Session() as session:  # as the message says
        session.loader(data, size, max_batch=most, min_batch=1)
        session.setup(normed())


@ranks(2)
def test_workers_with_other_limits_divide_the_last_part_alike(me: RankContext) -> None:
    with uneven.Session(balance="even") as session:
        session.setup(net())
        loader = session.loader(TensorDataset(*tensors()), 15, min_batch=(4, 1)[me.rank])  # leaves a last part of 5
        shares = [session.shares for _ in loader]
        first, second = everybodys([shares])
    assert first == second
    assert sum(shares[-1]) == 5
