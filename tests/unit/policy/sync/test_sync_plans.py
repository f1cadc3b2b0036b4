"""What each policy plans: what moves, with whom, how it is merged, when."""

from __future__ import annotations

import copy
import re

import pytest

from uneven.cli.run import run
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.actions import (
    Add,
    BlockMomentum,
    Elastic,
    Exchange,
    Mean,
    Moment,
    Payload,
    StepPlan,
    Via,
    Wait,
)
from uneven.policy.core.views import SyncView
from uneven.policy.sync import (
    ASP,
    BMUF,
    BSP,
    EASGD,
    MA,
    SSP,
    AnyMerge,
    Backup,
    DiLoCo,
    EvaluationModel,
    Hierarchical,
    LocalSGD,
    Pace,
    RandomGroups,
    Shadow,
    Shuffle,
    SyncPolicy,
    policies,
)
from virtual_time import play

FOUR = (1, 2, 5, 9)
SITES = {1: "east", 2: "west", 5: "east", 9: "west"}


def view(rank: int = 5, clock: int = 0, members: tuple[int, ...] = FOUR, **rest: object) -> SyncView:
    return SyncView(rank=rank, clock=clock, members=members, **{"sites": SITES, **rest})  # type: ignore[arg-type]


def exchanged(policy: SyncPolicy, steps: int = 12) -> list[int]:
    return [clock for clock in range(steps) if policy.plan(view(clock=clock)).exchanges]


def only(policy: SyncPolicy, clock: int = 0) -> Exchange:
    (one,) = policy.plan(view(clock=clock)).exchanges
    return one


def test_asp_adds_each_step_to_the_shared_copy_and_waits_for_nobody() -> None:
    one = only(ASP(), clock=50)
    assert (one.payload, one.via, one.moment) == (Payload.DELTA, Via.SERVER, Moment.STEP)
    assert (one.members, one.merge, one.quorum) == (FOUR, Add(1 / 4), None)
    assert ASP().plan(view(clock=50)).waits == ()
    assert only(ASP(scale=1.0)).merge == Add(1.0)
    assert ASP().plan(view(members=(5, 9))).exchanges[0].merge == Add(1 / 2), "after two have left"


def test_ssp_is_asp_with_a_wait() -> None:
    policy = SSP(staleness=3)
    assert [policy.plan(view(clock=clock)).waits for clock in (0, 3)] == [(), ()]
    assert policy.plan(view(clock=4)).waits == (Wait(FOUR, 1),)
    assert policy.plan(view(clock=10)).exchanges == ASP().plan(view(clock=10)).exchanges
    assert SSP(staleness=0).plan(view(clock=1)).waits == (Wait(FOUR, 1),)


def test_backup_does_without_the_spares_but_never_without_all() -> None:
    assert [only(Backup(spares=spares)).quorum.count for spares in (0, 1, 3, 4, 9)] == [4, 3, 1, 1, 1]
    one = only(Backup())
    assert (one.payload, one.via, one.moment, one.merge) == (Payload.GRADIENT, Via.SERVER, Moment.BACKWARD, Mean())


def test_local_sgd_counts_its_blocks_from_the_end_of_the_warm_up() -> None:
    policy = LocalSGD(every=4, warmup=3)
    plans = [policy.plan(view(clock=clock)) for clock in range(12)]
    assert all(plan == BSP().plan(view()) for plan in plans[:3])
    assert [clock for clock in range(3, 12) if plans[clock].exchanges] == [6, 10]
    one = only(policy, clock=6)
    assert (one.payload, one.via, one.moment, one.merge) == (Payload.PARAMETERS, Via.GROUP, Moment.STEP, Mean())


def test_the_merges_of_blocks() -> None:
    assert only(MA(every=1)).merge == Mean()
    assert only(MA(every=1, by_samples=False)).merge == Mean(by_samples=False)
    assert only(BMUF(every=1, momentum=0.5, block_lr=2.0, nesterov=True)).merge == BlockMomentum(0.5, 2.0, True)
    assert only(BMUF(every=1, warmup_samples=640)).merge == BlockMomentum(0.875, warmup_samples=640)
    assert only(DiLoCo(every=1)).merge == BlockMomentum(0.9, 0.7, True)
    assert only(EASGD(alpha=0.25, every=1)).merge == Elastic(0.25)
    assert only(EASGD(every=1)).merge == Elastic(0.9 / 4), "of four members"
    for policy in (MA(every=5), BMUF(every=5), DiLoCo(every=5), EASGD(every=5)):
        assert exchanged(policy, 15) == [4, 9, 14]


def test_easgd_meets_the_copy_alone() -> None:
    one = only(EASGD(every=1))
    assert (one.payload, one.via, one.moment) == (Payload.PARAMETERS, Via.SERVER, Moment.STEP)


def test_easgd_together_needs_no_copy_and_no_more_than_the_distance() -> None:
    policy = EASGD(every=1, together=True)
    assert (only(policy).via, only(policy).merge) == (Via.GROUP, Elastic(0.9 / 4))
    assert policy.facts.pace is Pace.TOGETHER
    assert Shadow(policy).facts.pace is Pace.OWN
    with pytest.raises(ConfigError, match=r"alpha = 0\.6 with 4 workers .* at most 0\.5"):
        only(EASGD(alpha=0.6, every=1, together=True))


def test_a_site_speaks_once_in_a_hierarchy() -> None:
    policy = Hierarchical(every=4)
    (near,) = policy.plan(view(rank=5, clock=0)).exchanges
    assert (near.payload, near.members, near.moment) == (Payload.GRADIENT, (1, 5), Moment.BACKWARD)
    again, far = policy.plan(view(rank=9, clock=3)).exchanges
    assert again.members == (2, 9)
    assert (far.payload, far.members, far.parties, far.merge) == (Payload.PARAMETERS, FOUR, ((1, 5), (2, 9)), Mean())
    assert policy.plan(view(clock=3, sites={})) == BSP().plan(view())
    lonely = {**SITES, 5: "north"}
    assert policy.plan(view(clock=0, sites=lonely)).exchanges == (), "nobody to share the gradient with"
    assert len(policy.plan(view(clock=3, sites=lonely)).exchanges) == 1


def test_a_hierarchy_notices_that_somebody_has_moved_even_if_the_members_stay() -> None:
    policy = Hierarchical(every=4)
    assert policy.plan(view(rank=5)).exchanges[0].members == (1, 5)
    assert policy.plan(view(rank=5, sites={**SITES, 5: "west"})).exchanges[0].members == (2, 5, 9)


@pytest.mark.parametrize("inner", [ASP(), EASGD(every=3), MA(every=3), LocalSGD(every=3), BMUF(every=3), DiLoCo()])
def test_a_shadow_changes_the_moment_and_nothing_else(inner: SyncPolicy) -> None:
    shadow = Shadow(inner)
    for clock in range(12):
        plan, bright = shadow.plan(view(clock=clock)), inner.plan(view(clock=clock))
        assert not plan.waits
        assert [(e.payload, e.members, e.merge, e.via) for e in plan.exchanges] == [
            (e.payload, e.members, e.merge, e.via) for e in bright.exchanges
        ]
        assert {e.moment for e in plan.exchanges} <= {Moment.BACKGROUND}
    assert shadow.evaluation_model is inner.evaluation_model
    assert shadow.facts is not None
    assert shadow.facts.pace is Pace.OWN
    assert shadow.facts.waits == "no worker"


def test_a_name_in_a_wrapper_means_every_step_unless_it_says_otherwise() -> None:
    assert exchanged(Shadow("easgd"), 4) == exchanged(Shadow("ma"), 4) == exchanged(Shuffle("ma"), 4) == [0, 1, 2, 3]
    assert exchanged(Shadow("easgd:every=2"), 4) == exchanged(Shuffle("local:every=2"), 4) == [1, 3]
    assert exchanged(Shadow(EASGD()), 8) == [3, 7], "an object is taken as it is"


class Quiet(SyncPolicy):
    """From outside, without facts."""

    def __init__(self, inner: SyncPolicy) -> None:
        self.inner = inner

    def plan(self, view):  # type: ignore[no-untyped-def]
        return self.inner.plan(view)


def test_a_shadow_takes_a_policy_it_has_never_heard_of_and_checks_it_as_it_plans() -> None:
    shadow = Shadow(Quiet(MA(every=1)))
    assert {one.moment for one in shadow.plan(view()).exchanges} == {Moment.BACKGROUND}
    assert shadow.facts is None
    with pytest.raises(ConfigError, match="gradient does not fit the moment 'background'"):
        Shadow(Quiet(BSP())).plan(view())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Shadow(BSP()), "cannot arrive after their step: use shadow:ma:every=1"),
        (lambda: Shadow(Backup()), "use shadow:asp"),
        (lambda: Shadow(LocalSGD(every=6, warmup=1)), "use shadow:ma:every=6"),
        (lambda: Shadow(Hierarchical(every=5)), "use shadow:ma:every=5"),
        (lambda: Shadow(SSP()), "no worker waits: use shadow:asp"),
        (lambda: Shadow(Shuffle(MA(every=3))), "wait for each other in a ring: use shadow:ma:every=3"),
        (lambda: Shuffle(BSP()), "drift apart: use shuffle:ma"),
        (lambda: Shuffle(Backup()), "drift apart: use shuffle:ma"),
        (lambda: Shuffle(Hierarchical()), "drift apart: use shuffle:ma"),
        (lambda: Shuffle(LocalSGD(warmup=1)), "drift apart: use shuffle:ma"),
        (lambda: Shuffle(ASP()), "exchange with a server and not in groups: use shuffle:ma:every=1"),
        (lambda: Shuffle(Shadow("ma")), "exchange with a server"),
        (lambda: Shuffle(Shuffle()), "exchange with a server|divide"),
        (lambda: Shuffle(BMUF(every=7)), r"\(BlockMomentum\).*use shuffle:ma:every=7"),
        (lambda: Shuffle(Quiet(MA())), "has no facts"),
    ],
)
def test_wrappers_refuse_what_makes_no_sense_and_name_the_nearest(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    "spec",
    [
        *("ssp:staleness=-1", "ssp:staleness=1.5", "ssp:staleness=true", "ssp:staleness=many"),
        *("asp:scale=0", "asp:scale=2", "backup:spares=-1", "local:every=0", "local:warmup=-1"),
        *("ma:every=0.5", "ma:by_samples=1", "easgd:alpha=0", "easgd:alpha=1.5", "easgd:alpha=nan", "easgd:every=0"),
        *("bmuf:momentum=1", "bmuf:momentum=-0.1", "bmuf:block_lr=0", "bmuf:nesterov=1"),
        *("diloco:outer_lr=inf", "diloco:outer_momentum=1", "hierarchical:every=0", "shuffle:columns=1"),
        *("shuffle:groups=digits,base=1", "shuffle:groups=random,size=1", "shuffle:groups=random,seed=-1"),
        "shuffle:groups=sites,inside=0",
    ],
)
def test_numbers_out_of_range_are_refused_by_name_key_and_value(spec: str) -> None:
    key, value = spec.rpartition(":")[2].split(",")[-1].split("=")
    with pytest.raises(ConfigError, match=rf"(?i){key} = .*{value}.* must be"):
        policies.resolve(spec)


def test_which_model_is_evaluated() -> None:
    found = {name: policies.resolve(name).evaluation_model for name in policies}
    assert {name for name, what in found.items() if what is EvaluationModel.REPLICA} == {"bsp", "backup"}
    of_the_mean = {name for name, what in found.items() if what is EvaluationModel.MEAN}
    assert of_the_mean == {
        *("local", "ma", "shuffle", "hierarchical", "regional"),
        *("blocks", "sparse-local", "topk", "geo", "scout"),
    }
    assert policies.resolve("blocks:merge=block-momentum:momentum=0.5").evaluation_model is EvaluationModel.CENTRE


def test_a_merge_of_any_kind_is_named_or_given_and_one_that_averages_nothing_is_refused() -> None:
    assert only(AnyMerge(every=1)) == only(LocalSGD(every=1))
    named = policies.resolve("blocks:every=1,merge=block-momentum:momentum=0.5")
    assert only(named) == only(AnyMerge(every=1, merge=BlockMomentum(0.5))) == only(BMUF(every=1, momentum=0.5))
    assert repr(named).startswith("AnyMerge(every=1, merge=BlockMomentum(momentum=0.5")
    for merge in ("add", "elastic:alpha=0.1"):
        with pytest.raises(ConfigError, match=r"blocks: \w+\(.*does not average parameters: use easgd"):
            policies.resolve(f"blocks:merge={merge}")
    with pytest.raises(UnknownNameError, match="unknown merge 'maen'; did you mean 'mean'"):
        policies.resolve("blocks:merge=maen")


def test_who_goes_on_when_one_dies() -> None:
    """Under these nobody stops; under the others the run ends with a message."""
    facts = {spec: policies.resolve(spec).facts for spec in [*policies, "shadow:ma", "shadow:asp"]}
    go_on = {spec for spec, its in facts.items() if its and not its.stops}
    assert go_on == {"asp", "ssp", "backup", "decoupled", "easgd", "shadow", "shadow:asp"}
    said = str(run.__doc__).partition("under ")[2].partition(", the")[0]  # in the command's help
    assert set(re.split(", | and ", said)) == go_on - {"shadow"} | {"shadow:easgd"}


def test_a_plan_of_many_workers_is_made_once() -> None:
    members = tuple(range(10_000))
    sites = {rank: f"site {rank % 7}" for rank in members}
    for spec in ("bsp", "backup", "local:every=1", "shadow:ma", "shadow:easgd", "hierarchical", "asp"):
        policy = policies.resolve(spec)
        once = policy.plan(SyncView(rank=3, clock=7, members=members, sites=sites))
        assert policy.plan(SyncView(rank=3, clock=7, members=members, sites=dict(sites))) is once, spec
    shuffle = policies.resolve("shuffle:groups=random,size=100")
    first, second = (shuffle.plan(SyncView(rank=3, clock=7, members=members)) for _ in range(2))
    assert first is second
    assert len(first.exchanges[0].members) == 100


def test_who_says_that_the_plan_is_constant() -> None:
    wrapped = [f"shadow:{name}" for name in ("ma", "bmuf", "easgd", "diloco", "local", "ma:every=2", "asp")]
    specs = (*policies, "ma:every=1", "local:every=1,warmup=3", *wrapped)
    found = {spec for spec in specs if policies.resolve(spec).constant}
    shadows = {f"shadow:{name}" for name in ("ma", "bmuf", "easgd", "diloco", "asp")}
    assert found == {"bsp", "asp", "ma:every=1", "topk", "geo", "shadow"} | shadows


def test_who_plans_otherwise_is_not_taken_for_constant() -> None:
    class Named(BSP):
        """Plans as it does."""

    class Now(BSP):
        def plan(self, view: SyncView) -> StepPlan:
            return super().plan(view) if view.clock % 2 else StepPlan()

    class Always(Now):
        @property
        def constant(self) -> bool:
            return True

    assert [one().constant for one in (Named, Now, Always)] == [True, False, True]


def test_what_is_kept_for_quick_answers_stays_small() -> None:
    policy = Shuffle("ma", RandomGroups(size=2, seed=1))
    for clock in range(4000):
        policy.plan(view(clock=clock))
    assert len(policy._group._tables) <= 16
    assert len(policy.inner._plan._known) <= 1024  # type: ignore[attr-defined]


def test_a_copied_policy_plans_alike() -> None:
    for spec in (*policies, "shuffle:groups=random,seed=3"):
        policy = policies.resolve(spec)
        policy.plan(view())
        assert copy.deepcopy(policy).plan(view(clock=9, rank=2)) == policy.plan(view(clock=9, rank=2))


STEPS = 20
UNEVEN = {0: 1.0, 1: 1.0, 2: 1.0, 3: 4.0}  # seconds per step: rank 3 is slow


@pytest.mark.parametrize("staleness", [0, 1, 3, 8])
def test_in_virtual_time_clocks_under_ssp_differ_by_at_most_one_more_than_the_bound(staleness: int) -> None:
    run = play(SSP(staleness=staleness), UNEVEN, STEPS)
    assert run.widest_gap == staleness + 1
    assert run.waited_s[0] > 0


@pytest.mark.parametrize("spec", ["asp", "easgd", "shadow", "shadow:ma", "shadow:bmuf"])
def test_in_virtual_time_nobody_waits_under_policies_of_their_own_pace(spec: str) -> None:
    run = play(policies.resolve(spec), UNEVEN, STEPS)
    assert not any(run.waited_s.values())
    assert run.ends_s == {0: 20.0, 1: 20.0, 2: 20.0, 3: 80.0}


@pytest.mark.parametrize("spec", ["bsp", "local:every=4", "ma:every=5", "shuffle", "hierarchical"])
def test_in_virtual_time_the_slowest_sets_the_pace_where_workers_meet(spec: str) -> None:
    sites = {0: "east", 1: "east", 2: "west", 3: "west"}
    run = play(policies.resolve(spec), UNEVEN, STEPS, sites=sites)
    assert max(run.ends_s.values()) == 80.0
    assert run.waited_s[2] > 40.0


# Not those whose groups change or differ: who waits in a group of before would have to be asked again, as a real
# run takes the step again, and these few lines of virtual time do not.
@pytest.mark.parametrize("spec", [*sorted({*policies} - {"shuffle", "hierarchical"}), "shadow:ma", "local:every=4"])
def test_in_virtual_time_the_rest_goes_on_when_somebody_leaves(spec: str) -> None:
    run = play(policies.resolve(spec), UNEVEN, STEPS, leaves_s={3: 9.0})
    assert [len(run.starts_s[rank]) for rank in (0, 1, 2)] == [STEPS] * 3
    assert max(run.ends_s.values()) <= 9.0 + STEPS
