"""``uneven bench lb-bsp``: the speed of balanced unequal workers against the limit, and the cost for equal ones.

In every case real workers on shares of a core train the same model with each method, block by block in turns and in the
same processes, so that a drift of the machine hits all equally. The oracle knows every worker's cost, measured at the
start of the run and corrected by its own iterations, and the next round's shares; it splits by the exact integer
min-max and runs on plain DDP.
"""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from uneven import journal
from uneven.cluster.emulate.capabilities import why_not_isolated
from uneven.errors import UnknownNameError
from uneven_bench.harness.data import job_times, machine_use
from uneven_bench.harness.figures import Spread
from uneven_bench.harness.show import Progress
from uneven_bench.harness.steps import control_share, steps_of
from uneven_bench.harness.worker import staged
from uneven_bench.lb_bsp.cases import AGAIN, LIMIT, OURS, SHARES, LbBspCase, cases, short
from uneven_bench.lb_bsp.table import ratios, summarize, wait_share, walls

_WORKER = "uneven_bench.lb_bsp.worker"


def run(quick: bool, data: str, progress: Progress, *, case: str | None = None) -> dict[str, Any]:
    """Play the cases, one after the other. ``quick``: the steady and the equal case only, without the rivals;
    ``case``: this one only, or all with this prefix: flicker. Returns the object that ``--json`` prints;
    ``docs/measurements/lb-bsp.md`` and ``docs/measurements/rivals.md`` explain every key. Raises UnknownNameError: no
    such case. LaunchError: a worker died."""
    known = {one.name: one for one in short()} if quick else cases(job_times(), machine_use("planetlab_cpu"))
    if case is not None and case not in {*known, *(name.split("-")[0] for name in known)}:
        raise UnknownNameError("case", case, known)
    wanted = [one for name, one in known.items() if case in (None, name, name.split("-")[0])]
    isolated = not why_not_isolated()
    left_out = [one.name for one in wanted if one.mbit_per_s and not isolated]
    found: dict[str, Any] = {"cases": {}, "left_out": left_out}
    played = [one for one in wanted if one.name not in left_out]
    with tempfile.TemporaryDirectory(prefix="uneven-bench-") as folder:
        for number, (_, alike) in enumerate(groupby(played, lambda one: (one.workers, bool(one.mbit_per_s)))):
            some = list(alike)
            if len(played) > 1:
                progress("all cases", some[0].name, len(found["cases"]) / len(played))
            for one, result in _play(Path(folder) / str(number), some, data, progress):
                if one.name in _MORE_KEYS:
                    found |= _MORE_KEYS[one.name](one, result)
                found["cases"][one.name] = summarize(one, result)
    for key in ("best_rival", "gain_over_best_rival"):
        found[key] = {name: rows[key] for name, rows in found["cases"].items()}
    return found


def _play(
    directory: Path, some: Sequence[LbBspCase], data: str, progress: Progress
) -> Iterator[tuple[LbBspCase, dict[str, Any]]]:
    """Play cases on the same nodes, in the same processes: a start takes as long as a short case."""
    for one in some:
        (directory / one.name).mkdir(parents=True)
    task = {"what": some[0].name, "cases": [asdict(one) for one in some], "data": data}
    done = dict.fromkeys((one.name for one in some), 0.0)

    def said(name: str, what: str, part: float) -> None:
        done[name] = max(done[name], part)
        progress(name, what, done[name])

    results = staged(directory, _WORKER, task, some[0].workers, isolated=bool(some[0].mbit_per_s), said=said)
    for one in some:
        result: dict[str, Any] = results[one.name]
        records = journal.read(directory / one.name / OURS).records()
        result["control"] = [control_share(own) for own in steps_of(records, one.settling * one.block).values()]
        yield one, result


def _weighted(result: dict[str, Any]) -> float:
    """Return the group's loss of throughput by measuring and deciding: the workers' mean, weighted by samples."""
    batches = result["split"][OURS]
    return sum(x * share for x, share in zip(batches, result["control"], strict=True)) / sum(batches)


def steady_keys(case: LbBspCase, result: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the case of steady shares."""
    wall = walls(result)
    ratio = {name: ratios(wall["ddp"], seconds) for name, seconds in wall.items()}
    of_limit = {name: ratios(wall[LIMIT], seconds) for name, seconds in wall.items()}
    floor_s = max(
        cost["overhead_s"] + cost["per_sample_s"] * share
        for cost, share in zip(result["costs"], result["split"][LIMIT], strict=True)
    )
    return {
        "workers": len(SHARES),
        "shares": list(SHARES),
        "global_batch": case.global_batch,
        "rounds": {name: len(seconds) for name, seconds in wall.items()},
        "iteration_s": {name: statistics.median(seconds.values()) for name, seconds in wall.items()},
        "iteration_spread_s": {name: Spread.of([*seconds.values()]).pair for name, seconds in wall.items()},
        "speedup_vs_ddp": statistics.median(ratio[OURS]),
        "speedups_vs_ddp": {name: statistics.median(values) for name, values in ratio.items()},
        "speedup_spread": Spread.of(ratio[OURS]).pair,
        "fraction_of_limit": statistics.median(of_limit[OURS]),
        "fraction_of_limit_spread": Spread.of(of_limit[OURS]).pair,
        "fractions_of_limit": {name: statistics.median(values) for name, values in of_limit.items()},
        "compute_floor_s": floor_s,
        "wait_share": {name: wait_share(blocks) for name, blocks in result["blocks"].items()},
        "control_share": _weighted(result),
        "control_share_by_worker": result["control"],
        "batches": {name: split for name, split in result["split"].items() if name != "ddp"},
        "same_accuracy": {name: curve[max(curve, key=int)] for name, curve in result["accuracy"].items()},
    }


def pair_keys(_: LbBspCase, result: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of ours and DDP on equal workers."""
    wall = walls(result)
    both = {number: (seconds + wall[AGAIN][number]) / 2 for number, seconds in wall["ddp"].items()}
    against_ddp = ratios(wall[OURS], both)
    return {
        "equal_workers_ddp_ratio": statistics.median(ratios(wall[AGAIN], wall["ddp"])),
        "equal_workers_ratio": statistics.median(against_ddp),
        "equal_workers_spread": Spread.of(against_ddp).pair,
        "equal_workers_iteration_s": {name: statistics.median(seconds.values()) for name, seconds in wall.items()},
        "equal_workers_control_share": _weighted(result),
        "equal_workers_control_share_by_worker": result["control"],
        "equal_workers_batches": result["split"][OURS],
    }


_MORE_KEYS = {"steady": steady_keys, "pair": pair_keys}  # cases with additional keys in the whole result
