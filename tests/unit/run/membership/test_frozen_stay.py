"""Frozen parameters that are the same on all workers are not sent: neither at the start nor to a newcomer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.run.membership.state_transfer import load_state, pack, room, shapes, state_of, unpack
from uneven.run.model.check import frozen_digest, travelling
from uneven.run.step.attach import _common


def adapted(adapter: float = 0.0) -> nn.Module:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(30), nn.Linear(30, 2))
    model[0].requires_grad_(False)
    nn.init.constant_(model[2].weight, adapter)
    return model


def taken(given: nn.Module, by: nn.Module, frozen: str) -> int:
    """Transfer the state from one model to another; return the bytes of its tensors."""
    text, tensors = pack(state_of(given, [], frozen))
    those = room(shapes(tensors))
    for to, one in zip(those, tensors, strict=True):
        to.copy_(one)
    load_state(unpack(text, those), by, [])
    assert all(torch.equal(one, by.state_dict()[name]) for name, one in given.state_dict().items())
    return sum(one.nbytes for one in tensors)


def test_a_newcomer_gets_what_it_lacks() -> None:
    digest, base_bytes = frozen_digest(adapted()), 4 * 31 * 30
    assert digest == frozen_digest(adapted(1.0)) != ""
    everything = taken(adapted(2.0), adapted(), "")
    assert taken(adapted(2.0), adapted(), digest) == everything - base_bytes
    drifted = adapted(2.0)  # the moving average of a script, for instance
    drifted[0].weight.data.mul_(0.5)
    assert taken(drifted, adapted(), digest) == everything


def test_only_what_is_trained_travels_at_the_start() -> None:
    model = adapted()
    assert len(travelling(model, "")) == 9
    assert len(travelling(model, frozen_digest(model))) == 7
    assert frozen_digest(nn.Linear(2, 2)) == ""


def test_what_is_not_the_same_everywhere_is_sent_and_a_newcomer_with_something_else_is_refused() -> None:
    assert _common(["a", "a"], joins_later=False) == "a"
    assert _common(["a", "b"], joins_later=False) == ""
    assert _common(["", ""], joins_later=False) == ""
    assert _common(["a", "a", "a"], joins_later=True) == "a"
    assert _common(["a", "b", "a"], joins_later=True) == ""
    with pytest.raises(ConfigError, match="load the same pretrained weights"):
        _common(["a", "a", "b"], joins_later=True)
