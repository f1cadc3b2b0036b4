"""The runs of ``uneven bench worlds --keep FOLDER`` as a data set that others can use."""

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

_TEXTS = Path(__file__).with_name("kept")  # the licence, and the README without the count of runs and the version


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
        readme = (_TEXTS / "README.md").read_text(encoding="utf-8").format(count=len(runs), version=VERSION)
        (folder / "README.md").write_text(readme, encoding="utf-8")
        shutil.copy(_TEXTS / "LICENSE", folder)


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
