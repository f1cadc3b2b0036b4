"""In which moments parts are asked, in which order, and what is refused; in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven import Callback, CallbackContext, Step
from uneven.errors import CheckpointError, ConfigError, TrainingError

N, X = 20, 8


class Telling(Callback):
    """Says in which moments it was asked."""

    def __init__(self, name: str, said: list[str]) -> None:
        self._name, self._said = name, said
        self.count = torch.zeros(2)

    @property
    def name(self) -> str:
        return self._name

    def attach(self, run: CallbackContext) -> None:
        self._said.append(f"{self.name} attach {len(run.optimizers)}")
        self.line = run.lines.open(self.name)

    def before_step(self, step: Step) -> None:
        at = f"{step.clock} {step.iteration} {step.epoch}"
        self._said.append(f"{self.name} before {at} {step.samples} {step.weight:g}")

    def gradients_ready(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
        self.count[0] += 1
        self.line.sum(self.count).wait()
        self._said.append(f"{self.name} ready {step.iteration}")

    def after_step(self, step: Step) -> None:
        self._said.append(f"{self.name} after {step.iteration}")

    @contextmanager
    def evaluation_model(self) -> Iterator[None]:
        self._said.append(f"{self.name} in")
        yield
        self._said.append(f"{self.name} out")

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "words": ["a", 1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count.copy_(state["count"])
        assert state["words"] == ["a", 1]

    def close(self) -> None:
        self._said.append(f"{self.name} close")


def started(*parts: Callback, **settings: Any) -> tuple[uneven.Session, nn.Module, torch.optim.Optimizer, Any]:
    session = uneven.Session(callbacks=parts, **settings)
    model = nn.Linear(3, 2)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = TensorDataset(torch.randn(N, 3), torch.randint(0, 2, (N,)))
    return session, model, optimizer, session.loader(data, X)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_parts_are_asked_in_order_in_every_moment() -> None:
    said: list[str] = []
    session, model, optimizer, loader = started(Telling("one", said), Telling("two", said))
    assert said == ["one attach 1", "two attach 1"]
    said.clear()
    for x, y in loader:
        step(model, optimizer, x, y)
        if len(said) > 6:
            break
    moments = ["before 0 0 0 8 1", "ready 0", "after 0", "before 1 1 0 8 1", "ready 1"]
    assert said[:10] == [f"{who} {moment}" for moment in moments for who in ("one", "two")]
    said.clear()
    with session.evaluation_model():
        assert said == ["one in", "two in"]
    assert said == ["one in", "two in", "two out", "one out"]
    session.close()
    assert said[4:] == ["one close", "two close"]


def test_the_state_of_a_part_goes_with_the_session() -> None:
    first, model, optimizer, loader = started(Telling("one", []), Telling("two", []))
    for x, y in loader:
        step(model, optimizer, x, y)
    state = first.state_dict()
    assert state["tensors"]["two.count"].tolist() == [3.0, 0.0]
    later = Telling("two", [])
    second, *_ = started(later, Telling("new", []))
    second.load_state_dict(state)
    assert later.count.tolist() == [3.0, 0.0]
    state["tensors"] = {"two.count": "nothing"}
    with pytest.raises(CheckpointError, match=r"tensors\.two\.count"):
        second.load_state_dict(state)
    first.close()
    second.close()


def test_a_part_that_raises_is_named() -> None:
    class Failing(Callback):
        def gradients_ready(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
            raise KeyError("what is missing")

    session, model, optimizer, loader = started(Failing())
    x, y = next(iter(loader))
    with pytest.raises(KeyError) as error:
        step(model, optimizer, x, y)
    assert error.value.__notes__ == ["raised by callback 'Failing', in gradients_ready"]
    session.close()


def test_what_is_no_part_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is not an uneven\.Callback"):
        uneven.Session(callbacks=[print])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="two have the name 'Callback'"):
        uneven.Session(callbacks=[Callback(), Callback()])
    with pytest.raises(ConfigError, match="callbacks with threads = 2"):
        uneven.Session(callbacks=[Callback()], threads=2, sync="shadow:ma", balance="even")


def test_gradients_that_a_closure_makes_are_refused() -> None:
    session, model, optimizer, loader = started(Telling("one", []))
    x, y = next(iter(loader))

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    with pytest.raises(TrainingError, match=r"callback 'one' changes gradients before .*, but a closure"):
        optimizer.step(closure)
    session.close()


def test_a_batch_fetched_ahead_does_not_change_which_step_it_is() -> None:
    said: list[str] = []
    session, model, optimizer, loader = started(Telling("one", said))
    batches = iter(loader)
    coming = next(batches)
    for _ in range(3):
        x, y = coming
        loss = F.cross_entropy(model(x), y)
        coming = next(batches, (x, y))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [one for one in said if "ready" in one] == ["one ready 0", "one ready 1", "one ready 2"]
    session.close()


class Odd(Callback):
    """Does something wrong in a moment."""

    def __init__(self, state: dict[Any, Any] | None = None) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        if self._state is None:
            raise KeyError("no state")
        return self._state

    def evaluation_model(self) -> Any:
        return None

    def close(self) -> None:
        raise RuntimeError("cannot close")


def test_a_part_that_fails_beside_the_steps_is_named_and_the_others_are_closed() -> None:
    said: list[str] = []
    session, *_ = started(Odd(), Telling("one", said))
    with pytest.raises(TypeError) as error, session.evaluation_model():
        pass
    assert error.value.__notes__ == ["raised by callback 'Odd', in evaluation_model"]
    with pytest.raises(KeyError) as missed:
        session.state_dict()
    assert missed.value.__notes__ == ["raised by callback 'Odd', in state_dict"]
    with pytest.raises(RuntimeError, match="cannot close"):
        session.close()
    assert said[-1] == "one close"
    session.close()  # it was closed all the same


def test_a_part_without_optimizers_to_wait_for_is_refused() -> None:
    session = uneven.Session(callbacks=[Telling("one", [])])
    with pytest.raises(
        ConfigError, match=r"callback 'one' has gradients_ready.* call session\.setup\(model, optimizer\)"
    ):
        session.setup(nn.Linear(3, 2))
    session.close()


def test_names_and_keys_that_would_come_back_as_others_are_refused() -> None:
    for name in ("one.two", ""):
        with pytest.raises(ConfigError, match="is not a name"):
            uneven.Session(callbacks=[Telling(name, [])])
    for state in ({0: torch.ones(1)}, {"ranks": [{0: 1}]}):
        session, *_ = started(Odd(state))
        with pytest.raises(CheckpointError, match=r"callback 'Odd' has the key 0: keys must be texts"):
            session.state_dict()
        with pytest.raises(RuntimeError, match="cannot close"):
            session.close()


def test_before_setup_the_state_of_a_part_is_the_one_that_was_loaded() -> None:
    first, *_ = started(one := Telling("one", []))
    one.count += 3
    state = first.state_dict()
    first.close()
    second = uneven.Session(callbacks=[Telling("one", [])])
    assert second.state_dict()["tensors"] == {}
    second.local_batch_size(X)
    second.load_state_dict({**state, "loader": "{}"})
    assert second.state_dict()["tensors"]["one.count"].tolist() == [3.0, 3.0]
    assert second.state_dict()["parts"] == state["parts"]
    second.close()


def test_a_moment_that_is_given_to_one_part_alone_is_asked_too() -> None:
    part, seen = Callback(), []
    part.after_step = lambda step: seen.append(step.iteration)  # type: ignore[method-assign]
    session, model, optimizer, loader = started(part)
    for x, y in loader:
        step(model, optimizer, x, y)
    assert seen == [0, 1, 2]
    session.close()


def test_a_part_without_its_list_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"callbacks='one': give a list"):
        uneven.Session(callbacks=Telling("one", []))  # type: ignore[arg-type]
