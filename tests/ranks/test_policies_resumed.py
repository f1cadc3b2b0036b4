"""A run under a policy that lets replicas differ goes on where it stopped, bit by bit."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from policy_runs import Run, flat, momentum
from session_parts import Numbered, X, net

import uneven
from uneven.errors import CheckpointError
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.inside import inside


def saved(run: Run, most: int) -> dict[str, Any]:
    """The state after so many iterations, taken inside the loop, by way of a file."""
    file = io.BytesIO()
    for count, (x, y, _) in enumerate(run.loader, 1):
        run.step(x, y)
        if count == most:
            parts = {"model": run.model, "optimizer": run.optimizer, "session": run.session}
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)
            break
    run.session.close()
    file.seek(0)
    return torch.load(file, weights_only=True)  # type: ignore[no-any-return]


def resumed(state: dict[str, Any], sync: str) -> Run:
    run = Run(sync, make=momentum)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.session.load_state_dict(state["session"])
    return run


@ranks(2)
def test_what_a_site_holds_back_is_gone_on_with(me: RankContext) -> None:
    """Two sites, in the midst of a block and with an exchange to come; the threshold follows the learning rate."""
    os.environ["UNEVEN_SITE"] = f"site {me.rank}"
    for sync in ("geo:bsp:threshold=0.3", "sparse-local:every=3,density=0.2,chunk=16"):
        whole = Run(sync, make=momentum)
        for most in (None, None):
            whole.epoch(most)
        for most in (3, 4):
            state = saved(Run(sync, make=momentum), most)
            assert state["session"]["vectors"]["entries-held"].abs().sum() > 0 or most < 4
            run = resumed(state, sync)
            run.epoch()
            run.epoch()
            assert torch.equal(flat(run.model), flat(whole.model)), f"{sync} after {most}"
            run.session.close()
        state = saved(Run(sync, make=momentum), 4)
        first = [state] if me.rank == 0 else [None]
        dist.broadcast_object_list(first)
        run = resumed(first[0], sync)  # type: ignore[arg-type]
        run.epoch(1)
        entries = inside(run.session).sparse
        held = entries._sums.held  # type: ignore[union-attr]
        assert not held.any(), "what the first site holds back is in both replicas, and nobody sends it"
        state["session"]["vectors"]["entries-held"] = torch.zeros(3)
        with pytest.raises(CheckpointError, match="entries-held"):
            run.session.load_state_dict(state["session"])
        run.session.close()
        whole.session.close()


@ranks(2)
def test_resumed_equals_uninterrupted(me: RankContext) -> None:
    """After three steps the exchange is still to come, after four a block is running; shuffle's turns go on."""
    for sync in (
        "bmuf:every=3,momentum=0.5,nesterov=true",
        f"bmuf:every=3,momentum=0.5,warmup_samples={4 * X}",  # the second block ends after it
        "shuffle:groups=random,size=2:local:every=3",
    ):
        whole = Run(sync, make=momentum)
        whole.epoch()
        whole.epoch()
        shown = whole.shown()
        whole.session.close()
        for most in (3, 4):
            run = resumed(saved(Run(sync, make=momentum), most), sync)
            run.epoch()
            run.epoch()
            assert torch.equal(flat(run.model), flat(whole.model)), f"{sync} after {most}"
            assert torch.equal(run.shown(), shown)
            run.session.close()


@ranks(2)
def test_distributed_checkpoints_hold_the_momentum_of_blocks(me: RankContext, tmp_path: str) -> None:
    run = Run("bmuf:every=3", make=momentum)
    run.epoch()
    kept = run.session.state_dict()["vectors"]
    assert kept["delta"].any()
    dcp.save({"session": run.session}, checkpoint_id=f"{tmp_path}/dcp")
    run.session.close()
    for before in (True, False):  # loaded before there is a loader, or after
        session, model = uneven.Session(sync="bmuf:every=3", balance="even"), net()
        session.setup(model, momentum(model))
        if not before:
            session.loader(Numbered(), X)
        dcp.load({"session": session}, checkpoint_id=f"{tmp_path}/dcp")
        if before:
            session.loader(Numbered(), X)
        loaded = session.state_dict()
        assert all(torch.equal(loaded["vectors"][name], vector) for name, vector in kept.items())
        assert json.loads(loaded["agreement"])["clock"] == 5
        session.close()


def test_a_centre_of_another_model_is_refused_and_another_policy_starts_afresh() -> None:
    state = saved(Run("bmuf:every=3", make=momentum), 4)
    assert set(state["session"]["vectors"]) == {"copy", "delta", "start", "centre"}
    state["session"]["vectors"]["copy"] = torch.zeros(7)
    run = Run("bmuf:every=3", make=momentum)
    with pytest.raises(CheckpointError, match="the centre in the checkpoint"):
        run.session.load_state_dict(state["session"])
    run.session.close()
    other = resumed(state, "local:every=3")
    assert other.agreement.clock == 0
    assert len(other.epoch()) == 2, "the samples that were left"
    other.session.close()
