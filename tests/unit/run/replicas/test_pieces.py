"""What a merge keeps of each piece, where parameters are exchanged a piece at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from uneven.errors import ConfigError
from uneven.policy.core.actions import BlockMomentum, Exchange, Mean, Moment, Payload, StepPlan, span
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.merge_state import MergeState
from uneven.run.replicas.replica import Replica

SIZE = 11


@pytest.mark.parametrize("merge", [BlockMomentum(0.9, 0.7, nesterov=True), BlockMomentum(0.5), Mean()])
def test_each_piece_is_merged_as_if_it_were_a_model_of_its_own(merge: BlockMomentum | Mean) -> None:
    start = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    flat, state = Flat([start]), MergeState(3)
    state.begin(merge, start)
    alone = [merge.begin(start[span((n, 3), SIZE)].clone()) for n in range(3)]
    for turn in range(9):
        piece = (turn % 3, 3)
        view = state.view(replace(exchange(piece).exchanges[0], merge=merge), flat)
        assert view.cut == span(piece, SIZE)
        given = torch.full((len(start[view.cut]),), 0.1 * turn, dtype=torch.float64)
        again = given.clone()
        found, outcome = merge.combine(view.kept, again, 5.0 + turn, in_place=True)
        alone[piece[0]], expected = merge.combine(alone[piece[0]], given, 5.0 + turn)
        assert torch.equal(outcome, expected)
        state.store(view, found, outcome, start[:0], again)
        again.fill_(7.0)  # the next exchange uses its memory
        if turn in (3, 7):  # and a checkpoint has all of it
            saved, state = state.saved(), MergeState(3)
            state.load(dict(saved), centred=0)
            assert state.saved().keys() == saved.keys()
            vectors = {key for key, value in saved.items() if isinstance(value, torch.Tensor)}
            assert all(len(saved[key]) == SIZE for key in vectors)
            assert len(saved) - len(vectors) == 3 * sum(not isinstance(one, torch.Tensor) for one in alone[0].values())


def exchange(piece: tuple[int, int] | None) -> StepPlan:
    one = Exchange(
        payload=Payload.PARAMETERS, members=(0, 1), merge=BlockMomentum(0.5), moment=Moment.STEP, piece=piece
    )
    return StepPlan(exchanges=(one,))


def test_parameters_are_cut_in_one_way() -> None:
    replica = Replica(torch.nn.Linear(2, 2))
    replica.expect([BlockMomentum(0.5)], centre=True, cuts=[2, 2])
    assert replica.refused(exchange((1, 2))) is None
    assert "cut them differently" in str(replica.refused(exchange((1, 3))))
    assert "all parameters" in str(replica.refused(exchange(None)))
    with pytest.raises(ConfigError, match=r"into \[2, 3\] pieces"):
        replica.expect([BlockMomentum(0.5)], centre=True, cuts=[3, 2])
