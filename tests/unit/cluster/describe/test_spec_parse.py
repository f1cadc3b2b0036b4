"""Descriptions as TOML: what they mean, that they survive the way out and in, and what is said about mistakes."""

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from spec_strategies import clusters

from uneven.cluster.pure.describe.parse import from_toml, to_toml
from uneven.cluster.pure.describe.quantities import Recorded
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
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.cost import Affine

NODE = '[[nodes]]\nname = "a"\n'


def no_files(recorded: Recorded) -> tuple[float, ...]:
    raise ConfigError(f"no file {recorded}")


def parse(text: str, values: tuple[float, ...] | None = None) -> ClusterSpec:
    read = no_files if values is None else lambda _: values
    return from_toml('name = "test"\n' + text, "test.toml", read)


def one(text: str, values: tuple[float, ...] | None = None) -> Node:
    return parse(NODE + text, values).nodes[0]


def test_every_key_arrives() -> None:
    spec = parse("""
about = "all of it"
assumptions = ["one", "two"]
[workload]
global_batch = 64
per_sample_core_s = 1
[defaults]
cores = 2
site = "eu"
[[nodes]]
name = "a"
share = { values = [1, 0.5], step_s = 10, speedup = 2 }
load = 3
memory_bytes = 1_000
up_bit_per_s = 1e6
down_bit_per_s = 2e6
latency_s = 0.001
cost = { kind = "affine", overhead_s = 0.1, per_sample_s = 0.01 }
jitter = 0.1
memory_samples = 99
[[nodes]]
name = "b"
cores = 0.5
site = "us"
cost = { kind = "saturating", floor_s = 0.2, overhead_s = 0.1, per_sample_s = 0.01 }
[[nodes]]
name = "c"
cost = { kind = "measured", points = [[1, 0.01], [32, 0.02]] }
[[links]]
between = ["eu", "us"]
bit_per_s = 5e6
latency_s = 0.04
[[events]]
do = "slow"
node = "b"
at_s = 30
factor = 0.5
for_s = 10
[[events]]
do = "join"
node = "c"
at_iteration = 7
""")
    assert spec == ClusterSpec(
        name="test",
        about="all of it",
        assumptions=("one", "two"),
        workload=Workload(global_batch=64, per_sample_core_s=1.0),
        nodes=(
            Node(
                name="a", cores=2.0, share=Trace(values=(1.0, 0.5), step_s=10.0, speedup=2.0), load=steady(3.0),
                memory_bytes=1000, up_bit_per_s=steady(1e6), down_bit_per_s=steady(2e6), latency_s=0.001, site="eu",
                cost=Affine(0.1, 0.01), jitter=0.1, memory_samples=99,
            ),
            Node(name="b", cores=0.5, site="us", cost=Saturating(0.2, 0.1, 0.01)),
            Node(name="c", cores=2.0, site="eu", cost=Measured((1, 32), (0.01, 0.02))),
        ),
        links=(SiteLink(between=("eu", "us"), bit_per_s=steady(5e6), latency_s=0.04),),
        events=(
            Event(do=Do.SLOW, node="b", at_s=30.0, factor=0.5, for_s=10.0),
            Event(do=Do.JOIN, node="c", at_iteration=7),
        ),
    )  # fmt: skip
    assert spec.initial_members == ("a", "b")


def test_a_count_makes_numbered_nodes() -> None:
    assert [node.name for node in parse('[[nodes]]\nname = "gpu-"\ncount = 3').nodes] == ["gpu-0", "gpu-1", "gpu-2"]
    assert [node.name for node in parse('[[nodes]]\nname = "gpu"\ncount = 1').nodes] == ["gpu0"]


def test_counted_nodes_start_a_trace_at_different_values() -> None:
    spec = parse('[[nodes]]\nname = "a"\ncount = 3\nload = { values = [0, 1, 2, 3], step_s = 1, rotate = 3 }')
    assert [node.load.values for node in spec.nodes] == [(0, 1, 2, 3), (3, 0, 1, 2), (2, 3, 0, 1)]


def test_recorded_values_are_scaled_and_clipped() -> None:
    text = 'share = { file = "x.npy", step_s = 300, speedup = 60, scale = -0.01, offset = 1.0, least = 0.1 }'
    trace = one(text, (0.0, 25.0, 95.0, 300.0)).share
    assert trace == Trace(values=(1.0, 0.75, 0.1, 0.1), step_s=300.0, speedup=60.0, source="x.npy")
    assert one('load = { file = "x.npy", step_s = 1, scale = -1, offset = 2 }', (1.0, 5.0)).load.values == (1.0, 0.0)
    assert one('load = { file = "x.npy", step_s = 1, most = 4 }', (1.0, 5.0)).load.values == (1.0, 4.0)


def test_a_window_of_recorded_values() -> None:
    values = tuple(map(float, range(10)))
    assert one('load = { file = "x.npy", step_s = 1, first = 3, steps = 2 }', values).load.values == (3.0, 4.0)
    assert one('load = { file = "x.npy", step_s = 1, first = 8 }', values).load.values == (8.0, 9.0)
    for wrong in ("first = 9, steps = 2", "first = -1", "steps = 0", "first = 10"):
        with pytest.raises(ConfigError, match="do not fit the 10 recorded values"):
            one(f'load = {{ file = "x.npy", step_s = 1, {wrong} }}', values)


def test_each_counted_node_has_its_row() -> None:
    asked: list[Recorded] = []

    def read(recorded: Recorded) -> tuple[float, ...]:
        asked.append(recorded)
        return (float(recorded.row or 0),)

    text = 'name = "t"\n[[nodes]]\nname = "a"\ncount = 2\nload = { file = "x.npz", key = "cpu", rows = [17, 4] }'
    spec = from_toml(text, "t.toml", read)
    assert [node.load.values for node in spec.nodes] == [(17.0,), (4.0,)]
    assert asked == [Recorded(file="x.npz", key="cpu", row=17), Recorded(file="x.npz", key="cpu", row=4)]
    assert spec.nodes[0].load.source == "x.npz, key cpu, row 17"


def test_presence_becomes_comings_and_goings() -> None:
    spec = parse("""
[[nodes]]
name = "stays"
[[nodes]]
name = "spot"
count = 3
present = { values = [2, 0, 1, 1, 3], step_s = 100, speedup = 10 }
""")
    assert spec.initial_members == ("stays", "spot0", "spot1")
    assert [(event.at_s, event.do, event.node) for event in spec.events] == [
        (10.0, Do.LEAVE, "spot0"),
        (10.0, Do.LEAVE, "spot1"),
        (20.0, Do.JOIN, "spot0"),
        (40.0, Do.JOIN, "spot1"),
        (40.0, Do.JOIN, "spot2"),
    ]
    with pytest.raises(ConfigError, match=r"\[\[nodes\]\] 'b' present: node 'b' is never present"):
        parse(NODE + '[[nodes]]\nname = "b"\npresent = 0')


@settings(max_examples=40)
@given(clusters())
def test_out_and_in_again_is_the_same(spec: ClusterSpec) -> None:
    text = to_toml(spec)
    tomllib.loads(text)
    assert from_toml(text, "x.toml", no_files) == spec


def test_a_cost_of_ones_own_cannot_be_written() -> None:
    class Cubic:
        def seconds(self, samples: int) -> float:
            return 1.0 + samples**3

    with pytest.raises(ConfigError, match="cannot be written as TOML"):
        to_toml(ClusterSpec(name="x", nodes=(Node(name="a", cost=Cubic()),)))


MISTAKES: list[tuple[str, str]] = [
    ("nodes = 3", "test.toml: nodes must be an array of tables: begin each one with [[nodes]]"),
    ("[nodes]\nname = 'a'", "test.toml: nodes must be an array of tables"),
    ("", "test.toml: cluster 'test' has no nodes"),
    ("node = 1", "test.toml: unknown key 'node'; did you mean 'nodes'?"),
    (NODE + "count = 1_000_000_000_000", "'a': count = 1000000000000: give 1 to 100,000"),
    (NODE + f"cores = 1{'0' * 400}", "[[nodes]] 'a' cores: an integer of more than 64 bits"),
    (NODE + "cores = 1e300", "node 'a': cores = 1e+300: it must be positive, from 1e-18 to 1e+18"),
    (NODE + "latency_s = 1e10", "node 'a': latency_s = 10000000000.0: it must be zero or more, and at most 1e+09"),
    (NODE + "[workload]\ngradient_bytes = 9_000_000_000_000_000", "makes more than 100,000 buckets of bucket_b"),
    ("about = 3", "test.toml: about: 3 is of type int; it must be a text in quotation marks"),
    ("assumptions = ['x', 1]", "test.toml: assumptions: item 1: 1 is of type int"),
    ("assumptions = 'x'", "test.toml: assumptions: 'x' is a text; it must be a list"),
    ("workload = 1", "test.toml: workload: 1 is of type int; it must be a table"),
    ("[workload]\nglobal_bach = 1", "test.toml: [workload]: unknown key 'global_bach'; did you mean 'global_batch'?"),
    ("[workload]\nglobal_batch = 1.5", "[workload] global_batch: 1.5 is of type float; it must be a whole number"),
    ("[workload]\nglobal_batch = 0", "[workload]: workload: global_batch = 0: it must be positive"),
    ("[defaults]\nname = 'x'", "test.toml: [defaults]: unknown key 'name'"),
    ("[defaults]\nsahre = 1", "test.toml: [defaults]: unknown key 'sahre'; did you mean 'share'?"),
    ("[defaults]\ncores = 'x'\n" + NODE, "test.toml: [defaults] cores: 'x' is a text; it must be a number"),
    ("[[nodes]]\ncores = 1", "test.toml: [[nodes]] number 1: the key 'name' is missing"),
    ("[[nodes]]\nname = 1", "test.toml: [[nodes]] number 1: 1 is of type int; it must be a text"),
    (NODE + NODE, "test.toml: node 'a' occurs more than once"),
    (NODE + "count = 0", "test.toml: [[nodes]] 'a': count = 0"),
    (NODE + "core = 2", "test.toml: [[nodes]] 'a': unknown key 'core'; did you mean 'cores'?"),
    (NODE + "cores = true", "test.toml: [[nodes]] 'a' cores: True is true or false; it must be a number"),
    (NODE + "cores = nan", "test.toml: [[nodes]] 'a' cores: nan is not a number"),
    (NODE + "cores = -1", "test.toml: [[nodes]] 'a': node 'a': cores = -1.0: it must be positive"),
    (NODE + "share = 1.5", "test.toml: [[nodes]] 'a': node 'a': share reaches 1.5"),
    (NODE + "up_bit_per_s = -5", "test.toml: [[nodes]] 'a' up_bit_per_s: value 0 is -5.0"),
    (NODE + "memory_bytes = 1e9", "[[nodes]] 'a' memory_bytes: 1000000000.0 is of type float; it must be a whole"),
    (NODE + "share = {}", "[[nodes]] 'a' share: a quantity over time is a table with either values"),
    (NODE + "share = { values = [1], file = 'x' }", "either values = [...] or file"),
    (NODE + "share = { value = [1] }", "either values = [...] or file"),
    (
        NODE + "share = { values = [1], stepp_s = 1 }",
        "[[nodes]] 'a' share: unknown key 'stepp_s'; did you mean 'step_s'?",
    ),
    (NODE + "share = { values = [1, 0.5] }", "[[nodes]] 'a' share: 2 values without step_s"),
    (NODE + "share = { values = [1, 'x'], step_s = 1 }", "[[nodes]] 'a' share: item 1: 'x' is a text"),
    (NODE + "share = { values = [1, -1], step_s = 1 }", "[[nodes]] 'a' share: value 1 is -1.0"),
    (NODE + "share = { values = [], step_s = 1 }", "[[nodes]] 'a' share: no values"),
    (NODE + "share = { values = [1], step_s = 0 }", "[[nodes]] 'a' share: step_s = 0.0"),
    (NODE + "share = { file = 'x.npy', step_s = 1 }", "[[nodes]] 'a' share: no file x.npy"),
    (NODE + "share = { file = 'x.npy', rows = [1], row = 1 }", "[[nodes]] 'a' share: give either row or rows"),
    (NODE + "share = { file = 'x.npy', rows = [1, 2] }", "rows has 2 entries for 1 node(s)"),
    (NODE + "share = { file = 'x.npy', column = 1.5 }", "1.5 is of type float"),
    (NODE + "cost = 'x'", "[[nodes]] 'a' cost: 'x' is a text; it must be a number"),
    (NODE + "cost = 0", "a batch of one sample takes no time"),
    (NODE + "network = 'clud'", "unknown network of node 'a' 'clud'; did you mean 'cloud'?"),
    (NODE + "gpus = 0", "[[nodes]] 'a': gpus = 0: give 1 to 100,000"),
    (NODE + "count = 1000\ngpus = 1000", "count · gpus = 1,000,000: give at most 100,000"),
    (NODE + "[workload]\nall_reduce = 'rign'", "unknown workload: all_reduce 'rign'; did you mean 'ring'?"),
    (NODE + "cost = {}", "[[nodes]] 'a' cost: the key 'kind' is missing"),
    (NODE + "cost = { kind = 'afine' }", "[[nodes]] 'a' cost: unknown kind of cost 'afine'; did you mean 'affine'?"),
    (NODE + "cost = { kind = 'affine', overhead_s = 1 }", "'a' cost: per_sample_s: the key 'per_sample_s' is missing"),
    (NODE + "cost = { kind = 'affine', floor_s = 1 }", "[[nodes]] 'a' cost: unknown key 'floor_s'"),
    (NODE + "cost = { kind = 'measured', points = [[1, 0.1], [2]] }", "[[nodes]] 'a' cost: item 1: [2] is not a point"),
    (NODE + "cost = { kind = 'measured', points = [[1, 0.2], [2, 0.1]] }", "'a' cost: a measured cost falls"),
    (NODE + "cost = { kind = 'affine', overhead_s = 1, per_sample_s = -1 }", "affine cost: per_sample_s = -1.0"),
    (NODE + "[[events]]\ndo = 'kill'\nat_s = 1", "[[events]] number 1: event 'kill' needs either a node, or two sites"),
    (NODE + "[[links]]\nbetween = ['a', 'b']\nbit_per_s = 1\nloss = 0.1", "[[links]] number 1: unknown key 'loss'"),
    (NODE + "[[events]]\nnode = 'a'\nat_s = 1", "test.toml: [[events]] number 1: the key 'do' is missing"),
    (NODE + "[[events]]\ndo = 'kil'\nnode = 'a'\nat_s = 1", "number 1 do: unknown event 'kil'; did you mean 'kill'?"),
    (NODE + "[[events]]\ndo = 'kill'\nnode = 'aa'\nat_s = 1", "node in event 'kill': 'aa'; did you mean 'a'?"),
    (
        NODE + "[[events]]\ndo = 'kill'\nnode = 'a'",
        "test.toml: [[events]] number 1: event 'kill' of node 'a' has no at_s",
    ),
    (NODE + "[[events]]\ndo = 'kill'\nnode = 'a'\nat_s = 1\nat_iteration = 1", "has both at_s and at_iteration"),
    (NODE + "[[events]]\ndo = 'kill'\nnode = 'a'\nat = 1", "[[events]] number 1: unknown key 'at'"),
    (NODE + "[[events]]\ndo = 'kill'\nnode = 'a'\nat_iteration = 1.5", "number 1 at_iteration: 1.5 is of type float"),
    (
        NODE + "[[links]]\nbetween = ['eu']\nbit_per_s = 1",
        "test.toml: [[links]] number 1 between: ['eu'] names 1 sites",
    ),
    (NODE + "[[links]]\nbetween = ['eu', 'us']", "test.toml: [[links]] number 1: the key 'bit_per_s' is missing"),
    (NODE + "site = 'eu'\n[[links]]\nbetween = ['eu', 'us']\nbit_per_s = 1", "unknown site in a link: 'us'"),
]


@pytest.mark.parametrize(("text", "complaint"), MISTAKES)
def test_mistakes_are_named_with_file_table_key_and_value(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)) as error:
        parse(text)
    assert str(error.value).startswith("test.toml: ")


@pytest.mark.parametrize(("text", "kind"), [(NODE + "core = 2", UnknownNameError), (NODE + "cores = 0", ConfigError)])
def test_errors_keep_their_class(text: str, kind: type[ConfigError]) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert type(error.value) is kind


@pytest.mark.parametrize(("text", "line"), [("x = ", 2), (NODE + 'site = "eu', 4), (NODE + "cores = 1\ncores = 2", 5)])
def test_what_is_no_toml_is_named_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"^test\.toml is not TOML: .*(line {line}|end of document)"):
        parse(text)


@pytest.mark.parametrize("document", ["about = 'x'", "name = 3"])
def test_a_description_has_a_name(document: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.toml: name: "):
        from_toml(document, "x.toml", no_files)


def test_names_and_texts_are_escaped() -> None:
    awkward: Any = 'tab\t "quote" \\ new\nline \x7f \x01 é 🙂'
    spec = ClusterSpec(name=awkward, nodes=(Node(name="a"),), assumptions=(awkward,))
    assert from_toml(to_toml(spec), "x.toml", no_files) == spec
