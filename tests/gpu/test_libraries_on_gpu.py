"""Accelerate, Fabric, Lightning and Hugging Face's Trainer put the model on the GPU that two workers share."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from gpu_training import assert_same
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))

from session_parts import X, net, reference, sgd, tensors
from test_trainers import lightning_trainer, module, needs, one_process, tiny, trainer

import uneven
from uneven.testing.ranks import RankContext, ranks

pytestmark = pytest.mark.timeout(180)

UNEQUAL = "static:shares=3/1"


def train(session: uneven.Session, library: Any, model: Any, wrapped: Any, optimizer: Any) -> None:
    assert next(model.parameters()).is_cuda
    for _ in range(2):
        for x, y in session.loader(TensorDataset(*tensors()), X):
            library.backward(F.cross_entropy(wrapped(x.to(library.device)), y.to(library.device)))
            optimizer.step()
            optimizer.zero_grad()
    session.close()
    assert_same(model, reference(2, net()), 1e-5)


@needs("accelerate")
@ranks(2, fresh=True)
def test_accelerate(me: RankContext) -> None:
    from accelerate import Accelerator

    from uneven.integrations.accelerate import prepare

    session, library, model = uneven.Session(balance=UNEQUAL), Accelerator(), net()
    train(session, library, model, *prepare(session, library, model, sgd(model)))


@needs("lightning")
@ranks(2, fresh=True)
def test_fabric(me: RankContext) -> None:
    from lightning.fabric import Fabric

    from uneven.integrations.fabric import prepare

    session, library, model = uneven.Session(balance=UNEQUAL), Fabric(accelerator="gpu", devices=1), net()
    train(session, library, model, *prepare(session, library, model, sgd(model)))


@needs("lightning")
@ranks(2, fresh=True)
def test_lightning(me: RankContext, tmp_path: str) -> None:
    warnings.simplefilter("ignore")  # it advises on everything
    session, ours = uneven.Session(balance=UNEQUAL), module()
    trained = lightning_trainer(session, tmp_path, accelerator="gpu", enable_checkpointing=False)
    trained.fit(ours, session.loader(TensorDataset(*tensors()), X))
    assert trained.strategy.root_device.type == "cuda"
    session.close()
    assert_same(ours.net, reference(2, net()), 1e-5)


@needs("transformers", "accelerate")
@ranks(2, fresh=True)
def test_hugging_face(me: RankContext, tmp_path: str) -> None:
    ours = trainer(me, tmp_path, tiny(), balance=UNEQUAL, use_cpu=False, save_strategy="no")
    assert next(ours.model.parameters()).is_cuda
    ours.train()
    ours.session.close()
    assert_same(ours.model, one_process(1), 1e-5)
