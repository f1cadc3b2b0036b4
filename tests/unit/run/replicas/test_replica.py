"""A replica on its own: what it keeps for merges, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from uneven.errors import CheckpointError, ConfigError
from uneven.policy.core.actions import (
    Background,
    BlockMomentum,
    Elastic,
    Exchange,
    Mean,
    Merge,
    Moment,
    Payload,
    StepPlan,
)
from uneven.policy.core.plain import Misfit
from uneven.policy.merge import Kept
from uneven.run.replicas.replica import Replica


def normed(start: float = 1.0) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2, affine=False))
    model[0].weight.data.fill_(start)  # type: ignore[operator,union-attr]
    return model


def exchange(merge: Merge, moment: Moment = Moment.STEP, members: tuple[int, ...] = (0, 1)) -> Exchange:
    return Exchange(payload=Payload.PARAMETERS, members=members, merge=merge, moment=moment)


def beside(other: Tensor):  # type: ignore[no-untyped-def]
    """A sum with a second worker, which gives ``other`` with the weight 1."""

    def total(vector: Tensor, one: Exchange) -> int:
        vector += torch.cat((other, torch.tensor([1.0, 0.0])))
        return 0

    return total


class LastMean(Merge):
    """Keeps the mean as it was given, and moves every replica by its change."""

    def begin(self, start: Tensor) -> Kept:
        return {"last": start}

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        return {"last": given}, 2 * given - kept["last"]


def test_what_a_merge_keeps_outlives_the_memory_of_the_exchange() -> None:
    model = nn.Linear(2, 1, bias=False)
    model.weight.data.fill_(1.0)
    one = Replica(model)
    one.expect([LastMean()], centre=False)
    one.begin()
    for other, expected in ((3.0, 3.0), (5.0, 6.0)):  # means 2 and 4, and 2 · 2 - 1 and 2 · 4 - 2
        one.meet(exchange(LastMean()), 1, beside(torch.full((2,), other)))
        assert model.weight.tolist() == [[expected] * 2]


def test_a_newcomer_may_meet_the_others_before_its_first_step() -> None:
    one = Replica(normed())
    one.expect([Mean()], centre=False)
    one.meet(exchange(Mean()), 1, beside(torch.full((8,), 3.0)))
    assert one.flat.read().tolist() == [2.0] * 4 + [1.5] * 2 + [2.0] * 2


class LastMeanOfAll(LastMean):
    whole = True


def test_statistics_are_merged_like_parameters_where_the_merge_says_so() -> None:
    one = Replica(normed())
    one.expect([LastMeanOfAll()], centre=False)
    one.begin()
    one.meet(exchange(LastMeanOfAll()), 1, beside(torch.full((8,), 3.0)))
    assert one.flat.read().tolist() == [3.0] * 6 + [3.0] * 2, "variances too: 2 · 2 - 1"
    assert one.flat.read()[4:6].tolist() == [3.0] * 2, "and means: 2 · 1.5 - 0"


class Forgetful(LastMean):
    """Says that it keeps nothing, and returns something to keep."""

    begin = Merge.begin

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        assert not kept
        return {"last": given}, given


def test_what_a_merge_did_not_announce_is_not_kept() -> None:
    one = Replica(normed())
    one.expect([Forgetful()], centre=False)
    one.begin()
    one.meet(exchange(Forgetful()), 1, beside(torch.full((8,), 3.0)))
    assert one.state_dict() == ({}, {})


@dataclass(frozen=True, slots=True)
class FirstHalf(Merge):
    """Sends the mean of each two parameters, half as many numbers; a sketch, as a compressor makes it."""

    by_samples = False
    bytes_factor = 0.5

    def begin(self, start: Tensor) -> Kept:
        return {"start": start}

    def contribute(self, own: Tensor, kept: Kept, *, in_place: bool = False) -> Tensor:
        return (own - kept["start"]).view(-1, 2).mean(1)

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        start = kept["start"] + given.repeat_interleave(2)
        return {"start": start}, start


@pytest.mark.parametrize("moment", [Moment.STEP, Moment.BACKGROUND])
def test_a_contribution_may_be_shorter_than_the_model_and_statistics_are_averaged_beside(moment: Moment) -> None:
    model = normed()
    one = Replica(model)
    one.expect([FirstHalf()], centre=True)
    one.begin()
    model[0].weight.data += torch.tensor([[2.0, 4.0], [0.0, 2.0]])  # type: ignore[index,operator]
    total = beside(torch.tensor([1.0, 3.0, *(6.0, 8.0), *(3.0, 5.0)]))  # a sketch of two, then mean and variance
    met = one.meet(exchange(FirstHalf(), moment), 8, total)
    assert one.flat.read().tolist() == [3.0, 3.0, 3.0, 3.0, 3.0, 4.0, 2.0, 3.0]
    assert one.centre.tolist() == one.flat.read().tolist()
    assert met.distance == pytest.approx(1.0), "between the contributions"
    assert {name: len(kept) for name, kept in one.state_dict()[0].items()} == {"start": 4, "centre": 8}


@pytest.mark.parametrize("moment", [Moment.STEP, Moment.BACKGROUND])
def test_a_mean_may_be_evaluated_at_the_point_that_all_started_from(moment: Moment) -> None:
    model = normed()
    one = Replica(model)
    one.expect([Mean()], centre=True)
    one.begin()
    assert one.centre.tolist()[:4] == [1.0] * 4
    one.meet(exchange(Mean(by_samples=False), moment), 8, beside(torch.full((8,), 3.0)))
    assert one.centre.tolist()[:4] == [2.0] * 4
    model[0].weight.data.zero_()  # type: ignore[operator,union-attr]
    one.flat.read(one._rooms[moment, False].total[:8])  # memory of the exchange is used again
    assert one.centre.tolist()[:4] == [2.0] * 4


def test_an_elastic_exchange_moves_replica_and_centre_by_the_same_and_tells_how_far_apart_they_were() -> None:
    model = normed(5.0)
    one = Replica(model)
    one.expect([Elastic(0.25)], centre=True)
    one.begin()
    model[0].weight.data.fill_(9.0)  # type: ignore[operator,union-attr]
    other = torch.cat((torch.full((4,), -2.0), torch.zeros(4)))  # which was at −3
    met = one.meet(exchange(Elastic(0.25)), 8, beside(other))
    assert one.flat.read().tolist()[:4] == [8.0] * 4
    assert one.centre.tolist()[:4] == [4.0] * 4
    assert met.distance == pytest.approx(6.0), "from the mean of 9 and −3"
    assert met.finite


@pytest.mark.parametrize("mine", [True, False])
def test_who_is_no_number_is_told_from_who_has_met_one(mine: bool) -> None:
    model = normed()
    one = Replica(model)
    one.expect([Elastic(0.25)], centre=True)
    one.begin()
    if mine:
        model[0].weight.data[0, 0] = float("nan")  # type: ignore[operator,union-attr]
    met = one.meet(exchange(Elastic(0.25)), 8, beside(torch.full((8,), 0.0 if mine else float("nan"))))
    assert met.finite is not mine
    if not mine:
        model[0].weight.data.fill_(float("nan"))  # type: ignore[operator,union-attr]
        assert one.meet(exchange(Elastic(0.25)), 8, beside(torch.zeros(8))).finite, "it came from the other one"


def test_a_checkpoint_of_one_merge_is_not_taken_for_that_of_another() -> None:
    one, other = Replica(normed()), Replica(normed())
    one.expect([BlockMomentum(0.5)], centre=True)
    other.expect([Elastic(0.5)], centre=True)
    vectors, numbers = one.state_dict()
    assert set(vectors) == {"copy", "delta", "start", "centre"}
    assert set(numbers) == {"block", "seen"}
    one.check(vectors, numbers)
    one.check({}, {})
    with pytest.raises(Misfit, match="vectors"):
        other.check(vectors, numbers)
    with pytest.raises(Misfit, match="kept"):
        one.check(vectors, {"block": 1.0})
    with pytest.raises(CheckpointError, match=r"has 3 numbers \('delta'\), but this model 4"):
        one.check({**vectors, "delta": torch.zeros(3)}, numbers)


def test_only_one_kind_of_merge_keeps_something_and_from_the_beginning() -> None:
    one = Replica(normed())
    with pytest.raises(ConfigError, match="BlockMomentum and Elastic keep state"):
        one.expect([Mean(), Elastic(0.1), BlockMomentum(0.5)], centre=True)
    one.expect([Mean(), BlockMomentum(0.5), BlockMomentum(0.9)], centre=True)
    assert one.refused(StepPlan(exchanges=(exchange(BlockMomentum(0.1)), exchange(Mean())))) is None
    assert "Elastic keeps state from the beginning on" in str(
        one.refused(StepPlan(exchanges=(exchange(Elastic(0.1)),)))
    )


class _Centre(FirstHalf):
    def begin(self, start: Tensor) -> Kept:
        return {"centre": start}


def test_a_mean_must_not_keep_what_its_outcome_is_stored_as() -> None:
    one = Replica(normed())
    one.expect([_Centre()], centre=True)
    with pytest.raises(ConfigError, match="keeps a 'centre'"):
        one.begin()


def test_what_was_learnt_meanwhile_is_kept_or_lost_in_part() -> None:
    found = {}
    for back in (Background(), Background(alpha=0.5), Background(alpha=0.5, lerp=True)):
        model = normed(2.0)
        one = Replica(model)
        one.expect([BlockMomentum(0.0)], centre=True)
        one.begin()

        def total(vector: Tensor, met: Exchange, model: nn.Module = model) -> int:
            model[0].weight.data += 1.0  # type: ignore[index,operator]  # learnt meanwhile
            return beside(torch.full((8,), 6.0))(vector, met)

        beyond = Exchange(
            payload=Payload.PARAMETERS, members=(0, 1), merge=BlockMomentum(0.0), moment=Moment.BACKGROUND,
            background=back,
        )  # fmt: skip
        one.meet(beyond, 1, total)
        found[back] = one.flat.read()[0].item()
    assert list(found.values()) == [5.0, 4.0, 3.5]


@pytest.mark.parametrize("merge", [Mean(), BlockMomentum(0.0, 1.0)])
def test_a_replica_as_it_was_is_merged_and_what_is_learnt_meanwhile_is_kept_and_is_no_newcomers(merge: Merge) -> None:
    model = normed()
    one = Replica(model)
    one.expect([merge], centre=False)
    one.keep_merged()
    model[0].weight.data.fill_(2.0)  # a checkpoint is loaded before the training begins
    one.begin()
    assert one.merged is not None
    assert one.merged.tolist() == one.flat.read().tolist()
    own = one.flat.read()
    model[0].weight.data += 10.0  # type: ignore[operator]
    one.meet(exchange(merge, Moment.BACKGROUND), 1, beside(torch.full((8,), 4.0)), own=own, alone=False)
    assert one.merged.tolist() == [3.0] * 4 + [2.0, 2.0, 2.5, 2.5]
    assert one.flat.read().tolist() == [13.0] * 4 + [2.0, 2.0, 2.5, 2.5]
