"""Policies for far sites: their plans, options and refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.actions import Add, Far, Mean, Moment, Payload, Significant, StepPlan, TopK, Via, Wait
from uneven.policy.core.views import SyncView
from uneven.policy.sync import policies, refused, unsited
from uneven.runtime.world import discover

SITES = {0: "east", 1: "west", 2: "east", 3: "west"}


def plan(  # type: ignore[no-untyped-def]
    policy: str, clock: int = 0, rank: int = 1, sites: dict[int, str] = SITES, changes: bool = False
):
    view = SyncView(rank=rank, clock=clock, members=(0, 1, 2, 3), sites=sites, changes=changes)
    return policies.resolve(policy).plan(view)


def test_a_bandwidth_needs_a_threshold_up_to_which_it_may_be_kept() -> None:
    _, far = plan("geo:bsp:threshold=0.02,mbit=16,most=0.3").exchanges
    control = far.select.control()
    control.measured(3e6, 1.0)
    assert control.applied(0.02) == 0.025
    with pytest.raises(ConfigError, match="give a bandwidth and a largest threshold, or a soft part below 1"):
        policies.resolve("geo:bsp:mbit=16")
    with pytest.raises(ConfigError, match="most = 0 and soft = 0"):
        policies.resolve("geo:bsp:soft=0.1")


def test_with_a_soft_threshold_a_line_with_room_carries_more() -> None:
    _, far = plan("geo:bsp:threshold=0.02,mbit=16,soft=0.1").exchanges
    control = far.select.control()
    for _ in range(40):
        control.measured(0.0, 1.0)
    assert control.applied(0.02) == pytest.approx(0.002)


def test_a_policy_for_sites_says_what_it_is_where_there_is_one() -> None:
    one = dict.fromkeys(range(4), "lab")
    for policy in ("geo", "hierarchical", "scout"):
        assert "at one site, 'lab'" in str(unsited(policies.resolve(policy), one))
        assert unsited(policies.resolve(policy), SITES) is None
        assert unsited(policies.resolve(policy), {0: "lab"}) is None
    for policy in ("bsp", "local", "sparse-local", "topk"):
        assert unsited(policies.resolve(policy), one) is None


def test_gaia_averages_inside_and_adds_between_sites() -> None:
    near, far = plan("geo:bsp:threshold=0.02").exchanges
    assert (near.payload, near.members) == (Payload.GRADIENT, (1, 3))
    assert (far.payload, far.members, far.parties) == (Payload.DELTA, (0, 1, 2, 3), ((0, 2), (1, 3)))
    assert (far.moment, far.select) == (Moment.STEP, Significant(0.02, by_rate=True))
    assert plan("geo").divided
    assert plan("geo:lead=2,barrier_kb=8").exchanges[-1].far.barrier_bytes == 8000
    assert not plan("geo:divide=false").divided


def test_a_site_at_its_own_pace_pushes_at_home_and_its_copy_tells_the_others() -> None:
    near, far = plan("geo:ssp:staleness=2,threshold=0.02").exchanges
    assert (near.payload, near.members, near.via, near.merge) == (Payload.DELTA, (1, 3), Via.SERVER, Add(1 / 4))
    assert plan("geo:ssp:divide=false").exchanges[0].merge == Add(1 / 2)
    assert (far.members, far.parties, far.via) == ((0, 1, 2, 3), ((0, 2), (1, 3)), Via.SERVER)
    assert (far.select, far.merge, far.far.lead) == (Significant(0.02, by_rate=True), Add(), 0)
    assert not plan("geo:ssp:staleness=2").divided, "its scale does that"
    assert not plan("geo:ssp:staleness=2", 2).waits
    everybody = (0, 1, 2, 3)
    assert plan("geo:ssp:staleness=2", 5).waits == (Wait(everybody, 3),)
    assert plan("geo:ssp:staleness=2,lead=1", 5).waits == (Wait((1, 3), 3), Wait(everybody, 2))
    assert plan("geo:ssp:staleness=2,lead=4", 5).waits == (Wait((1, 3), 3),)
    assert plan("geo:ssp:staleness=2", 5, sites={}) == plan("ssp:staleness=2", 5)
    alone = plan("geo:ssp", sites={0: "a", 1: "b", 2: "a", 3: "c"}).exchanges[0]
    assert (alone.members, alone.merge.scale) == ((1,), 1 / 4)


def test_what_sites_at_their_own_pace_exchange_is_carried_and_nothing_like_it() -> None:
    carried = plan("geo:ssp:staleness=2,threshold=0.02,lead=1", 9)
    near, far = carried.exchanges
    assert refused(carried) is None
    for other in (
        (near, replace(far, via=Via.GROUP)), (near, replace(far, select=TopK(0.1))), (near, replace(far, merge=Mean())),
        (near, replace(far, far=Far(barrier_bytes=8.0))), (near, replace(far, moment=Moment.BACKGROUND)),
        (near, far, far), (replace(near, members=(0, 1, 2, 3)), far),
    ):  # fmt: skip
        assert refused(StepPlan(exchanges=other)), other
    assert refused(replace(carried, waits=(Wait((0, 1), 3),)))


def test_options_at_the_end_are_the_wrappers_where_what_it_holds_has_none_of_the_name() -> None:
    assert repr(policies.resolve("geo:bsp:threshold=0.02")) == repr(policies.resolve("geo:threshold=0.02:bsp"))
    assert repr(policies.resolve("shadow:ma:every=3,load=0.1")) == repr(policies.resolve("shadow:load=0.1:ma:every=3"))
    for unknown in ("thresh=0.02", "within=9"):
        with pytest.raises(UnknownNameError, match=unknown.partition("=")[0]):
            policies.resolve(f"geo:bsp:{unknown}")


def test_threshold_schedules() -> None:
    def at(policy: str, clock: int) -> float:
        limit: float = plan(policy, clock).exchanges[-1].select.threshold
        return limit

    assert [at("geo:threshold=0.1", clock) for clock in (0, 8, 99)] == [0.1] * 3
    assert not plan("geo:threshold=0.1,schedule=fixed").exchanges[-1].select.by_rate
    assert [at("geo:threshold=0.1,schedule=sqrt", clock) for clock in (0, 3, 99)] == pytest.approx([0.1, 0.05, 0.01])
    assert [at("geo:threshold=0.1,flush=4", clock) for clock in range(5)] == [0.1, 0.1, 0.1, 0.0, 0.1]
    flush = plan("geo:threshold=0.1,flush=4,mbit=1,most=0.5", 3).exchanges[-1].select
    assert flush.whole, "a bandwidth would raise its threshold again"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("geo:threshold=-0.1", "threshold = -0.1 must be a number"),
        (f"geo:threshold={math.inf}", "threshold"),
        ("geo:schedule=never", "rate, sqrt, fixed"),
        ("geo:bits=2", "32 or 16"),
        ("geo:flush=-1", "at least 0"),
        ("geo:divide=2", "true or false"),
        ("geo:barrier_kb=8", "barrier_kb = 8 without a lead"),
        ("geo:local", "inside a site"),
        ("geo:asp", "geo:ssp:staleness=2"),
        ("geo:easgd", "geo:ssp:staleness=2"),
        ("geo:ssp:hubs=true", "hubs with SSP"),
        ("geo:ssp:lead=1,barrier_kb=8", "barrier_kb with SSP"),
        ("scout:geo:ssp", "at their own pace"),
        ("shadow:geo:ssp", "bounds the lead of workers"),
        ("sparse-local:density=0", "density = 0"),
        ("sparse-local:density=1.5", "density = 1.5"),
        ("sparse-local:bits=3", "32, 16 or 2"),
        ("sparse-local:every=0", "every = 0"),
        ("sparse-local:chunk=5000", "use 1 to 4096"),
        ("sparse-local:every=4,delay=4", "delay = 4 with every = 4"),
        ("sparse-local:delay=-1", "delay = -1"),
        ("topk:density=2", "topk: density = 2"),
        ("shadow:geo", "exchanges gradients"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        policies.resolve(spec)


def test_sparse_local_speaks_after_each_block_for_a_site_or_for_each_worker() -> None:
    spec = "sparse-local:every=4,density=0.05,bits=16,chunk=64"
    assert [len(plan(spec, clock).exchanges) for clock in range(4)] == [1, 1, 1, 2]
    near, far = plan(spec, 3).exchanges
    assert (near.members, far.parties, far.select) == ((1, 3), ((0, 2), (1, 3)), TopK(0.05, 64, 16))
    everybody = ((0,), (1,), (2,), (3,))
    for alone in (plan(f"{spec},by_site=false", 3), plan(spec, 3, sites={})):
        assert [one.parties for one in alone.exchanges] == [everybody]
    assert plan(f"{spec},delay=2", 3).exchanges[-1] == replace(far, delay=2)
    assert plan("topk:density=0.3", 0).exchanges[-1].select == TopK(0.3)


def test_only_the_workers_behind_narrow_links_select() -> None:
    far = plan("sparse-local:every=1,density=0.1,narrow=east").exchanges[-1]
    assert [far.select_of(rank) for rank in range(4)] == [TopK(0.1, bits=2), TopK(1.0)] * 2
    both = plan("topk:narrow=east/west").exchanges[-1]
    assert {both.select_of(rank) for rank in range(4)} == {TopK(0.01)}
    with pytest.raises(ConfigError, match="narrow = 'c', but the sites are 'east', 'west'"):
        plan("topk:narrow=c")
    assert plan("topk:narrow=c", changes=True), "its workers may come later"
    with pytest.raises(ConfigError, match="an all-reduce and a server need one format"):
        replace(plan("local:every=1").exchanges[0], far=Far(whole=(0,)))


def test_with_one_site_gaia_is_bsp() -> None:
    assert plan("geo:bsp", sites=dict.fromkeys(range(4), "here")) == plan("bsp")


def test_each_worker_of_a_machine_may_be_at_another_site() -> None:
    def site(text: str, local_rank: int) -> str:
        return discover({"UNEVEN_SITE": text, "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": "3"}).site

    assert [site("us, us,eu", rank) for rank in range(3)] == ["us", "us", "eu"]
    assert [site("us", rank) for rank in range(3)] == ["us"] * 3
    for text, rank, why in (
        *(("us,eu", 0, "names 2 sites, but this machine has 3 workers"), ("us,us,eu,eu", 0, "names 4 sites")),
        ("us,,eu", 1, "an empty name"),
    ):
        with pytest.raises(ConfigError, match=why):
            site(text, rank)


@pytest.mark.parametrize("spec", ["topk", "sparse-local:every=3", "geo"])
@pytest.mark.parametrize("members", [(0,), (0, 1), (0, 1, 2)])
def test_where_workers_leave_and_join_a_plan_does_not_depend_on_the_number_of_sites(
    spec: str, members: tuple[int, ...]
) -> None:
    """A worker that learns later than others of a loss makes the same rounds; one site is one party."""
    policy, sites = policies.resolve(spec), {0: "a", 1: "a", 2: "b"}
    for rank in members:
        near, far = policy.plan(SyncView(rank, 2, members, 0, sites, changes=True)).exchanges
        home = tuple(one for one in members if sites[one] == sites[rank])
        assert (near.payload, near.members) == (Payload.GRADIENT, home)
        assert far.payload is Payload.DELTA
        assert home in far.parties
        assert len(far.parties) == len({sites[one] for one in members})
