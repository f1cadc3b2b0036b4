"""The published measurements: their points, and the cluster of each as its source states it.

Counts of parameters that a source does not state are the usual ones of the model.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from uneven.cluster import files
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, steady
from uneven.cluster.pure.plan import CombinationResult, NoExchangePlayed, combinations, played
from uneven.cluster.pure.simulate import Scenario
from uneven.cluster.pure.simulate.calibrate import MeasuredStep, calibrated, step_s
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Cost
from uneven.policy.sync import carried, policies
from uneven_bench.worlds.outside.play import SourcePoint, cluster, same_step

SHAPED = {"50m": 50e6, "200m": 200e6, "1g": 1e9, "5g": 5e9}
"""The bandwidths of diloco-measured, in bit/s."""

STEPS_OF = {1: 100, 8: 150, 32: 150, 128: 200}
OTHER_STEPS_OF = {
    ("ddp", 1, "50m"): 15,
    ("ddp", 1, "200m"): 35,
    ("localsgd", 1, "50m"): 12,
    ("localsgd", 1, "200m"): 35,
    ("localsgd", 8, "50m"): 80,
    ("diloco", 1, "50m"): 12,
    ("diloco", 1, "200m"): 35,
    ("diloco", 1, "unshaped"): 150,
    ("diloco", 8, "50m"): 80,
}
"""Steps of a run of diloco-measured by its H, and of those with other numbers; ``steps`` of its telemetry."""

PRICE_PER_HOUR = 9.32
"""US dollars for the five machines of diloco-measured, from its README."""

POLLUX_PARAMETERS = {"cifar10": 11_173_962, "imagenet": 25_557_032, "bert": 108_893_186, "yolov3": 61_949_149}
READY = {
    # ResNet-18: parameters of its stages, each a quarter of the operations
    "cifar10": ((0.25, 0.752), (0.5, 0.940), (0.75, 0.987)),
    # ResNet-50: parameters and operations of its stages (He et al., Deep residual learning, table 1)
    "imagenet": ((0.2, 0.666), (0.56, 0.943), (0.81, 0.991)),
    # BERT base: twelve equal layers, then the embeddings, 22 % of the parameters
    "bert": ((0.99, 0.781),),
    # VGG-16: 123.6 million parameters in its linear layers, then those of its last two stages
    "VGG-16": ((0.008, 0.894), (0.098, 0.945), (0.373, 0.988)),
}
"""Part of the backward pass, and part of the gradients that are ready then; other models are described as even."""

POLLUX_CALIBRATION = tuple(("imagenet", nodes, "20") for nodes in "234")
"""The points that calibrate Pollux: ResNet-50, 20 images on each GPU, on two, three and four machines."""

TENSORFLOW_PARAMETERS = {"InceptionV3": 23_834_568, "ResNet-50": 25_610_216, "ResNet-152": 60_380_648}

_DEEPSPEED: dict[str, Any] = {"all_reduce": "ring", "first_bucket_bytes": 2 * 10**9, "bucket_bytes": 2 * 10**9}
"""DeepSpeed's buckets: 500 million numbers, by default (``allreduce_bucket_size``)."""

_FUSED_BYTES = 64 * 2**20  # Horovod's fusion buffer, by default

HOROVOD = {"Inception V3": (23_834_568, 142.0), "VGG-16": (138_357_544, 154.0)}
"""Parameters, and images/s of one P100 in TensorFlow's benchmarks."""

BERT_LARGE_PARAMETERS = 336_226_108
ONEBIT_ETHERNET = (
    (64, 36.65 + 33.63 + 74.96, 2205.86),
    (64, 35.71 + 60.81 + 75.59, 2275.43),
    (64, 137.80 + 243.72 + 74.92, 2259.36),
    (32, 37.91 + 60.71 + 75.63, 2173.35),
    (16, 36.94 + 62.82 + 76.85, 2133.24),
    (8, 34.95 + 61.23 + 75.26, 1897.21),
)
ONEBIT_INFINIBAND = (
    (64, 25.36 + 23.25 + 58.49, 316.18),
    (64, 32.81 + 59.99 + 57.79, 336.40),
    (64, 131.04 + 237.92 + 56.91, 339.52),
    (32, 33.45 + 56.81 + 57.98, 297.28),
    (16, 32.86 + 56.49 + 58.60, 183.74),
)
"""GPUs, ms of a step without its all-reduce, ms of the all-reduce: table 1 of 1-bit Adam (arXiv 2102.02888)."""


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with headings."""
    with path.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def several_gpus(gpus: Sequence[int], bit_per_s: float, costs: Sequence[Cost], **keys: Any) -> list[Node]:
    """Return a node for each GPU, with links of this bandwidth, each way; ``gpus`` and ``costs``: of each machine."""
    keys |= dict.fromkeys(("up_bit_per_s", "down_bit_per_s"), steady(bit_per_s))
    return [
        Node(name=f"machine{place}-{gpu}", card=f"machine{place}", cost=cost, **keys)
        for place, (count, cost) in enumerate(zip(gpus, costs, strict=True))
        for gpu in range(count)
    ]


def diloco(folder: Path) -> tuple[dict[str, list[SourcePoint]], list[dict[str, str]], str]:
    """Return the points of diloco-measured by kind, all its rows with ``simulated_s``, and what was calibrated.

    One point for each bandwidth, LocalSGD with H = 1, calibrates it and is not compared. DDP's buckets are described as
    double trees. That is a reading: it explains why DDP sends a third more than a ring, but the source does not say it.
    """
    given = rows(folder / "points.csv")
    base = files.load(folder / "shaped_1g.toml")
    clusters = {"unshaped": shaped(base, "unshaped")}
    said = []
    for row in given:
        if _calibrates(row):
            step = MeasuredStep(seconds=float(row["measured_ms"]) / 1e3, sync="local:every=1")
            found = calibrated(shaped(base, row["bandwidth"]), [step])
            clusters[row["bandwidth"]] = found.spec
            said.append(f"{row['bandwidth']}: {found}")
    known: dict[tuple[str, int, str], float] = {}
    for row in given:
        key = row["algorithm"], int(row["every"]), row["bandwidth"]
        if key not in known:
            spec = clusters[row["bandwidth"]]
            if row["algorithm"] == "ddp":
                spec = replace(spec, workload=replace(spec.workload, all_reduce="tree"))
            known[key] = step_s(spec, _sync(row["algorithm"], int(row["every"])))
        row["simulated_s"] = str(known[key])
    compared = [row for row in given if row["bandwidth"] in SHAPED and not _calibrates(row)]
    points = {
        "diloco_measured": [_point(row) for row in compared],
        "diloco_ddp": [_point(row) for row in compared if row["algorithm"] == "ddp"],
    }
    return points, given, f"diloco_measured, diloco_ddp: {'; '.join(said)}, of LocalSGD with H = 1"


FAMILIES = {"bsp": ("ddp",), "local": ("localsgd",), "diloco": ("diloco", "localsgd")}
"""Policies of uneven by their default names, and those of diloco-measured that are as fast as they are."""


def planned(folder: Path, bandwidth: str) -> list[CombinationResult]:
    """Return the results of ``uneven plan`` for even shares at a bandwidth as shaped, with its own policies."""
    spec = shaped(files.load(folder / "shaped_1g.toml"), bandwidth)
    choices, _ = combinations(spec, ("even",))
    found = []
    for choice in choices:
        policy = policies.resolve(choice.sync)
        scenario = Scenario(spec=spec, balancer=balancers.resolve("even"), policy=policy)
        try:
            figures = played(scenario)
        except NoExchangePlayed:
            continue
        refused = carried(choice.sync)
        found.append(CombinationResult(choice=choice, facts=policy.facts, figures=figures, refused=refused))
    return found


def _calibrates(row: dict[str, str]) -> bool:
    return row["algorithm"] == "localsgd" and row["every"] == "1" and row["bandwidth"] in SHAPED


def shaped(base: ClusterSpec, bandwidth: str) -> ClusterSpec:
    """Return the cluster of diloco-measured at one of its bandwidths."""
    up = steady(SHAPED.get(bandwidth, 20e9))
    nodes = tuple(replace(node, up_bit_per_s=up) for node in base.nodes)
    return replace(base, nodes=nodes, workload=replace(base.workload, all_reduce="ring"))


def _sync(algorithm: str, every: int) -> str:
    return "bsp" if algorithm == "ddp" else f"{'local' if algorithm == 'localsgd' else 'diloco'}:every={every}"


def _point(row: dict[str, str]) -> SourcePoint:
    what = f"{row['algorithm']}, H = {row['every']}, {row['bandwidth']}"
    return SourcePoint(what=what, measured_s=float(row["measured_ms"]) / 1e3, simulated_s=float(row["simulated_s"]))


def steps_of(row: dict[str, str]) -> int:
    """Return the steps of a run of diloco-measured."""
    every = int(row["every"])
    return OTHER_STEPS_OF.get((row["algorithm"], every, row["bandwidth"]), STEPS_OF[every])


def pollux(folder: Path) -> tuple[dict[str, list[SourcePoint]], str]:
    """Return Pollux's points, and what the calibration says: with the part that three points give, and as sold, in a
    cloud and in a placement group. The machines were in one."""
    given = rows(folder / "points.csv")
    held = [row for row in given if (row["application"], row["nodes"], row["local_batch"]) in POLLUX_CALIBRATION]
    compared = [row for row in given if row not in held]
    steps = [MeasuredStep(seconds=float(row["measured_s"]), nodes=int(row["nodes"])) for row in held]
    most = max(held, key=lambda row: int(row["nodes"]))
    found = calibrated(_pollux_cluster(most), steps)
    several = [row for row in rows(folder / "several_gpus.csv") if len(row["gpus_by_machine"]) > 1]
    return {
        "pollux": [_pollux_point(row, achieved=found.achieved) for row in compared],
        "pollux_several": [_pollux_point(row, achieved=found.achieved) for row in several],
        "pollux_sold": [_pollux_point(row, network="cloud") for row in compared],
        "pollux_sold_group": [_pollux_point(row, network="cloud-group") for row in compared],
    }, f"pollux, pollux_several: {found}, of ResNet-50 with 20 images a GPU on 2, 3 and 4 machines"


def _pollux_cluster(row: dict[str, str], **network: Any) -> ClusterSpec:
    """Return the machines of a point: sold with 50 Gbit/s, and a step as one GPU takes it. ``network``: keys of the
    nodes."""
    gpus = [int(count) for count in row["gpus_by_machine"]] if "gpus" in row else [1] * int(row["nodes"])
    batch = int(row["local_batch"])
    costs = [same_step(float(row["alone_s"]), batch)] * len(gpus)
    nodes = several_gpus(gpus, 50e9, costs, **network)
    spec = cluster("pollux", nodes, batch, 4 * POLLUX_PARAMETERS[row["application"]])
    ready = READY.get(row["application"], ())
    return replace(spec, workload=replace(spec.workload, all_reduce="ring", ready=ready))


def _pollux_point(row: dict[str, str], **network: Any) -> SourcePoint:
    what = f"{row['application']}, {row.get('gpus_by_machine', row.get('nodes'))} × {row['local_batch']}"
    spec = _pollux_cluster(row, **network)
    return SourcePoint(what=what, measured_s=float(row["measured_s"]), simulated_s=step_s(spec, "bsp"))


def tensorflow(folder: Path) -> Iterator[SourcePoint]:
    """Yield the points of TensorFlow's parameter servers; a machine is one node."""
    given = rows(folder / "points.csv")
    alone = {row["model"]: float(row["images_per_s"]) for row in given if row["machines"] == "1"}
    for row in given:
        count, images = int(row["machines"]), int(row["gpus"]) * 64
        if count > 1:
            nodes = several_gpus([1] * count, 10e9, [same_step(512 / alone[row["model"]], 512)] * count)
            spec = cluster("tensorflow", nodes, 512, 4 * TENSORFLOW_PARAMETERS[row["model"]])
            measured_s = images / float(row["images_per_s"])
            yield SourcePoint(
                what=f"{row['model']} on {count}", measured_s=measured_s, simulated_s=step_s(spec, "backup:spares=0")
            )


def horovod(folder: Path) -> Iterator[SourcePoint]:
    """Yield Horovod's two models on 512 GPUs; ``measured_s`` is the step of one GPU over the efficiency."""
    for row in rows(folder / "points.csv"):
        parameters, images_per_s = HOROVOD[row["model"]]
        alone_s = 64 / images_per_s
        servers, cost = int(row["servers"]), same_step(alone_s, 64)
        each = int(row["gpus"]) // servers
        nodes = several_gpus([each] * servers, 25e9, [cost] * servers, network="ethernet")
        spec = cluster("horovod", nodes, 64, 4 * parameters)
        fused = replace(spec.workload, first_bucket_bytes=_FUSED_BYTES, bucket_bytes=_FUSED_BYTES)
        fused = replace(fused, all_reduce="ring", ready=READY.get(row["model"], ()))
        spec = replace(spec, workload=fused)
        measured_s = alone_s / float(row["scaling_efficiency"])
        yield SourcePoint(what=row["model"], measured_s=measured_s, simulated_s=step_s(spec, "bsp"))


def onebit(
    table: tuple[tuple[int, float, float], ...], each: int, bit_per_s: float, **network: Any
) -> Iterator[SourcePoint]:
    """Yield the steps of BERT-Large in half precision, whose all-reduce follows the backward pass. ``each``: GPUs of a
    machine; ``network``: keys of the nodes."""
    for gpus, rest_ms, all_reduce_ms in table:
        cost, count = same_step(rest_ms / 1e3, 1), gpus // each
        nodes = several_gpus([each] * count, bit_per_s, [cost] * count, **network)
        spec = cluster("onebit", nodes, 1, 4 * BERT_LARGE_PARAMETERS)
        spec = replace(spec, workload=replace(spec.workload, backward=0, number_bytes=2, **_DEEPSPEED))
        measured_s = (rest_ms + all_reduce_ms) / 1e3
        yield SourcePoint(what=f"{gpus} GPUs, {rest_ms:.0f} ms", measured_s=measured_s, simulated_s=step_s(spec, "bsp"))
