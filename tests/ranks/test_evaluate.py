"""``session.evaluate``: totals over every sample once, by whoever is free, in no iteration's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import N, X, net, own_time, sgd, tensors
from torch import nn
from torch.distributed import barrier
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError, DataError
from uneven.journal import read
from uneven.policy.core.records import StepRecord
from uneven.run.loops.evaluate import EvaluatedTotals, TakenPositions
from uneven.testing.ranks import RankContext, ranks

DATA = TensorDataset(*tensors(), torch.arange(N))

SLOW_S, OWN_S = 1.5, 0.25
"""By the worker's own clock: each batch of an evaluation, and what the loop does afterwards in the same step."""


def counts(model: nn.Module, batch: Any) -> dict[str, Any]:
    x, y, indices = batch
    logits = model(x)
    assert not logits.requires_grad
    return {
        "loss": F.cross_entropy(logits, y, reduction="sum"),
        "right": (logits.argmax(1) == y).sum(),
        "seen": F.one_hot(indices, N).sum(0),
        "samples": len(y),
    }


def started(**settings: Any) -> tuple[uneven.Session, nn.Module, torch.optim.Optimizer]:
    session = uneven.Session(**settings)
    model = nn.Sequential(net(), nn.Dropout(0.5))
    session.setup(model, optimizer := sgd(model))
    return session, model, optimizer


@ranks(3)
def test_totals_are_over_every_sample_once_on_all_workers(me: RankContext, tmp_path: Path) -> None:
    with own_time() as spend:
        session, model, optimizer = started(balance="static:shares=6/2/4", run_dir=tmp_path)
        with pytest.raises(ConfigError, match=r"evaluate\(global_batch_size=None\)"):
            session.evaluate(len, DATA)
        found = session.evaluate(lambda batch: len(batch[0]), DATA, global_batch_size=3)  # before there is a loader
        assert (found, type(found)) == (N, int)
        model[0][0].eval()  # a layer that is frozen stays so
        for number, (x, y, _) in enumerate(session.loader(DATA, X)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 2:
                torch.manual_seed(me.rank)
                state = torch.random.get_rng_state()
                totals = session.evaluate(lambda batch, model=model: (spend(SLOW_S), counts(model, batch))[1], DATA)
                spend(OWN_S)
                assert torch.equal(torch.random.get_rng_state(), state)
                assert [layer.training for layer in model.modules()] == [True, True, False, True, True, True]
                whole = counts_of_all(model.eval())
                model.train()
        assert torch.equal(totals["seen"], torch.ones(N, dtype=torch.int64))
        assert (totals["samples"], totals["right"]) == (N, whole["right"])
        assert totals["loss"] == pytest.approx(whole["loss"], rel=1e-6)
        session.close()
    barrier()
    steps = [one for one in read(Path(tmp_path)).records() if isinstance(one, StepRecord) and one.rank == me.rank]
    assert len(steps) == 5
    assert steps[2].data_s + steps[2].compute_s == pytest.approx(OWN_S)
    barrier()


def counts_of_all(model: nn.Module) -> dict[str, Any]:
    with torch.no_grad():
        return {name: float(value.sum()) if name != "samples" else value
                for name, value in counts(model, DATA.tensors).items()}  # fmt: skip


@ranks(3)
def test_a_data_set_smaller_than_the_workers_and_a_mean_of_replicas(me: RankContext) -> None:
    session, model, optimizer = started(sync="local:every=4", balance="even")
    few = TensorDataset(*(one[:2] for one in DATA.tensors))
    for x, y, _ in session.loader(DATA, X):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            model[0][0].weight.fill_(float(me.rank))
        total = session.evaluate(lambda batch: len(batch[0]) * model[0][0].weight[0, 0], few, global_batch_size=2)
        assert total == 2.0  # two samples, on the mean of 0, 1 and 2
        assert model[0][0].weight[0, 0] == me.rank
        break
    with pytest.raises(DataError, match="a number, a tensor, or a dictionary"):
        session.evaluate(lambda batch: "text", TensorDataset(torch.zeros(99)), global_batch_size=3)
    session.close()


@ranks(2)
def test_what_cannot_be_evaluated_is_refused(me: RankContext) -> None:
    session, *_ = started(sync="asp", balance="even")
    with pytest.raises(ConfigError, match="cannot be opened"):
        session.evaluate(len, DATA, global_batch_size=4)
    session.close()
    session, *_ = started()
    with pytest.raises(DataError, match="give a data set with __len__, at least 1"):
        session.evaluate(len, TensorDataset(torch.zeros(0)), global_batch_size=4)
    with pytest.raises(ConfigError, match=r"evaluate\(shuffle=…\)"):
        session.evaluate(len, DATA, global_batch_size=4, shuffle=True)
    sizes = iter([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(DataError, match=r"of shape \(3,\) after a total of shape \(2,\)"):
        session.evaluate(lambda batch: next(sizes), DATA, global_batch_size=4)
    barrier()  # the line that evaluations share may still be being opened on the other rank
    session.close()


@pytest.mark.parametrize("later", [0.75, float("inf"), torch.tensor([0.75, 1.0])])
def test_a_fraction_after_an_integer_stays_a_fraction(later: Any) -> None:
    totals = EvaluatedTotals()
    totals.add({"loss": torch.zeros_like(torch.as_tensor(later), dtype=torch.int64), "samples": 1})
    totals.add({"loss": later, "samples": 2})
    found = totals.as_given()
    torch.testing.assert_close(torch.as_tensor(found["loss"]), torch.as_tensor(later), check_dtype=False)
    assert (found["samples"], type(found["samples"])) == (3, int)


@pytest.mark.parametrize("value", [16777217.0, 1e39, 0.1])
def test_a_number_is_added_in_float64(value: float) -> None:
    totals = EvaluatedTotals()
    totals.add({"n": value})
    assert totals.as_given() == {"n": value}
    with pytest.raises(DataError, match="return real sums"):
        totals.add({"n": torch.tensor(1j)})


def test_batches_grow_smaller_towards_the_end() -> None:
    taken = 0

    def take(count: int) -> int:
        nonlocal taken
        taken += count
        return taken - count

    fast, slow = (iter(TakenPositions(take, 100, most, part)) for most, part in ((12, 0.75), (4, 0.25)))
    batches = [next(worker) for worker in (fast, slow) * 6]
    assert [len(one) for one in batches] == [12, 4, 12, 4, 12, 4, 12, 4, 12, 4, 12, 3]
    rest = [*fast, *slow]
    assert sorted(index for one in (*batches, *rest) for index in one) == [*range(100)]
