"""``uneven bench sync``: gain and cost of less frequent, partial or background agreement of replicas.

In every case real workers with shares of a core, in network namespaces with token buckets, train the same model with
each method, stretch by stretch in turns and in the same processes. The yardstick is the same loop without exchange. It
needs root, to limit links and to count bytes at a worker's interface.
"""

import statistics
import tempfile
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uneven import journal
from uneven.cluster.emulate.capabilities import why_no_bandwidth, why_not_isolated
from uneven.errors import ConfigError
from uneven.journal.pure.exchanges import Exchanged
from uneven.journal.reader import rank_paths
from uneven.policy.core.records import ExchangeRecord
from uneven.policy.sync import carried
from uneven_bench.harness.show import Progress, chosen
from uneven_bench.harness.worker import staged
from uneven_bench.sync.cases import EVERY, SyncCase, cases, few, package_of, short
from uneven_bench.sync.table import overall, summarize

_WORKER = "uneven_bench.sync.worker"


def run(quick: bool, data: str, progress: Progress, *, case: str | None = None) -> dict[str, Any]:
    """Play the cases in order. ``quick``: two cases with fewer arms; or ``case`` in a shorter form. The result is
    the object that ``--json`` prints; ``docs/measurements/sync.md`` explains every key. Raises ConfigError: links
    cannot be limited here. UnknownNameError: no such case. LaunchError: a worker died."""
    known = (few() if case is None else short()) if quick else cases()
    wanted = [known[name] for name in chosen(case, known)]
    if why := why_not_isolated() or why_no_bandwidth():
        raise ConfigError(f"bench sync limits links and counts their bytes, which cannot be done here: {why}")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="uneven-bench-") as folder:
        for number, one in enumerate(wanted):
            if len(wanted) > 1:
                progress("all cases", one.name, number / len(wanted))
            found[one.name] = _play(Path(folder) / one.name, one, data, progress)
    return {"cases": found, **overall(found)}


def _play(directory: Path, case: SyncCase, data: str, progress: Progress) -> dict[str, Any]:
    arms, left_out = _able(case)
    case = replace(case, arms=arms)
    task = {"what": case.name, "case": asdict(case), "data": data}
    result: dict[str, Any] = staged(directory, _WORKER, task, case.workers, isolated=True, said=progress)
    result["left_out"] = left_out
    result["gaps"] = {name: gap for name in arms if (gap := _gap(directory / name)) is not None}
    return summarize(case, result)


def _able(case: SyncCase) -> tuple[dict[str, str], dict[str, str]]:
    """Return the arms that can take part, and the reasons why others cannot."""
    arms, left_out = {}, {}
    for name, who in case.arms.items():
        if " " in who:
            why = carried(who.split(" ", 1)[1].replace(EVERY, "8"))
        else:
            needed = package_of(who)
            why = f"{needed} is not installed" if needed and find_spec(needed) is None else None
        if why is None:
            arms[name] = who
        else:
            left_out[name] = why
    return arms, left_out


def _gap(run_directory: Path) -> float | None:
    """Return the sync gap: mean over the workers of the mean steps between exchanges; None without exchanges."""
    if not rank_paths(run_directory):
        return None
    gaps = []
    for records in journal.read(run_directory).ranks.values():
        exchanged = Exchanged.of(one for one in records if isinstance(one, ExchangeRecord))
        if exchanged.count:
            gaps.append(exchanged.gap)
    return statistics.mean(gaps) if gaps else None
