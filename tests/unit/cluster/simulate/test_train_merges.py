"""Every merge in a virtual training, against the same plans on numbers by hand (unit/policy/sync/replicas.py)."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from quadratics import Plain, Quadratic, Trained
from small_world import Ran, cluster, node

from uneven.errors import ConfigError
from uneven.policy.core.actions import (
    Add,
    BlockMomentum,
    Elastic,
    Exchange,
    Mean,
    Merge,
    Moment,
    Payload,
    Quorum,
    Significant,
    StepPlan,
    Via,
)
from uneven.policy.core.views import SyncView
from uneven.policy.merge import Kept
from uneven.policy.sync import EvaluationModel, SyncPolicy, policies
from uneven.policy.sync.bsp import gradient_mean


def _reference() -> ModuleType:
    path = Path(__file__).parents[2] / "policy" / "sync" / "replicas.py"
    spec = importlib.util.spec_from_file_location("replicas", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    importlib.import_module("sys").modules["replicas"] = module
    spec.loader.exec_module(module)
    return module


SHARES = {0: 1, 1: 5, 2: 2, 3: 4}
SITES = {0: "east", 1: "east", 2: "west", 3: "west"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("policy", [
    "bsp", "local:every=3", "local:every=2,warmup=3", "ma:every=2,by_samples=false",
    "bmuf:every=3", "bmuf:every=2,nesterov=true,block_lr=0.5", "diloco:every=3", "shuffle:groups=grid",
    "shuffle:groups=digits,base=2:ma:every=2", "hierarchical:every=3", "easgd:every=2,together=true",
])  # fmt: skip
def test_a_lockstep_policy_does_what_its_plan_says(policy: str, momentum: float) -> None:
    played = _reference().Replicas((0, 1, 2, 3), SHARES, SITES, momentum=momentum)
    played.play(policies.resolve(policy), 11)
    # The samples of a worker are its own in every iteration, and all of them are its own loss.
    curves = [np.diag(played.slope[rank]) for rank in SHARES for _ in range(SHARES[rank])]
    targets = [played.target[rank] for rank in SHARES for _ in range(SHARES[rank])]
    task = Quadratic(
        torch.tensor(np.array(curves)), torch.tensor(np.array(targets)), learning_rate=0.1, momentum=momentum
    )
    nodes = (node(f"n{rank}", site=SITES[rank]) for rank in SHARES)
    balance = f"static:shares={'/'.join(map(str, SHARES.values()))}"
    ran = Trained(cluster(*nodes, global_batch=12), task, policy, balance=balance, iterations=11, order=Plain(12))
    assert torch.allclose(ran.replicas(), torch.tensor(played.all), atol=1e-12)


def test_ssp_and_asp_start_from_what_the_shared_copy_answered() -> None:
    # Two workers, one of them twice as fast; x ← x − ½ · 0.1 · (x − 1) with x as it was read.
    task = Quadratic(torch.ones(4, 1), torch.ones(4, 1), learning_rate=0.1)
    ran = Trained(cluster(node("fast", 1.0), node("slow", 2.1), global_batch=2), task, "asp", iterations=3)
    copy, read = 0.0, {0: 0.0, 1: 0.0}
    for rank in [step.rank for step in ran.steps]:  # in the order in which they ended
        copy += 0.5 * 0.1 * (1 - read[rank])
        read[rank] = copy
    assert [step.rank for step in ran.steps] == [0, 0, 1, 0, 0, 1]
    assert float(ran.training._model(0)) == pytest.approx(copy, abs=1e-12)


def test_an_elastic_pull_keeps_the_sum_of_copy_and_replicas() -> None:
    task = Quadratic(torch.zeros(4, 2), torch.ones(4, 2), learning_rate=0.1)  # no gradient: only pulls move anything
    ran = Trained(cluster(node("a"), node("b", 1.5)), task, "easgd:alpha=0.3,every=1", iterations=1)
    training = ran.training
    pull = Exchange(payload=Payload.PARAMETERS, members=(0, 1), merge=Elastic(0.3), moment=Moment.STEP, via=Via.SERVER)
    training._each((0,), lambda state: replace(state, parameters=torch.tensor([1.0, 2.0], dtype=torch.float64)))
    training.sends(0, pull)
    training.merges(pull, (0,))
    training.answers(0, pull)
    training._each((0,), lambda state: replace(state, parameters=state.parameters + 5.0))  # learnt meanwhile
    training.reads(0, pull)
    assert training._centre.tolist() == pytest.approx([0.3, 0.6])
    assert training.parameters(0).tolist() == pytest.approx([5.7, 6.4])


@pytest.mark.parametrize(("write_back", "kept"), [
    ("", 1.0), ("write_back=lerp,alpha=0.1:", 1 - 0.1 * 2 / 3), ("write_back=lerp,alpha=0.5:", 2 / 3),
    ("write_back=lerp,alpha=1:", 1 / 3),
])  # fmt: skip
def test_a_mean_in_the_background_keeps_what_was_learnt_meanwhile_or_loses_alpha_of_it(
    write_back: str, kept: float
) -> None:
    """ShadowSync, §1.5: back to back, of S steps the D that an exchange is under way for keep 1 − α under lerp."""

    # An exchange takes 2.5 steps, so two end in it and the next one begins after the third. The
    # loss has no minimum but a slope of 1, so every step moves by −0.1 exactly.
    class Slope(Quadratic):
        def gradient(self, parameters, samples):  # type: ignore[no-untyped-def]
            return super().gradient(parameters, samples)._replace(value=torch.ones(1, dtype=torch.float64))

    task = Slope(torch.ones(4, 1), torch.ones(4, 1), learning_rate=0.1)
    spec = cluster(node("a", up_bit_per_s=_mbit(3.2)), node("b", up_bit_per_s=_mbit(3.2)), global_batch=2)
    early, late = (Trained(spec, task, f"shadow:{write_back}ma", iterations=n).replicas() for n in (30, 60))
    assert (late - early).flatten().tolist() == pytest.approx([-3.0 * kept] * 2)  # equal progress: means change nothing


class Geo(SyncPolicy):
    """Gaia over sites of one worker: significant movements to all the others, in the background."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def plan(self, view: SyncView) -> StepPlan:
        far = Exchange(
            payload=Payload.DELTA, members=view.members, parties=tuple((rank,) for rank in view.members),
            merge=Add(), moment=Moment.BACKGROUND, select=Significant(self.threshold),
        )  # fmt: skip
        return StepPlan(exchanges=(far,))


def test_what_is_not_significant_stays_and_adds_up() -> None:
    def ran(threshold: float) -> Trained:
        return Trained(cluster(node("a"), node("b")), Quadratic.random(64), Geo(threshold), iterations=6)

    everything, something, nothing = ran(0.0), ran(0.2), ran(math.inf)
    # What a replica is made of: its own steps, and of the other's what that has sent.
    unsent = torch.stack([unsent_of(something, rank) for rank in (0, 1)])
    assert unsent.abs().sum() > 0
    total = something.replicas() + unsent.flip(0)
    assert torch.allclose(total[0], total[1], atol=1e-12)
    replicas = everything.replicas()
    assert torch.allclose(replicas[0], replicas[1], atol=1e-12)
    assert {everything.training.sent_part(rank, None) for rank in (0, 1)} == {1.0}  # type: ignore[arg-type]
    assert 0 <= something.training._parts[0] < 1
    assert nothing.training._parts == {0: 0.0, 1: 0.0}


def test_what_the_filter_holds_back_takes_no_time_on_the_wire() -> None:
    spec = cluster(node("a", up_bit_per_s=_mbit(8)), node("b", up_bit_per_s=_mbit(8)), global_batch=2)
    slow = Ran(spec, Blocking(0.0), iterations=2).ends_s(0)
    held = Trained(spec, Quadratic.random(64), Blocking(math.inf), iterations=2)
    assert held.steps[0].exchange_s == 0.0
    assert slow[0] > held.steps[0].ended_at_s


def unsent_of(ran: Trained, rank: int) -> torch.Tensor:
    """What a worker has moved and no exchange has carried."""
    replica = ran.training._replicas[rank]
    return replica.state.moved - replica.carried


class Sited(SyncPolicy):
    """BSP inside a site, and significant movements from site to site, one voice each."""

    def plan(self, view: SyncView) -> StepPlan:
        home = tuple(rank for rank in view.members if view.sites[rank] == view.sites[view.rank])
        far = Exchange(
            payload=Payload.DELTA, members=view.members, parties=((0, 1), (2, 3)), merge=Add(),
            moment=Moment.BACKGROUND, select=Significant(0.05),
        )  # fmt: skip
        return StepPlan(exchanges=(gradient_mean(home), far))


def test_a_site_is_one_voice_and_one_replica() -> None:
    nodes = (node(f"n{rank}", 1.0 + rank // 2, site=SITES[rank]) for rank in range(4))
    ran = Trained(cluster(*nodes), Quadratic.random(64), Sited(), iterations=6)
    models, unsent = ran.replicas(), [unsent_of(ran, rank) for rank in range(4)]
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[2], models[3])
    assert torch.equal(unsent[0], unsent[1])  # whoever speaks next knows what is not sent
    assert torch.allclose(models[0] + unsent[2], models[2] + unsent[0], atol=1e-12)
    assert not torch.allclose(models[0], models[2], atol=1e-6)
    assert len({id(ran.training._replicas[rank].state) for rank in range(4)}) == 2


class Blocking(Geo):
    """The same in the foreground."""

    def plan(self, view: SyncView) -> StepPlan:
        (far,) = super().plan(view).exchanges
        return StepPlan(exchanges=(replace(far, moment=Moment.STEP),))


def _mbit(rate: float):  # type: ignore[no-untyped-def]
    from uneven.cluster.pure.describe.spec import steady

    return steady(rate * 1e6)


class Half(Merge):
    """Half as many numbers as the model has, of gradients too, which nobody can compute so."""

    payloads = frozenset({Payload.GRADIENT, Payload.PARAMETERS})
    bytes_factor = 0.5

    def combine(
        self, kept: Kept, given: torch.Tensor, weight: float, *, in_place: bool = False
    ) -> tuple[Kept, torch.Tensor]:
        return kept, given


class One(SyncPolicy):
    """An exchange after every step, or under it."""

    def __init__(self, payload: Payload, merge: Merge, select: Significant | None = None, quorum: int | None = None):
        self.payload, self.merge, self.select, self.quorum = payload, merge, select, quorum

    def plan(self, view: SyncView) -> StepPlan:
        moment = Moment.BACKWARD if self.payload is Payload.GRADIENT else Moment.STEP
        odd = Exchange(
            payload=self.payload, members=view.members, merge=self.merge, moment=moment, select=self.select,
            quorum=self.quorum and Quorum(count=self.quorum),
        )  # fmt: skip
        return StepPlan(exchanges=(odd,))


def test_a_merge_says_how_long_its_transfers_are() -> None:
    spec = cluster(node("a", up_bit_per_s=_mbit(8)), node("b", up_bit_per_s=_mbit(8)), global_batch=2)
    whole, half = (
        [step.exchange_s for step in Ran(spec, One(Payload.PARAMETERS, merge), iterations=2).steps]
        for merge in (Mean(), Half())
    )
    assert min(whole) > 0
    assert half == pytest.approx([one / 2 for one in whole])


@pytest.mark.parametrize(("payload", "merge", "select", "quorum", "why"), [
    (Payload.PARAMETERS, Mean(), Significant(0.1), None, "applies to movements only"),
    (Payload.DELTA, Elastic(0.5), None, None, "Elastic merges Payload.PARAMETERS"),
    (Payload.GRADIENT, BlockMomentum(0.5), None, None, "BlockMomentum merges Payload.PARAMETERS"),
    (Payload.GRADIENT, Half(), None, None, "gradients support only"),
    (Payload.PARAMETERS, Elastic(0.5), None, 1, "does not support a quorum"),
])  # fmt: skip
def test_an_exchange_without_a_meaning_is_refused(
    payload: Payload, merge: Merge, select: Significant | None, quorum: int | None, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        Trained(cluster(node("a"), node("b")), Quadratic.random(8), One(payload, merge, select, quorum))


class Late(SyncPolicy):
    """The mean of the replicas, which enters some steps later."""

    evaluation_model = EvaluationModel.MEAN

    def __init__(self, every: int, delay: int) -> None:
        self.every, self.delay = every, delay

    def plan(self, view: SyncView) -> StepPlan:
        mean = Exchange(
            payload=Payload.PARAMETERS, members=view.members, merge=Mean(), moment=Moment.STEP, piece=(0, 1),
            delay=self.delay,
        )  # fmt: skip
        return StepPlan() if (view.clock + 1) % self.every else StepPlan(exchanges=(mean,))


def test_an_exchange_with_a_delay_begins_when_the_outcome_before_has_entered() -> None:
    spec, task = cluster(node("a"), node("b")), Quadratic.random(64)
    replicas = Trained(spec, task, Late(3, 2), iterations=8).replicas()
    alone = Trained(spec, task, Late(99, 2), iterations=8).replicas()
    assert (replicas[0] - replicas[1]).abs().max() < (alone[0] - alone[1]).abs().max()
    for every in (1, 2):
        with pytest.raises(ConfigError, match="delay of 2 steps overlaps the exchange before it"):
            Trained(spec, task, Late(every, 2), iterations=8)
