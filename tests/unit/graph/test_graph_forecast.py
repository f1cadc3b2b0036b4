"""What the simulator says of a cut graph: the bytes that workers really send, and times that follow from its rates."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from threaded_graphs import features, on_threads, some_graph
from torch import Tensor, nn

from uneven import graph
from uneven.cli import graph_forecast, main
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, steady
from uneven.cluster.pure.simulate.graph_steps import phases
from uneven.cluster.pure.simulate.phases import WorkPhase, play
from uneven.errors import ConfigError, UnknownNameError
from uneven.graph.graph_source import GraphSource

LAYERS = (9, 6, 4, 3)
RATES = {"number_s": 1e-9, "flop_s": 1e-10}


class ReleasedConv(nn.Module):
    """Sums before it multiplies, as DistGNN's authors do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, g: graph.PartedGraph) -> Tensor:
        near, degree = g.sum_and_degree(x)
        found: Tensor = self.linear((near + x) / (degree + 1.0)[:, None])
        return found


def write(path: Path) -> GraphSource:
    tensors = {"x": features(60, LAYERS[0]).float(), "y": torch.arange(60) % LAYERS[-1]}
    return GraphSource(graph.partition(some_graph(), 60, path=path, shares=(3, 2, 1), tensors=tensors))


def sent(g: graph.PartedGraph) -> int:
    """In the second of two epochs."""
    torch.manual_seed(0)
    kind: Any = ReleasedConv if g.how.name != "exact" else lambda i, o: graph.SAGEConv(i, o, aggr="gcn")
    net = nn.ModuleList([kind(i, o) for i, o in pairwise(LAYERS)])
    x, before = g.x, 0
    for _ in range(2):
        before = g.sent_bytes
        if g.how.name != "exact":
            g.exchange.begin()  # type: ignore[union-attr]
        h = x
        for conv in net:
            h = F.relu(conv(h, g))
        before -= g.sent_bytes
        loss = g.loss(F.cross_entropy, h, g.y)  # whose divisor is a number of all workers, and no row
        before += g.sent_bytes
        loss.backward()
    return g.sent_bytes - before


@pytest.mark.parametrize("exchange", ["exact", "cd-0", "0c"])
def test_bytes_are_those_that_workers_send(tmp_path: Path, exchange: str) -> None:
    load = graph_forecast.load_of(write(tmp_path / "p"), 3)
    each = phases(load, exchange, LAYERS, **RATES)
    real = on_threads(tmp_path / "p", 3, sent, exchange=exchange)
    told = [sum(sum(one.sent_bytes[rank]) for one in each if one.sent_bytes) for rank in range(3)]
    assert told == real
    late = phases(load, "cd-r:r=5", LAYERS, **RATES)
    if exchange == "cd-0":
        assert sum(one.all_bytes for one in late) == pytest.approx(sum(real) / 5)
    with pytest.raises(UnknownNameError, match="cd-9"):
        phases(load, "cd-9", LAYERS, **RATES)


def spec(*nodes: Node, **more: Any) -> ClusterSpec:
    return ClusterSpec(name="c", nodes=nodes, **more)


def test_a_step_ends_when_the_last_has_what_it_waits_for() -> None:
    slow = Node(name="a", cores=0.5)
    fast = Node(name="b", up_bit_per_s=steady(8.0 * 1514 / 1448), latency_s=0.25)
    first, second = WorkPhase((1.0, 1.0), [[0.0, 0.0], [3.0, 0.0]]), WorkPhase((0.5, 4.0))
    # a: 2 s of work; b's 3 bytes leave at 1 s, at a byte a second, and arrive at 4.25 s; then a works for 1 s
    assert play(spec(slow, fast), [first, second], 1) == pytest.approx([5.25])
    late = WorkPhase(first.core_s, first.sent_bytes, late=True)
    assert play(spec(slow, fast), [late, second], 1) == pytest.approx([5.0])
    ring = [WorkPhase((1.0, 3.0), ring_bytes=8.0)]
    ends_s = play(spec(slow, Node(name="b", up_bit_per_s=steady(64.0 * 1514 / 1448))), ring, 2)
    assert ends_s == pytest.approx([4.0, 8.0])  # 3 s of work, and a second for 8 bytes
    with pytest.raises(ConfigError, match="1 nodes, but the graph has parts for 2"):
        play(spec(slow), [first], 1)
    with pytest.raises(ConfigError, match="step 0 never ends"):
        play(spec(slow, fast), [WorkPhase((1.0, float("inf")))], 1)


def test_the_forecast_says_how_long_an_epoch_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "p")
    cluster = tmp_path / "c.toml"
    nodes = "".join(f'[[nodes]]\nname = "n{one}"\nup_bit_per_s = 1e5\ndown_bit_per_s = 1e5\n' for one in range(3))
    cluster.write_text(f'name = "c"\n{nodes}')
    asked = ["graph", "forecast", str(tmp_path / "p"), str(cluster), "--core", "80,10"]
    with pytest.raises(SystemExit) as ended:
        main([*asked, "--layers", "9,6,3"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    rows = {words[0]: words[1:] for line in printed.splitlines() if (words := line.split())}
    took_s = {name: float(rows[name][0]) * {"ms": 1e-3, "s": 1.0}[rows[name][1]] for name in ("exact", "cd-0")}
    assert took_s["exact"] < took_s["cd-0"]
    assert "9 → 6 → 3" in printed
    assert "Take exact" in printed
    with pytest.raises(SystemExit):
        main(asked)
    assert "9 → 64 → 3" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*asked, "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    assert told["layers"] == [9, 64, 3]
    assert {row["exchange"] for row in told["rows"]} >= {"exact", "cd-0"}
    for more, wrong in ((["--layers", "9,x"], "--layers 9,x"), (["--core", "80"], "--core 80:"),
                        (["--core", "80,-1"], "--core 80,-1:")):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main([*asked, *more])
        assert ended.value.code == 2
        assert wrong in capsys.readouterr().err
