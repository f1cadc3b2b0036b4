"""Movements in full, of which a worker gives the mean of its region: what counts as moved, and what goes together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from uneven.errors import ConfigError
from uneven.policy.core.actions import BlockMomentum, Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.merge.merge import OuterMovement
from uneven.policy.sync import SyncPolicy
from uneven.run.replicas.replica import Replica, announce

NEAR = Exchange(payload=Payload.DELTA, members=(0, 1), merge=OuterMovement(0.5, 1.0), moment=Moment.STEP)
FAR = Exchange(payload=Payload.PARAMETERS, members=(0, 1), merge=BlockMomentum(0.0), moment=Moment.STEP)


def with_other(values: list[float]):  # type: ignore[no-untyped-def]
    """A sum with a second worker of the same weight, and what this one gave to it."""
    given: list[Tensor] = []

    def total(vector: Tensor, one: Exchange) -> int:
        given.append(vector[:-2].clone())
        vector += torch.tensor([*values, 1.0, 0.0])
        return 0

    return total, given


def replica() -> tuple[nn.Parameter, Replica]:
    model = nn.Linear(2, 1, bias=False)
    model.weight.data.fill_(1.0)
    one = Replica(model)
    one.expect([FAR.merge], centre=True, moved=[NEAR.merge])
    one.begin()
    return model.weight, one


def test_what_came_from_others_does_not_count_as_moved() -> None:
    weight, one = replica()
    weight.data += 1.0
    total, given = with_other([3.0, 1.0])
    one.meet(NEAR, 1.0, total)
    assert given[0].tolist() == [1.0, 1.0]
    assert weight.tolist() == [[1 + 2 + 0.5 * 2, 1 + 1 + 0.5 * 1]], "η (G + μ V), and V = G the first time"
    assert one.centre.tolist() == [1.0, 1.0], "as it began: not all have met"
    total, given = with_other([0.0, 0.5])
    one.meet(FAR, 1.0, total)
    assert weight.tolist() == [[2.0, 1.5]]
    assert one.centre.tolist() == [2.0, 1.5]
    weight.data += 0.25
    total, given = with_other([0.25, 0.25])
    one.meet(NEAR, 1.0, total)
    assert given[0].tolist() == [0.25, 0.25], "neither the region's step nor that of all"


def test_what_is_not_a_number_is_this_workers_only_where_it_brought_it() -> None:
    weight, one = replica()
    total, _ = with_other([float("nan"), 0.0])
    assert one.meet(NEAR, 1.0, total).finite, "it is the other one's to tell"
    assert weight.isnan().tolist() == [[True, False]]
    own, another = replica()
    own.data[0, 0] = float("nan")
    assert not another.meet(NEAR, 1.0, with_other([0.0, 0.0])[0]).finite


def test_a_checkpoint_has_where_movements_count_from() -> None:
    weight, one = replica()
    weight.data += 1.0
    one.meet(NEAR, 1.0, with_other([1.0, 1.0])[0])
    vectors, numbers = one.state_dict()
    other_weight, other = replica()
    other_weight.data.copy_(weight.data)
    other.check(vectors, numbers)
    other.load_state_dict(vectors, numbers)
    for each, of in ((weight, one), (other_weight, other)):
        each.data += 0.5
        of.meet(NEAR, 1.0, with_other([0.0, 0.0])[0])
    assert torch.equal(weight, other_weight)


def test_movements_are_merged_in_one_way() -> None:
    _, one = replica()
    assert one.refused(StepPlan(exchanges=(NEAR, FAR))) is None
    assert "none of the first steps" in str(one.refused(StepPlan(exchanges=(replace(NEAR, merge=Mean()),))))
    with pytest.raises(ConfigError, match="use one merge per policy"):
        one.expect([], centre=False, moved=[Mean(), OuterMovement()])


class _Mixed(SyncPolicy):
    def plan(self, view: SyncView) -> StepPlan:
        beside = replace(FAR, members=view.members, moment=Moment.BACKGROUND)
        return StepPlan(exchanges=(replace(NEAR, members=view.members), beside))


def test_what_would_count_as_moved_is_refused_beside_them() -> None:
    with pytest.raises(ConfigError, match="combines full movements"):
        announce(Replica(nn.Linear(2, 1)), _Mixed(), (0, 1), {})
