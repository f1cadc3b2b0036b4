"""Damaged states of sessions: refused by the field before anything is changed, or gone on with as they are."""

from __future__ import annotations

import itertools
import json
import math
import random
import zlib
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from slow_crew import Crew, X
from torch.utils.data import TensorDataset

import uneven
from damaged import damaged
from uneven.errors import CheckpointError

CASES = 30
SPEEDS = [60.0, 40.0, 20.0]
STRANGE = (None, True, "", "nan", [], {}, [None], {"a": 1}, 0, -1, 0.5, 1e308, math.nan, math.inf, 10**30)


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize(
    "balance",
    [
        "lb-bsp", "lb-bsp:predictor=auto", "lb-bsp:predictor=narx", "lb-bsp:predictor=arima", "lb-bsp:predictor=steady",
        "numerical", "analytic", "static", "proportional:predictor=ema", "dbs", "lbb", "omnilearn",
    ],
)  # fmt: skip
def test_what_the_slow_loop_takes_up_it_can_go_on_with(balance: str) -> None:
    whole = Crew(SPEEDS, balance)
    whole.run(150)
    states = damaged(through_json(whole.loops[0].state_dict()), zlib.crc32(balance.encode()))
    refused = 0
    with np.errstate(all="ignore"):
        for case, state in enumerate(itertools.islice(states, CASES)):
            crew = Crew(SPEEDS, balance)
            crew.iteration = whole.iteration
            before = [through_json(loop.state_dict()) for loop in crew.loops]
            try:
                for loop in crew.loops:
                    loop.load_state_dict(through_json(state))
            except CheckpointError as error:
                refused += "the state of the balancing" in str(error)
                now = [through_json(loop.state_dict()) for loop in crew.loops]
                assert now == before, f"{state} was taken up in part"
                continue
            except Exception as error:
                raise AssertionError(f"case {case}: {state}") from error
            try:
                crew.run(12)
            except Exception as error:
                raise AssertionError(f"case {case}: {state}, taken up, breaks the training") from error
            assert all(sum(shares) == X and min(shares) >= 1 for shares in crew.used), state
    assert refused > CASES / 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"doubts": [0.1, -1.0, 0.1]}, r"doubts\[1\] is -1.0, expected a number, 0.0 or more"),
        ({"doubts": [0.1]}, r"doubts is \[0.1\], expected a list of 3, as many as shares"),
        ({"shares": "60"}, "shares is '60', expected a list"),
        ({"balancer": []}, r"balancer is \[\], expected fields with names"),
        ({"past": [[[1.0]]]}, r"past is .*, expected tables of 3 reports"),
        ({"forecaster": {"sum": "x", "weight": 0.5}}, "forecaster.sum is 'x', expected a number"),
        ({"referee": {"last": {"x": []}}}, "referee.last is 'x', expected a rank"),
    ],
)
def test_the_field_is_named(change: dict[str, Any], said: str) -> None:
    crew = Crew(SPEEDS, "proportional:predictor=ema")
    crew.run(20)
    state = through_json(crew.loops[0].state_dict())
    with pytest.raises(CheckpointError, match=f"the state of the balancing is damaged: {said}"):
        Crew(SPEEDS, "proportional:predictor=ema").loops[0].load_state_dict(state | change)
    del state["kind"]
    with pytest.raises(CheckpointError, match="kind is missing"):
        Crew(SPEEDS, "proportional:predictor=ema").loops[0].load_state_dict(state)


class Worker:
    """A session under some policy, alone."""

    def __init__(self, sync: str) -> None:
        torch.manual_seed(1)
        self.session = uneven.Session(sync=sync, balance="even")
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session.setup(self.model, self.optimizer)
        self.loader = self.session.loader(TensorDataset(torch.randn(12, 3), torch.arange(12) % 2), 4)

    def epoch(self, leave_after: int = 99) -> None:
        for count, (x, y) in enumerate(self.loader):
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if count == leave_after:
                return


def spoilt(state: dict[str, Any], dice: random.Random) -> tuple[dict[str, Any], str]:
    """One place of the state is changed, inside of its texts or outside."""
    key = dice.choice(sorted(state))
    if key in ("loader", "control", "agreement") and (inner := json.loads(state[key])) and dice.random() < 0.9:
        text = json.dumps(next(damaged(inner, dice.randrange(2**32))))
        return state | {key: text}, f"{key}: {text}"
    if key == "vectors" and state[key] and dice.random() < 0.9:
        name = dice.choice(sorted(state[key]))
        strange = dice.choice([torch.zeros(3), torch.zeros(8, dtype=torch.int64), torch.zeros(2, 4), [1.0], None])
        return state | {key: state[key] | {name: strange}}, f"{key}: {name} = {strange}"
    strange = dice.choice(STRANGE)
    return state | {key: strange}, f"{key} = {strange!r}"


@pytest.mark.parametrize("sync", ["bsp", "bmuf:every=2", "shadow:ma:every=1", "asp"])
def test_what_a_session_takes_up_it_can_go_on_with(sync: str) -> None:
    dice, refused, cases = random.Random(sync), 0, 10 if sync == "asp" else 25
    whole = Worker(sync)
    whole.epoch(leave_after=1)
    state = whole.session.state_dict()
    whole.session.close()
    for _ in range(cases):
        damaged, what = spoilt(state, dice)
        worker = Worker(sync)
        before = str(worker.session.state_dict())
        try:
            worker.session.load_state_dict(damaged)
        except CheckpointError:
            refused += 1
            assert str(worker.session.state_dict()) == before, f"{what} was taken up in part"
        except Exception as error:
            raise AssertionError(what) from error
        try:
            worker.epoch()
        except Exception as error:
            raise AssertionError(f"{what} breaks the training") from error
        worker.session.close()
    assert refused > cases / 3
