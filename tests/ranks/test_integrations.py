"""Libraries that wrap models, with a session: the weights of one process on unequal shares."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch.nn.functional as F
from session_parts import X, assert_same, net, reference, sgd, tensors
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError
from uneven.testing.ranks import RankContext, ranks


def train(make: Any, prepare: Any) -> None:
    session = uneven.Session(balance="static:shares=6/2/4")
    model, library = net(), make()
    wrapped, optimizer = prepare(session, library, model, sgd(model))
    loader = session.loader(TensorDataset(*tensors()), X)
    for _ in range(2):
        for x, y in loader:
            library.backward(F.cross_entropy(wrapped(x), y))
            optimizer.step()
            optimizer.zero_grad()
    session.close()
    assert_same(model, reference(2, net()), 1e-6)


def needs(name: str) -> pytest.MarkDecorator:
    missing = find_spec(name) is None  # not imported here: both set variables of the environment when they are
    return pytest.mark.skipif(missing, reason=f"needs {name}: pip install '.[…]'")


@needs("lightning_fabric")
@ranks(3, fresh=True)
def test_fabric_trains_as_one_process(me: RankContext) -> None:
    from lightning_fabric import Fabric

    from uneven.integrations.fabric import prepare

    train(lambda: Fabric(accelerator="cpu", devices=1), prepare)


@needs("accelerate")
@ranks(3, fresh=True)
def test_accelerate_trains_as_one_process(me: RankContext) -> None:
    from accelerate import Accelerator

    from uneven.integrations.accelerate import prepare

    train(lambda: Accelerator(cpu=True), prepare)


class Several:
    """As a library's object looks that has workers of its own, or accumulates."""

    world_size = 2
    gradient_accumulation_steps = 4
    distributed_type = SimpleNamespace(value="NO")


class Sharding(Several):
    distributed_type = SimpleNamespace(value="FSDP")


@needs("lightning_fabric")
@needs("accelerate")
@ranks(1, fresh=True)
def test_workers_and_passes_of_their_own_are_refused(me: RankContext) -> None:
    from uneven.integrations import accelerate, fabric

    session = uneven.Session()
    with pytest.raises(ConfigError, match="Fabric has 2 workers of its own"):
        fabric.prepare(session, Several(), net())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="gradient_accumulation_steps = 4"):
        accelerate.prepare(session, Several(), net())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Accelerate with FSDP"):
        accelerate.prepare(session, Sharding(), net())  # type: ignore[arg-type]
    session.close()
