"""Names for policies, names that hold names, and what goes together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import uneven
from uneven.cli.run import layers_of
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.balance import Even, LbBsp, balancers
from uneven.policy.core.actions import (
    Add,
    Background,
    Elastic,
    Exchange,
    Mean,
    Moment,
    Payload,
    Quorum,
    Significant,
    StepPlan,
    Via,
    Wait,
)
from uneven.policy.core.views import SyncView
from uneven.policy.merge.merge import OuterMovement
from uneven.policy.sync import (
    BSP,
    MA,
    Facts,
    Pace,
    Shadow,
    SyncPolicy,
    carried,
    compatible,
    first_plans,
    policies,
    refused,
    served,
)
from uneven.run.step.refusals import check_carried


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("ssp:staleness=3", "SSP(staleness=3, scale=None)"),
        (
            "shadow",
            "Shadow(inner=EASGD(alpha=None, every=1, together=False), write_back='delta', alpha=1.0, load=0.005)",
        ),
        (
            "shadow:easgd:alpha=0.3",
            "Shadow(inner=EASGD(alpha=0.3, every=1, together=False), write_back='delta', alpha=1.0, load=0.005)",
        ),
        (
            " shadow : easgd : alpha = 0.3 , every = 2 ",
            "Shadow(inner=EASGD(alpha=0.3, every=2, together=False), write_back='delta', alpha=1.0, load=0.005)",
        ),
        (
            "shadow:write-back=lerp:diloco:outer-lr=0.5",
            "Shadow(inner=DiLoCo(every=1, outer_lr=0.5, outer_momentum=0.9, fragments=1, delay=0, outer=None), "
            "write_back='lerp', alpha=0.5, load=0.005)",
        ),
        (
            "shadow:alpha=0.2:ma",
            "Shadow(inner=MA(every=1, by_samples=True), write_back='delta', alpha=0.2, load=0.005)",
        ),
        ("shuffle:columns=3", "Shuffle(inner=MA(every=1, by_samples=True), groups=Grid(columns=3))"),
        ("shuffle:local:every=4", "Shuffle(inner=LocalSGD(every=4, warmup=0), groups=Grid(columns=None))"),
        (
            "shuffle:groups=random,size=4,seed=7:ma:by-samples=false",
            "Shuffle(inner=MA(every=1, by_samples=False), groups=RandomGroups(size=4, seed=7))",
        ),
    ],
)
def test_a_specification_is_read(spec: str, said: str) -> None:
    assert repr(policies.resolve(spec)) == said


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ("shufle", UnknownNameError, "unknown synchronisation policy 'shufle'; did you mean 'shuffle'"),
        ("shadow:esgd:alpha=1", UnknownNameError, "'esgd'; did you mean 'easgd'"),
        ("shadow:easgd:alhpa=1", UnknownNameError, "policy 'easgd': 'alhpa'; did you mean 'alpha'"),
        ("shadow:alpha=0.3", ConfigError, "merges among workers.*shadow:easgd:alpha=0.3"),
        ("shadow:alpha=0.3:easgd:together=true", ConfigError, "has a parameter server: use its own options"),
        ("shadow:write-back=lrp:ma", ConfigError, "write_back = 'lrp' must be one of: delta, lerp"),
        ("shadow:alpha=0:ma", ConfigError, r"shadow: alpha = 0 must be a number in \(0, 1\]"),
        ("shadow:load=0:ma", ConfigError, r"shadow: load = 0 must be a number in \(0, 1\]"),
        ("shadow:every=2:ma", UnknownNameError, "as in shadow:NAME:every=…"),
        ("shadow:inner=ma", ConfigError, "write the one that 'shadow' wraps after a colon"),
        ("shadow:easgd,alpha=1", ConfigError, "expected key=value after the colon, found 'easgd'"),
        (
            "easgd:ma",
            ConfigError,
            "'easgd' does not wrap another synchronisation policy; these do: shuffle, geo, scout, shadow",
        ),
        ("bsp:shadow:ma", ConfigError, "'bsp' does not wrap another"),
        ("backup:2", ConfigError, "expected key=value after the colon, found '2'"),
        ("shuffle:groups=gird", UnknownNameError, "unknown grouping 'gird'; did you mean 'grid'"),
        ("shuffle:groups=digits,columns=2", UnknownNameError, r"key for grouping 'digits': 'columns' \(known: base\)"),
        ("shuffle:colums=2", UnknownNameError, "'colums'; did you mean 'columns'"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(spec: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        policies.resolve(spec)


def test_a_value_may_still_be_a_specification_of_another_kind() -> None:
    assert balancers.resolve("proportional:predictor=ema:alpha=0.5").predictor == "ema:alpha=0.5"
    with pytest.raises(ConfigError, match="'even' does not wrap another balancer; these do: none"):
        balancers.resolve("even:static")


TOGETHER = ("bsp", "backup", "local", "local:every=4,warmup=9", "diloco", "ma", "bmuf", "blocks", "shuffle",
            "hierarchical", "regional", "sparse-local", "topk", "geo", "scout")  # fmt: skip
APART = ("asp", "ssp", "easgd", "decoupled", "shadow", "shadow:ma", "shadow:asp")


@pytest.mark.parametrize("balancer", list(balancers))
@pytest.mark.parametrize("policy", [*TOGETHER, *APART])
def test_shares_make_sense_where_workers_wait_for_each_other(policy: str, balancer: str) -> None:
    assert {spec.split(":")[0] for spec in (*TOGETHER, *APART)} == set(policies)
    why = compatible(policy, balancer)
    assert (why is None) == (policy in TOGETHER or balancer == "even")
    if why is not None:
        assert f"balance = '{balancer}' has no effect under sync = '{policy}'" in why
        assert "use balance = 'even' with it" in why


@pytest.mark.parametrize(
    ("policy", "near"),
    [
        *[("asp", "bsp"), ("ssp", "bsp"), ("shadow:asp", "bsp"), ("shadow", "local")],
        *[("easgd", "local:every=4"), ("shadow:ma:every=5", "local:every=5")],
    ],
)
def test_the_nearest_policy_that_can_be_balanced_is_named_and_can_be(policy: str, near: str) -> None:
    why = compatible(policy, "lb-bsp")
    assert why is not None
    assert f"sync = '{near}' to balance" in why
    assert compatible(near, "lb-bsp") is None


def test_objects_are_taken_too_and_a_policy_without_facts_is_left_alone() -> None:
    assert compatible(BSP(), LbBsp()) is None
    assert "sync = Shadow(inner=MA(every=8, by_samples=True), write" in str(compatible(Shadow(MA()), LbBsp()))
    assert "balance = LbBsp has no effect" in str(compatible(Shadow(MA()), LbBsp()))
    assert compatible(Shadow(MA()), Even()) is None
    assert compatible(_Silent(), LbBsp()) is None
    with pytest.raises(UnknownNameError, match="'lb-bps'"):
        compatible("bsp", "lb-bps")
    with pytest.raises(UnknownNameError, match="'bps'"):
        compatible("bps", "lb-bsp")


class _Silent(SyncPolicy):
    def plan(self, view: SyncView) -> StepPlan:
        return BSP().plan(view)


CARRIED = (
    *("bsp", "local", "local:every=4,warmup=9", "local:every=9000", "diloco", "ma", "bmuf", "shuffle"),
    *("hierarchical", "blocks", "blocks:every=3,merge=block-momentum:momentum=0.5"),
    *("geo", "geo:bsp:threshold=0.1,schedule=sqrt,flush=9,bits=16", "sparse-local", "topk:density=0.2", "scout"),
    *("geo:lead=2", "geo:bsp:hubs=true", "diloco:every=4,fragments=2", "regional"),
    *("diloco:every=4,fragments=2,delay=1", "diloco:every=4,delay=2"),
)
SHADOWED = (
    *("easgd:together=true", "shadow:easgd:together=true", "shadow:ma", "shadow:bmuf"),
    "shadow:write-back=lerp:local:every=3",
)
SERVED = (
    *("asp", "asp:scale=1", "ssp", "ssp:staleness=0", "easgd", "easgd:every=1000", "shadow", "shadow:asp"),
    *("backup", "backup:spares=0", "decoupled", "decoupled:every=2,quorum=1"),
)


class _Some(SyncPolicy):
    """Sends what has moved much: something that no carrier does yet."""

    def plan(self, view: SyncView) -> StepPlan:
        return StepPlan(exchanges=(replace(_PUSH, members=view.members, select=Significant(0.1)),))


@pytest.fixture
def some() -> Iterator[str]:
    """The name of a policy that a plug-in brings and no real run carries."""
    policies.register("some", _Some)
    yield "some"
    del policies._makers["some"]  # a test's plug-in; real ones stay


def test_what_workers_exchange_among_themselves_is_carried_by_a_real_run() -> None:
    assert {spec.split(":")[0] for spec in (*CARRIED, *SERVED)} == set(policies)
    for spec in (*CARRIED, *SHADOWED):
        assert not any(served(plan) for plan in first_plans(policies.resolve(spec), (0, 1, 2), {}))
    for spec in SERVED:
        assert any(served(plan) for plan in first_plans(policies.resolve(spec), (0, 1, 2), {}))
    for policy in (*CARRIED, *SHADOWED, *SERVED, BSP(), _Silent()):
        assert carried(policy) is None
        check_carried(policies.resolve(policy), (0, 1, 2), {})


def test_what_no_real_run_carries_is_refused_with_the_nearest_that_one_does(some: str) -> None:
    why = carried(some)
    assert why is not None
    assert "sync = 'some' is not supported by real runs yet: each worker sends all entries to a parameter server" in why
    assert "uneven simulate CLUSTER.toml --sync some" in why
    assert carried(why.split("train with sync = '")[1].split("'")[0]) is None
    with pytest.raises(ConfigError, match="is not supported"):
        check_carried(policies.resolve(some), (0, 1), {})
    assert f"sync = {_Some()!r} is not supported" in str(carried(_Some()))


_MEAN = Exchange(payload=Payload.PARAMETERS, members=(0, 1), merge=Mean(), moment=Moment.STEP)
_FIRST = Quorum(count=1)
_PICKED = replace(_MEAN, payload=Payload.DELTA, select=Significant(0.1), parties=((0,), (1,)))


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (replace(_MEAN, via=Via.SERVER), "a step has one exchange of all workers"),
        (replace(_MEAN, quorum=_FIRST), "does not wait for late workers"),
        (replace(_MEAN, payload=Payload.DELTA, moment=Moment.BACKGROUND), "full movements are merged by their mean"),
        (replace(_MEAN, payload=Payload.DELTA, merge=OuterMovement(), parties=((0,), (1,))), "not among parties"),
        (replace(_MEAN, payload=Payload.DELTA, merge=Add()), "full movements are merged by their mean"),
        (replace(_MEAN, piece=(0, 2), parties=((0,), (1,))), "pieces of the parameters are averaged"),
        (replace(_MEAN, piece=(0, 2), moment=Moment.BACKGROUND), "pieces of the parameters are averaged"),
        (replace(_MEAN, select=Significant(0.1)), "for movements only"),
        (replace(_MEAN, payload=Payload.DELTA, select=Significant(0.1)), "one contribution for each party"),
        (replace(_PICKED, moment=Moment.BACKGROUND), "after the step"),
        (replace(_PICKED, delay=1), "unsent entries that are kept outside of the replica"),
        (replace(_PICKED, merge=Add(0.5)), "selected entries are averaged or added"),
        (replace(_MEAN, merge=Add()), "Add does not merge parameters: take a mean, block momentum or an elastic pull"),
        (
            replace(_MEAN, merge=Elastic(0.1), moment=Moment.BACKGROUND, background=Background(lerp=True)),
            "Elastic returns a movement per replica",
        ),
        (replace(_MEAN, moment=Moment.BACKGROUND, parties=((0,), (1,))), "in the foreground only"),
        (
            replace(_MEAN, payload=Payload.GRADIENT, moment=Moment.BACKWARD, merge=Mean(by_samples=False)),
            "gradients are merged only by their weighted mean",
        ),
    ],
)
def test_an_exchange_that_no_carrier_carries_is_refused_by_what_it_is(one: Exchange, why: str) -> None:
    assert refused(StepPlan(exchanges=(_MEAN, _PICKED, replace(_PICKED, merge=Add())))) is None
    assert why in str(refused(StepPlan(exchanges=(_MEAN, one))))
    assert "wait for clocks" in str(refused(StepPlan(waits=(Wait((0, 1), 3),))))


_PUSH = Exchange(payload=Payload.DELTA, members=(0, 1), merge=Add(0.5), moment=Moment.STEP, via=Via.SERVER)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (StepPlan(exchanges=(_PUSH, _PUSH)), "a step has one exchange of all workers"),
        (StepPlan(exchanges=(_PUSH,), waits=(Wait((1,), 3),)), "waits for all of them"),
        (
            StepPlan(exchanges=(replace(_PUSH, merge=Mean()),)),
            "a parameter server adds movements, or moves its parameters",
        ),
        (StepPlan(exchanges=(replace(_PUSH, quorum=_FIRST),)), "with a quorum, a parameter server averages gradients"),
        (
            StepPlan(exchanges=(replace(_PUSH, merge=OuterMovement(), quorum=_FIRST),)),
            "takes an outer step on movements in the background",
        ),
        (
            StepPlan(exchanges=(replace(_PUSH, payload=Payload.GRADIENT, merge=Mean(), moment=Moment.BACKWARD),)),
            "only with a quorum per step",
        ),
        (
            StepPlan(exchanges=(replace(_PUSH, select=Significant(0.1)),)),
            "all entries to a parameter server, and only for itself",
        ),
        (
            StepPlan(exchanges=(replace(_PUSH, parties=((0, 1),)),)),
            "all entries to a parameter server, and only for itself",
        ),
        (
            StepPlan(
                exchanges=(replace(_PUSH, payload=Payload.PARAMETERS, merge=Elastic(0.5)),), waits=(Wait((0, 1), 3),)
            ),
            "wait only for the clocks of workers that push their movements",
        ),
    ],
)
def test_what_a_shared_copy_does_not_carry_is_refused_by_what_it_is(plan: StepPlan, why: str) -> None:
    good = StepPlan(exchanges=(_PUSH,), waits=(Wait((0, 1), 3),))
    assert refused(good) is None
    assert refused(good, copy=True) is None
    assert "through a parameter server, unlike its first steps" in str(refused(good, copy=False))
    assert "among the workers, unlike its first steps" in str(refused(StepPlan(exchanges=(_MEAN,)), copy=True))
    assert why in str(refused(plan))


def test_a_run_is_refused_before_anything_starts(some: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"sync = 'some' is not supported .* train with sync = '"):
        layers_of({"sync": some}, None)
    with pytest.raises(ConfigError, match="is not supported"):
        uneven.Session(sync=some)
    Path("uneven.toml").write_text(f'[run]\nsync = "{some}"\n')
    with pytest.raises(ConfigError, match="is not supported"):
        layers_of({}, None)
    assert layers_of({"sync": "bsp"}, None)["command line"] == {"sync": "bsp"}, "the command line wins"


class _Loose(BSP):
    """Carried as BSP is, but says that nobody waits."""

    @property
    def facts(self) -> Facts:
        return Facts(payloads=super().facts.payloads, pace=Pace.OWN, stops=False, moves="", waits="", stale="",
                     lost_when_one_dies="")  # fmt: skip


def test_a_session_takes_even_where_shares_decide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer that the user has named is refused."""
    monkeypatch.chdir(tmp_path)
    with uneven.Session(sync=_Loose()) as session:
        assert session.config.balance == "even"
    with uneven.Session(sync="backup", threads=1) as session:
        assert session.config.balance == "even"
    with pytest.raises(ConfigError, match="balance = 'even' with it"):
        uneven.Session(sync=_Loose(), balance="lb-bsp")
    Path("uneven.toml").write_text('[run]\nbalance = "lb-bsp"\n')
    with pytest.raises(ConfigError, match="balance = 'even' with it"):
        uneven.Session(sync=_Loose())
