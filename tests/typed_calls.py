"""Calls of a script, with the types that come back: `make check` reads this with mypy, `make types` with pyright."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

import torch
from torch import Tensor, nn

import uneven
from uneven.run.samples.loader import BalancedLoader


class Net(nn.Module):
    pass


def script(data: torch.utils.data.Dataset[Tensor]) -> None:
    session = uneven.Session(sync=uneven.sync.Shadow(uneven.sync.MA()), callbacks=[uneven.KFAC(inv_update_steps=10)])
    net = Net()
    sgd = torch.optim.SGD(net.parameters())
    rate = torch.optim.lr_scheduler.StepLR(sgd, 1)
    assert_type(session.setup(net), Net)
    assert_type(session.setup(net, sgd), tuple[Net, torch.optim.SGD])
    assert_type(session.setup(net, sgd, rate), tuple[Net, torch.optim.SGD, torch.optim.lr_scheduler.StepLR])
    assert_type(session.loader(data, 8, num_workers=1, cost=lambda index: 1.0), BalancedLoader)

    def count(batch: Any) -> Mapping[str, float | Tensor]:
        return {"seen": len(batch)}

    def total(batch: Any) -> Tensor:
        return torch.ones(1)

    assert_type(session.evaluate(count, data, 8), dict[str, float | Tensor])
    assert_type(session.evaluate(total, data, 8, collate_fn=None), float | Tensor)
    assert_type(session.mean(1.0), float)
    session.log(loss=torch.ones(()), rate=0.1)
    session.print("one", sep="-")
    session.save({}, "here.pt")
