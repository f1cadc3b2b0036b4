"""The runs of ``uneven bench worlds --keep FOLDER`` as a data set that others can use."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from uneven import journal
from uneven.errors import ConfigError, access
from uneven.policy.core.records import RunRecord, SplitRecord, StepRecord
from uneven.runtime.installed import VERSION
from uneven_bench.recorded.runs import DESCRIPTION, RUN

STEP_COLUMNS = (
    *("rank", "iteration", "batch", "global_batch", "data_s", "compute_s", "exchange_s", "transfer_s"),
    *("local_cpu_s", "exchange_cpu_s", "ended_at_s"),
)
SPLIT_COLUMNS = ("decided_at", "iteration", "shares", "speeds_per_s", "predicted_per_s", "reason")

LICENCE = """Creative Commons Attribution 4.0 International (CC BY 4.0)

You may share and adapt these files for any purpose if you name their source and state your changes.
Terms: https://creativecommons.org/licenses/by/4.0/legalcode

The loads in `share` of recorded-*/cluster.toml are from Google's cluster data of 2011 (CC BY 4.0).
"""

README = """# Steps of unequal workers

{count} trainings on emulated clusters, recorded by `uneven bench worlds` of uneven {version}. The workers are real
processes with unequal shares of processors, unequal links and changing load. Licence: CC BY 4.0, see LICENSE.

A folder is one training, named after its description, its balancer and its number:

| file | contents |
|---|---|
| `cluster.toml` | the description: nodes, links between sites, events; docs/clusters.md of uneven lists the keys |
| `steps.csv` | a row for each step of each worker |
| `splits.csv` | a row for each decision about the shares of the batch |

Columns of `steps.csv`. Times are in seconds, `ended_at_s` is counted from the start of the first worker:

| column | meaning |
|---|---|
| `rank` | the worker, by its place in the description |
| `iteration` | from 0 |
| `batch`, `global_batch` | samples of this worker, of all workers |
| `data_s` | waiting for samples |
| `compute_s` | forward and backward pass, optimizer |
| `exchange_s` | the part of the all-reduce that the backward pass did not hide, with the wait for others |
| `transfer_s` | the part of `exchange_s` for the worker's own side |
| `local_cpu_s`, `exchange_cpu_s` | processor time during `data_s` and `compute_s`, and during `exchange_s` |

Columns of `splits.csv`. Lists have blanks between their entries, one for each rank:

| column | meaning |
|---|---|
| `decided_at`, `iteration` | the iteration after which the split was decided, and the first one that used it |
| `shares` | samples of each worker |
| `speeds_per_s`, `predicted_per_s` | samples per second of each worker, measured and predicted |
| `reason` | of the decision, in words |
"""


def free(folder: Path) -> None:
    """Raise ConfigError if the folder has files."""
    with access(f"look into {folder}"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--keep {folder}: it exists already: name a new folder")


def write(place: Path, folder: Path) -> None:
    """Write the runs in ``place`` into ``folder``, with a README and a licence, but without hosts and paths."""
    runs = sorted(path.parent for path in place.glob(f"*/{DESCRIPTION}"))
    with access(f"write {folder}"):
        for run in runs:
            _write_run(run, folder / run.name)
        (folder / "README.md").write_text(README.format(count=len(runs), version=VERSION), encoding="utf-8")
        (folder / "LICENSE").write_text(LICENCE, encoding="utf-8")


def _write_run(run: Path, target: Path) -> None:
    target.mkdir(parents=True)
    shutil.copy(run / DESCRIPTION, target / DESCRIPTION)
    records = list(journal.read(run / RUN).records())
    start_s = min(record.started_at_s for record in records if isinstance(record, RunRecord))
    steps = [record for record in records if isinstance(record, StepRecord)]
    rows = [{name: getattr(step, name) for name in STEP_COLUMNS} for step in steps]
    _write_rows(target / "steps.csv", STEP_COLUMNS, [row | {"ended_at_s": row["ended_at_s"] - start_s} for row in rows])
    splits = [record for record in records if isinstance(record, SplitRecord)]
    decisions = [{name: _cell(getattr(split, name)) for name in SPLIT_COLUMNS} for split in splits]
    _write_rows(target / "splits.csv", SPLIT_COLUMNS, decisions)


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _write_rows(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
