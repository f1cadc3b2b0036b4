"""Policies whose workers exchange at the end of a block of steps: real workers reach the weights of virtual time.

Four kinds: a merge that another package brings, parameters in pieces, outcomes that enter some steps late, and two
levels of regions. Each is resumed from a checkpoint in the middle of a block, bit for bit.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from policy_runs import Double, Normed, Run, everybodys, flat, replicas, resumed, virtual
from session_parts import net
from sign_mean import SignMean
from torch import nn

from uneven import Merge
from uneven.policy.core.actions import span
from uneven.policy.merge import merges
from uneven.policy.sync import DiLoCo
from uneven.testing.merges import MergeContract
from uneven.testing.ranks import RankContext, ranks

SITES = ("east", "west")
DILOCO = "outer_lr=0.7,outer_momentum=0.9"


def normed(sync: str, balance: str, steps: int, **loader: Any) -> nn.BatchNorm1d:
    """The batch norm of a model that has trained so, where no worker is in the middle of an exchange."""
    run = Run(sync, balance, model=Normed, **loader)
    run.epoch(steps)
    run.agreement.open()
    layer: nn.BatchNorm1d = run.model.inner[0]  # type: ignore[union-attr,index]
    with run.session.evaluation_model():
        assert (everybodys(layer.running_var) == layer.running_var).all(), "averaged at each exchange"
    run.session.close()
    return layer


SIGNS, SIGN_SHARES, SIGN_STEPS = "blocks:every=2,merge=sign-mean:rate=0.05", "static:shares=7/5", 4


class TestSignMean(MergeContract):
    """The suite, inherited."""

    def make(self) -> Merge:
        return merges.resolve("sign-mean:rate=0.05")


def votes_of_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    expected = replicas(virtual(SIGNS, SIGN_SHARES, ("one", "one"), SIGN_STEPS), 2)
    torch.testing.assert_close(torch.tensor(results, dtype=torch.float64), expected, rtol=1e-9, atol=1e-9)
    moved = (expected[0] - flat(net().double())).abs()
    assert {round(float(one), 6) for one in moved} <= {0.0, 0.05, 0.1}, "two votes of two workers"
    assert len(set(moved.tolist())) > 1


@ranks(2, check=votes_of_virtual_time)
def test_a_merge_of_another_package(me: RankContext) -> list[float]:
    assert isinstance(merges.resolve("sign-mean"), SignMean)
    straight = Run(SIGNS, SIGN_SHARES, model=Double)
    straight.epoch(SIGN_STEPS)
    shown, found = straight.shown(), flat(straight.model)  # a loop's end makes the last exchange up there
    assert torch.equal(shown, found), "the point that all start from is the model to evaluate"

    first = Run(SIGNS, SIGN_SHARES, model=Double)
    first.epoch(SIGN_STEPS // 2 + 1)  # in the middle of a block, which does not start where the model is
    state = first.session.state_dict()
    assert set(state["vectors"]) == {"start", "centre"}
    again = resumed(first, SIGNS, SIGN_SHARES, state, model=Double)
    again.epoch(SIGN_STEPS // 2 - 1)
    torch.testing.assert_close(again.shown(), found)
    assert (normed(SIGNS, SIGN_SHARES, SIGN_STEPS).running_var > 0.5).all(), "no sign makes sense of statistics"
    return found.tolist()


PIECES, PIECE_SHARES, PIECE_STEPS = f"diloco:every=3,fragments=3,{DILOCO}", "static:shares=7/5", 4
ADAM = DiLoCo(every=4, fragments=2, outer=partial(torch.optim.Adam, lr=0.01))


def pieces_of_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    for number, sync in enumerate((PIECES, ADAM)):
        found = torch.tensor([one[number] for one in results], dtype=torch.float64)
        expected = replicas(virtual(sync, PIECE_SHARES, SITES, PIECE_STEPS), 2)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert not torch.equal(found[0], found[1]), "two pieces have moved since their exchange"


@ranks(2, check=pieces_of_virtual_time)
def test_parameters_in_pieces(me: RankContext) -> list[list[float]]:
    os.environ["UNEVEN_SITE"] = SITES[me.rank]
    found = []
    for sync in (PIECES, ADAM):
        run = Run(sync, PIECE_SHARES, model=Double)
        run.epoch(PIECE_STEPS)
        run.agreement.open()  # a worker that leaves a loop makes the last exchange up there
        found.append(flat(run.model).tolist())
        with run.session.evaluation_model():
            assert (everybodys(flat(run.model)) == flat(run.model)).all(), "of each piece the outcome of its exchange"
        run.session.close()

    first = Run(PIECES, PIECE_SHARES, model=Double)
    first.epoch(2)
    state, size = first.session.state_dict(), flat(first.model).numel()
    assert set(state["vectors"]) == {"copy", "delta", "start", "centre"}
    again = resumed(first, PIECES, PIECE_SHARES, state, model=Double)
    again.epoch(PIECE_STEPS - 2)
    again.agreement.open()
    assert flat(again.model).tolist() == found[0], "bit by bit"
    both = everybodys(flat(again.model))
    equal = [torch.equal(both[0, cut], both[1, cut]) for cut in (span((number, 3), size) for number in range(3))]
    assert equal == [True, False, False], "after step 4 the first piece, again"
    assert all(one.sent_bytes < 8 * (size / 3 + 4) for one in again.exchanges), "a third of the vector each time"
    first.session.close()
    again.session.close()
    layer = normed(PIECES, PIECE_SHARES, PIECE_STEPS)
    assert (everybodys(layer.running_var) == layer.running_var).all(), "averaged with each piece"
    return found


LATE_SHARES, LATE_BATCH, LATE_STEPS = "static:shares=2/1", 6, 8
LATE_PIECES = f"diloco:every=4,fragments=2,delay=1,{DILOCO}"
LATE_WHOLE = DiLoCo(every=4, delay=2, outer=partial(torch.optim.Adam, lr=0.01))
LATE_ENTRIES = "sparse-local:every=4,density=0.3,chunk=16,bits=32,delay=2,narrow=east"
LATE = (LATE_PIECES, LATE_WHOLE, LATE_ENTRIES)


def resumed_late(sync: str, steps: int, saved: set[str], expected: list[float]) -> None:
    """Save a run that has an outcome under way, and continue from that."""
    first = Run(sync, LATE_SHARES, model=Double, batch=LATE_BATCH)
    first.epoch(steps)
    first.agreement.open()
    state = first.session.state_dict()
    assert set(state["vectors"]) == saved
    assert state["vectors"]["late-change"].abs().sum() > 0, "it has an outcome that is still to enter"
    again = resumed(first, sync, LATE_SHARES, state, model=Double, batch=LATE_BATCH)
    again.epoch(LATE_STEPS - steps)
    again.agreement.open()
    assert flat(again.model).tolist() == expected, "bit by bit"
    with first.session.evaluation_model():
        shown = first.session.state_dict()
    assert not shown["vectors"]["late-change"].any(), "the model to evaluate has it"
    first.session.close()
    again.session.close()


def late_of_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    for number, sync in enumerate(LATE):
        training = virtual(sync, LATE_SHARES, SITES, LATE_STEPS, LATE_BATCH)
        found = torch.tensor([one[2 * number] for one in results], dtype=torch.float64)
        torch.testing.assert_close(found, replicas(training, 2), rtol=0, atol=1e-12)
        assert not torch.equal(found[0], found[1]), "each has its own steps since the exchange"
        shown = torch.tensor([one[2 * number + 1] for one in results], dtype=torch.float64)
        torch.testing.assert_close(shown, training._model(0).expand(2, -1), rtol=0, atol=1e-12)


@ranks(2, check=late_of_virtual_time)
def test_outcomes_that_enter_some_steps_late(me: RankContext) -> list[list[float]]:
    os.environ["UNEVEN_SITE"] = SITES[me.rank]
    found = []
    for sync in LATE:
        run = Run(sync, LATE_SHARES, model=Double, batch=LATE_BATCH)
        run.epoch(LATE_STEPS)
        run.agreement.open()  # a worker that leaves a loop starts the last exchange when the next step would
        found.append(flat(run.model).tolist())
        shown = run.shown()
        assert (everybodys(shown) == shown).all(), "also with an outcome under way"
        assert flat(run.model).tolist() == found[-1], "which enters when it is due, and not sooner"
        found.append(shown.tolist())
        run.session.close()
        assert {one.late for one in run.exchanges} <= {0, 1, 2}
        assert run.exchanges[0].late == (1 if sync is LATE_PIECES else 2), "steps taken in the meantime"

    resumed_late(LATE_PIECES, 2, {"copy", "delta", "start", "centre", "late-change"}, found[0])
    resumed_late(LATE_ENTRIES, 5, {"entries-held", "entries-base", "late-change"}, found[4])
    layer = normed(LATE_PIECES, LATE_SHARES, 4, batch=LATE_BATCH)
    assert not (everybodys(layer.running_var) == layer.running_var).all(), "of each replica, outside of an evaluation"
    return found


REGIONS, REGION_SHARES, REGION_STEPS = ("east", "west", "east"), "static:shares=5/4/3", 4
BOTH_LEVELS = "regional:every=1,across=2,outer_lr=0.9,outer_momentum=0.5,global_lr=0.7,global_momentum=0.5"
NEAR = "regional:every=2,across=3,outer_lr=0.9,outer_momentum=0.5"


def regions_of_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    for number, sync in enumerate((BOTH_LEVELS, NEAR)):
        found = torch.tensor([one[number] for one in results], dtype=torch.float64)
        expected = replicas(virtual(sync, REGION_SHARES, REGIONS, REGION_STEPS), 3)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(found[0], found[2]), "of one region"
    assert not torch.equal(found[0], found[1])


@ranks(3, check=regions_of_virtual_time)
def test_outer_steps_on_two_levels(me: RankContext) -> list[list[float]]:
    os.environ["UNEVEN_SITE"] = REGIONS[me.rank]
    found = []
    for sync in (BOTH_LEVELS, NEAR):
        run = Run(sync, REGION_SHARES, model=Double)
        run.epoch(REGION_STEPS)
        run.agreement.open()  # a worker that leaves a loop makes the last exchange up there
        found.append(flat(run.model).tolist())
        mean = everybodys(flat(run.model)).mean(0)
        torch.testing.assert_close(run.shown(), mean, rtol=0, atol=1e-12)
        run.session.close()

    first = Run(NEAR, REGION_SHARES, model=Double)
    first.epoch(3)  # in the middle of a block
    state = first.session.state_dict()
    assert set(state["vectors"]) >= {"movements-base", "movements-velocity", "copy", "delta", "start"}
    again = resumed(first, NEAR, REGION_SHARES, state, model=Double)
    again.epoch(1)
    again.agreement.open()
    assert flat(again.model).tolist() == found[1], "bit by bit"
    first.session.close()
    again.session.close()
    return found
