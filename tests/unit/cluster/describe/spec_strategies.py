"""Arbitrary cluster descriptions, for property tests. Strategies are made once: Hypothesis checks each new one."""

from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from uneven.cluster.pure.describe.spec import (
    ClusterSpec,
    Do,
    Event,
    Measured,
    Node,
    Saturating,
    SiteLink,
    Trace,
    Workload,
    steady,
)
from uneven.policy.core.cost import Affine

positive = st.floats(1e-9, 1e9)
small = st.floats(1e-6, 10.0)
counts = st.integers(1, 10**12)
maybe = st.none


@cache
def traces(most: float = 1e12) -> st.SearchStrategy[Trace]:
    value = st.floats(1e-3, most)
    varying = st.builds(
        Trace,
        values=st.lists(value, min_size=1, max_size=5).map(tuple),
        step_s=st.floats(1e-3, 1e9) | st.just(float("inf")),
        speedup=st.floats(1e-3, 1e3),
        source=st.text(max_size=8),
    )
    return value.map(steady) | varying


costs = st.one_of(
    st.builds(Affine, small, small),
    st.builds(Saturating, small, small, small),
    st.builds(lambda step, a, b: Measured((1, 1 + step), (a, a + b)), st.integers(1, 99), small, small),
)


names = st.lists(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,8}\Z"), min_size=1, max_size=4, unique=True)
workloads = st.builds(Workload, global_batch=counts, per_sample_core_s=small, exchange_core_s=small)
nodes = st.builds(
    Node,
    name=st.just("node"),
    cores=small,
    share=traces(1.0),
    load=st.just(steady(0.0)) | traces(64.0),
    memory_bytes=maybe() | counts,
    up_bit_per_s=maybe() | traces(),
    down_bit_per_s=maybe() | traces(),
    latency_s=small,
    site=st.sampled_from(["", "eu", 'a "quoted"\\site', "東京"]),
    cost=maybe() | costs,
    jitter=small,
    period_s=small,
    memory_samples=maybe() | counts,
    price_per_hour=small,
    spot_price_per_hour=small,
    spot=maybe() | traces(),
    restart_s=small,
)
links_between = st.builds(
    SiteLink,
    between=st.just(("a", "b")),
    bit_per_s=traces(),
    back_bit_per_s=maybe() | traces(),
    latency_s=small,
    price_per_gb=small,
)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    called = draw(names)
    those = tuple(replace(draw(nodes), name=name) for name in called)
    sites = tuple(dict.fromkeys(one.site for one in those))
    places = [(left, right) for at, left in enumerate(sites) for right in sites[at + 1 :]]
    times = {"at_s": draw(st.floats(0, 1e6))} if draw(st.booleans()) else {"at_iteration": draw(st.integers(0, 1000))}
    events = [
        Event(do=Do.SLOW, node=called[0], factor=draw(st.floats(0.01, 1)), for_s=draw(positive), **times),
        Event(do=Do.CUT_LINK, node=called[-1], bit_per_s=draw(positive), **times),
        Event(do=Do.CUT_LINK, node=called[-1], factor=0.0, for_s=draw(positive), **times),
        Event(do=Do.STOP, node=called[0], for_s=draw(positive), **times),
        Event(do=draw(st.sampled_from([Do.KILL, Do.LEAVE])), node=called[0], **times),
    ]
    links = tuple(replace(draw(links_between), between=pair) for pair in places if draw(st.booleans()))
    events += [Event(do=Do.CUT_LINK, between=link.between[::-1], factor=0.5, **times) for link in links]
    return ClusterSpec(
        name=draw(st.text(min_size=1, max_size=12)),
        about=draw(st.text(max_size=30)),
        assumptions=tuple(draw(st.lists(st.text(max_size=12), max_size=2))),
        nodes=those,
        events=tuple(event for event in events if draw(st.booleans())),
        links=links,
        currency=draw(st.sampled_from(["$", "€", "credits"])),
        workload=draw(workloads),
    )
