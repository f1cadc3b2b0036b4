"""What cannot be launched from a notebook; launches are in tests/system."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import uneven
from uneven.errors import ConfigError


def using(what: Any) -> Callable[[], Any]:
    def train() -> Any:
        return what

    return train


def test_what_cannot_be_sent_is_named() -> None:
    with uneven.Session() as session, pytest.raises(ConfigError, match="train uses a session of this process"):
        uneven.notebook_launch(using(session))
    model = torch.nn.Linear(1, 1, device="meta")
    for elsewhere in (model, model.weight.detach()):
        with pytest.raises(ConfigError, match=r"train uses a tensor on meta.*send it with .cpu\(\)"):
            uneven.notebook_launch(using(elsewhere))
    with pytest.raises(ConfigError, match=r"train cannot be sent to another process \(cannot pickle '_thread.lock'"):
        uneven.notebook_launch(using(threading.Lock()))


def test_a_worker_launches_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"notebook_launch\(train\): this process is worker 1 of a run: call train"):
        uneven.notebook_launch(using(None))
