"""``uneven bench graph``: kernels, steps, cuts and exchanges, against DGL, PyG and torch where they are installed."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uneven import graph
from uneven.cluster.emulate.capabilities import why_no_bandwidth, why_not_isolated
from uneven_bench.graph import rivals
from uneven_bench.graph.cuts import cuts
from uneven_bench.graph.graphs import FILES, bench_graph
from uneven_bench.graph.kernels import geometric, keep_memory, kernel_cell
from uneven_bench.graph.large import large
from uneven_bench.graph.steps import learnt, step_cell
from uneven_bench.harness.show import Progress, chosen
from uneven_bench.harness.threads import threads
from uneven_bench.harness.worker import staged

CASES = ("kernel", "step", "cuts", "exact", "exchanges", "links", "unequal", "accuracy", "large")
QUICK = ("kernel", "step", "cuts")  # the cases of one process; four workers are played only on demand
BAR_WIDTHS = (16, 64, 256)  # features at which kernels are judged; the others are shown
CORES = (0.6, 0.3, 0.2, 0.1)
MBIT_PER_S = 100.0
REGIONS = 48  # parts that four workers transfer to each other
HEADLINE = (
    "kernel_vs_dgl", "kernel_vs_dgl_worst", "kernel_vs_pyg", "forward_backward_vs_dgl", "forward_backward_vs_pyg",
    "fallback_vs_dgl", "step_vs_dgl", "step_vs_pyg_csr", "step_bf16_vs_dgl", "rows_vs_libra", "cost_over_target",
    "libra_vs_dgl", "exact_error", "bytes_vs_cd5", "links_vs_cd0", "unequal_gain", "handed_over_gain", "of_limit",
    "of_reachable", "accuracy",
)  # fmt: skip


def run(quick: bool, progress: Progress, case: str | None = None) -> dict[str, Any]:
    """Measure all cases. Returns the figures of :data:`HEADLINE`, None if a rival or the case is missing: ratios are
    geometric means over graphs (and widths), ``rows_vs_libra`` and ``cost_over_target`` the worst; ``accuracy`` is mode
    → graph. And their sources: ``kernel``, ``step``, ``cuts``, ``exchanges``, ``links``, ``unequal``, ``large``,
    ``allocator_keeps``, ``left_out``. Raises UnknownNameError: the case is unknown. DataError: ``UNEVEN_DATA`` has
    not the graphs. LaunchError: a worker died."""
    wanted = chosen(case, CASES, QUICK if quick else CASES)
    found: dict[str, Any] = dict.fromkeys(HEADLINE)
    found |= {"left_out": rivals.left_out(), "allocator_keeps": keep_memory(), "accuracy": {}}
    work = {"kernel": _kernel, "step": _step, "cuts": _cuts, "accuracy": _accuracy, "large": _large}
    for name in wanted:
        work.get(name, _workers(name))(found, quick, progress)
    return found


def _kernel(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    rounds, widths = (3, BAR_WIDTHS) if quick else (25, (16, 64, 128, 256, 602))
    cells: dict[str, Any] = {"forward": {}, "forward_backward": {}}
    with threads():
        for place, name in enumerate(FILES):
            one = bench_graph(name)
            for width in widths:
                progress("kernel", f"{name}, {width} features", place / len(FILES))
                for kind, table in cells.items():
                    table[f"{name} {width}"] = kernel_cell(one, width, rounds, kind == "forward_backward")
    found["kernel"] = cells
    judged = {kind: [table[f"{n} {w}"] for n in FILES for w in BAR_WIDTHS] for kind, table in cells.items()}
    for key, kind, rival, which in (
        ("kernel_vs_dgl", "forward", "dgl", "ratios"),
        ("kernel_vs_pyg", "forward", "pyg", "ratios"),
        ("forward_backward_vs_dgl", "forward_backward", "dgl", "ratios"),
        ("forward_backward_vs_pyg", "forward_backward", "pyg", "ratios"),
        ("fallback_vs_dgl", "forward", "dgl", "bag"),
    ):
        if rival in judged[kind][0][which]:
            found[key] = geometric([cell[which][rival] for cell in judged[kind]])
    if found["kernel_vs_dgl"] is not None:
        found["kernel_vs_dgl_worst"] = min(cell["ratios"]["dgl"] for cell in judged["forward"])


def _step(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    found["step"] = {}
    for name in ("amazon",) if quick else tuple(FILES):
        one = bench_graph(name)
        for kind in ("sage", "gcn"):
            progress("step", f"{kind} on {name}", 0.0)
            found["step"][f"{name} {kind}"] = step_cell(one, kind, 5 if quick else 15, plain_pyg=not quick)
    for key, which, rival in (
        ("step_vs_dgl", "ratios", "dgl"),
        ("step_vs_pyg_csr", "ratios", "pyg csr"),
        ("step_bf16_vs_dgl", "bf16", "dgl"),
    ):
        each = [cell[which][rival] for cell in found["step"].values() if rival in cell.get(which, {})]
        found[key] = geometric(each) if each else None


def _cuts(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    found["cuts"] = {}
    for name in FILES:
        progress("cuts", name, 0.0)
        found["cuts"][name] = cuts(bench_graph(name), (4,) if quick else (2, 4, 8), 3)
    every = [rows for one in found["cuts"].values() for rows in one["rows"].values()]
    found["rows_vs_libra"] = max(rows["ne"] / rows["libra"] for rows in every)
    found["cost_over_target"] = max(one["cost_over_target"] for one in found["cuts"].values())
    theirs = [one["libra_vs_dgl"] for one in found["cuts"].values() if "libra_vs_dgl" in one]
    found["libra_vs_dgl"] = geometric(theirs) if theirs else None


def _accuracy(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    for name in FILES:
        progress("accuracy", name, 0.0)
        for mode, value in learnt(bench_graph(name), 20 if quick else 100).items():
            found["accuracy"].setdefault(f"one process, {mode}", {})[name] = value


def _large(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    progress("large", "a million vertices", 0.0)
    found["large"] = large()


def _workers(what: str) -> Callable[[dict[str, Any], bool, Progress], None]:
    def work(found: dict[str, Any], quick: bool, progress: Progress) -> None:
        names = ("amazon",) if quick or what in ("exact", "links") else tuple(FILES)
        found[what] = {}
        for name in names:
            if why := (why_not_isolated() or why_no_bandwidth()) if what == "links" else None:
                found["left_out"][what] = why
                return
            found[what][name] = _played(what, name, quick, progress)
        _sum_up(found, what)

    return work


def _sum_up(found: dict[str, Any], what: str) -> None:
    each = found[what]
    if what == "exact":
        found["exact_error"] = each["amazon"]
    elif what == "unequal":
        found["unequal_gain"] = geometric([one["gain"] for one in each.values()])
        found["handed_over_gain"] = geometric([one["handed_over_gain"] for one in each.values()])
        for key in ("of_limit", "of_reachable"):
            found[key] = geometric([one[key] for one in each.values()])
    elif what == "links":
        found["links_vs_cd0"] = geometric([one["seconds"]["cd-0"] / one["seconds"]["exact"] for one in each.values()])
    elif what == "exchanges":
        found["bytes_vs_cd5"] = min(one["bytes"]["cd-5"] / one["bytes"]["exact"] for one in each.values())
        for name, one in each.items():
            for mode, value in one["accuracy"].items():
                found["accuracy"].setdefault(mode, {})[name] = value


def _played(what: str, name: str, quick: bool, progress: Progress) -> Any:
    one = bench_graph(name)
    task: dict[str, Any] = {"graph": name, "hidden": 64, "mbit_per_s": [], "cores": CORES}
    task |= {"epochs": 15 if quick else 100, "blocks": 3 if quick else 8, "each": 3 if quick else 5}
    if what == "unequal":
        task |= {"hidden": 256}  # with 64, Python would take most of a step on a tenth of a core
    if what == "links":
        task |= {"epochs": 20, "mbit_per_s": [MBIT_PER_S] * len(CORES)}
    task["what"] = "exchanges" if what == "links" else what
    with tempfile.TemporaryDirectory(prefix="uneven-graph-") as folder:
        directory = Path(folder)
        alike, shares = [1.0] * len(CORES), list(CORES)
        cuts_of = {
            "exact": {"ne": ("ne", shares)},
            "unequal": {"equal": ("ne", alike), "ne": ("ne", shares), "regions": ("ne", [1.0] * REGIONS)},
            "exchanges": {"ne": ("ne", alike), "libra": ("libra", alike)},
        }
        for cut, (method, each) in cuts_of[task["what"]].items():
            graph.partition(one.file, path=directory / cut, shares=each, method=method)
        isolated = what == "links" or (what == "unequal" and not why_not_isolated())
        return staged(directory, "uneven_bench.graph.worker", task, len(CORES), isolated=isolated, said=progress)
