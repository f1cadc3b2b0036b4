"""Models that visit other sites on real processes, and a policy that hears of it."""

from __future__ import annotations

import os

import pytest
import torch
from policy_runs import everybodys, flat
from session_parts import Numbered, X, net, sgd
from torch import nn
from torch.nn.functional import cross_entropy

import uneven
from uneven.errors import ConfigError
from uneven.policy.sync import Scout
from uneven.testing.ranks import RankContext, ranks


@ranks(3)
def test_models_visit_and_all_come_to_the_same_setting(me: RankContext) -> None:
    """Two sites; the first has two workers. What a visitor is worth is told by whose it is."""
    os.environ["UNEVEN_SITE"] = "east" if me.rank < 2 else "west"
    seen: list[torch.Tensor] = []

    def score(model: nn.Module) -> float:
        seen.append(flat(model))
        return 0.9 if len(seen) % 2 else 0.3  # at home, then the visitor

    policy = Scout("geo:bsp:threshold=0.3", period=3, judge="copies", start=3, tolerance=0.5)
    with pytest.raises(ConfigError, match=r"uneven.SiteEvaluation\(score\)"):
        uneven.Session(sync=Scout("geo"))
    with pytest.raises(ConfigError, match="does not use visits"):
        uneven.Session(sync="bsp", callbacks=[uneven.SiteEvaluation(score)])
    session = uneven.Session(sync=policy, callbacks=[uneven.SiteEvaluation(score)])
    model = net()
    optimizer = sgd(model)
    session.setup(model, optimizer)
    loader = session.loader(Numbered(), X)
    before = None
    for _ in range(2):
        for x, y, _index in loader:
            if len(seen) == 2 and before is None:
                before = flat(model)
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(seen) == (6 if me.rank in (0, 2) else 0), "three periods of three in ten steps"
    if seen:
        assert before is not None
        assert torch.equal(seen[0], before), "the replica is as it was"
        assert not torch.equal(seen[0], seen[1])
    visited = everybodys(torch.stack(seen[:2]) if seen else torch.zeros(2, len(flat(model))))
    assert torch.equal(visited[0, 1], visited[2, 0])
    assert torch.equal(visited[2, 1], visited[0, 0])
    assert [(one.until, one.setting) for one in policy.periods] == [(4, 0.2), (7, 0.1), (10, 0.05)]
    assert all(one.loss == pytest.approx(0.6) for one in policy.periods)
    shares = everybodys(torch.tensor([one.share for one in policy.periods]))
    assert torch.equal(shares[0], shares[2])
    assert (shares[0] > 1 / 3).all(), "a visit each three steps, and entries"
    assert policy.setting == 0.02
    session.close()


@ranks(3)
def test_the_mean_of_all_sites_is_tried_at_each(me: RankContext) -> None:
    os.environ["UNEVEN_SITE"] = "east" if me.rank < 2 else "west"
    seen: list[torch.Tensor] = []

    def score(model: nn.Module) -> float:
        seen.append(flat(model))
        return 0.9 if len(seen) % 2 else 0.8

    policy = Scout("geo:bsp:threshold=0.3", period=3)
    session = uneven.Session(sync=policy, callbacks=[uneven.SiteEvaluation(score)])
    model = net()
    optimizer = sgd(model)
    session.setup(model, optimizer)
    for x, y, _index in session.loader(Numbered(), X):
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(seen) == (2 if me.rank in (0, 2) else 0)
    own = everybodys(torch.stack(seen) if seen else torch.zeros(2, len(flat(model))))
    torch.testing.assert_close(own[0, 1], (own[0, 0] + own[2, 0]) / 2)
    assert torch.equal(own[0, 1], own[2, 1])
    assert [one.loss for one in policy.periods] == [pytest.approx(0.1)]
    assert policy.setting == 0.5, "a tenth is within the tolerance"
    session.close()
