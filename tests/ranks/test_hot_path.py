"""A step calls no more Python functions of ours than it did: a count, so a busy machine does not change it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch.nn.functional as F
from session_parts import net, tensors
from torch.utils.data import TensorDataset

import uneven
from uneven.testing.ranks import RankContext, ranks

OURS = str(Path(uneven.__file__).parent)
FIRST, STEPS, X = 8, 12, 4

CALLS = {"bsp": (169, 165), "shadow:ma:every=1000": (122, 122)}
"""Calls of the cheapest of twelve steps, by policy and rank."""


def calls(sync: str) -> list[int]:
    """Count the calls of our functions in each step but the first, in the thread of each backward pass too."""
    found: list[int] = []
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = uneven.Session(sync=sync, balance="even")
    session.setup(model, optimizer)
    # Far from the end of an epoch, where workers at their own pace ask for few samples, and so in each step.
    x, y = (one.repeat(40, *[1] * (one.dim() - 1)) for one in tensors())
    before = sys.getprofile(), threading.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        for a, b in session.loader(TensorDataset(x, y), X):
            found.append(count)
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
            optimizer.zero_grad()
            if len(found) > FIRST + STEPS:
                break
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])  # type: ignore[arg-type]
    session.close()
    return [after - earlier for earlier, after in zip(found[FIRST:], found[FIRST + 1 :], strict=False)]


@pytest.mark.parametrize("sync", [*CALLS])
@ranks(2, fresh=True)
def test_a_step_calls_no_more_functions_than_it_did(me: RankContext, sync: str) -> None:
    found = calls(sync)
    assert len(found) == STEPS
    limit = CALLS[sync][me.rank]
    assert min(found) <= limit, f"a step makes more calls: {found}"
    assert min(found) >= limit, f"lower the number of this file: {found}"
