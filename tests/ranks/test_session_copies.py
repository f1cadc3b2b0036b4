"""Nothing that a session puts on a model or an optimizer is in what is saved or copied of them."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from own_copies import Custom
from session_parts import sgd
from torch import nn

import uneven
from uneven.run.gradients.syncnorm import weigh_sync_batch_norm
from uneven.testing.ranks import RankContext, ranks, run_ranks
from uneven_bench.forked.scripts import run_script


def network(kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    return kind(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


class Silent:
    """Stands for the meter."""

    def ready(self) -> None: ...
    def done(self) -> None: ...


def weighed(model: nn.Module) -> Any:
    """Hooks on a layer that stands for a synchronised one, which works on GPUs only."""
    return weigh_sync_batch_norm(model, lambda: 1.0, Silent(), nn.BatchNorm1d)


def attributes(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Names all the way down, and how many hooks there are."""
    parts: list[Any] = [*model.modules(), *model.parameters(), *model.buffers(), optimizer]
    return [
        sorted((name, len(value or ()) if "hooks" in name else 0) for name, value in vars(one).items()) for one in parts
    ]


def loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


def saved(what: Any) -> bytes:
    file = io.BytesIO()
    torch.save(what, file)
    return file.getvalue()


def users(module: nn.Module, *_: Any) -> None:
    """A hook that the user put on the model before."""


@pytest.mark.parametrize("sync", ["bsp", "shadow:ma", "asp"])
@ranks(2, join=False)
def test_copies_are_those_of_the_plain_model(me: RankContext, sync: str) -> None:
    model = network()
    model.register_forward_hook(users)
    optimizer = sgd(model)
    plain = attributes(model, optimizer)
    inside = weighed(model)
    session = uneven.Session(sync=sync, balance="even")
    session.setup(model, optimizer)
    assert attributes(model, optimizer) != plain
    for twin, stepped in (
        loaded(saved((model, optimizer))),
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((model, optimizer), 5)),  # noqa: S301
    ):
        assert type(twin) is type(model)
        assert attributes(twin, sgd(twin)) == plain
        assert list(twin.state_dict()) == list(model.state_dict())
        assert not vars(stepped).get("_optimizer_step_pre_hooks")
    assert not copy.copy(model)._forward_pre_hooks
    session.close()
    for handle in inside:
        handle.remove()
    assert attributes(model, optimizer) == plain
    assert not {nn.Sequential, nn.BatchNorm1d} & copyreg.dispatch_table.keys()


def by_the_user(module: nn.Linear) -> Any:
    return nn.Linear, (module.in_features, module.out_features)


@ranks(2)
def test_what_copyreg_knew_before_holds(me: RankContext) -> None:
    copyreg.pickle(nn.Linear, by_the_user)
    try:
        with uneven.Session(), uneven.Session() as second:
            model = nn.Linear(5, 3)
            second.setup(model)
            assert copy.deepcopy(model).weight is not model.weight
            assert not torch.equal(copy.deepcopy(model).weight, model.weight)
        assert copyreg.dispatch_table[nn.Linear] is by_the_user
    finally:
        del copyreg.dispatch_table[nn.Linear]


def save(me: RankContext, folder: str) -> None:
    kept = []
    for number, kind in enumerate((nn.Sequential, nn.Sequential, Custom)):
        session = uneven.Session(balance="even")
        model = network(kind)
        weighed(model)
        model, optimizer = session.setup(model, sgd(model))
        if number == 1:
            session.close()
        kept.append(copy.deepcopy(model) if kind is Custom else model)
        Path(f"{folder}/{number}-{me.rank}.pt").write_bytes(saved((kept[-1], optimizer)))


READ = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "uneven"]:
    sys.modules[name] = None
import torch
for name in sys.argv[1:]:
    model, optimizer = torch.load(name, weights_only=False)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(type(model).__name__, sum(len(hooks) for hooks in (model._forward_pre_hooks, model._forward_hooks)))
"""


def test_a_saved_model_is_read_where_this_package_is_not_installed(tmp_path: Path) -> None:
    """From within a session, after it, and of a class whose own way of copying takes hooks along: these do nothing."""
    run_ranks(2, save, str(tmp_path))
    files = [tmp_path / f"{number}-0.pt" for number in range(3)]
    done = run_script(["-c", READ, *files], env={"PYTHONPATH": str(Path(__file__).parent)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Sequential 0", "Sequential 0", "Custom 4"]
