"""The run as TensorBoard scalars."""

from __future__ import annotations

from pathlib import Path

from uneven.core.text import printable
from uneven.errors import JournalError, access
from uneven.journal.reader import read
from uneven.report.series import RunData, run_data


def write(run: Path, folder: Path) -> int:
    """Write a run's scalars for TensorBoard; open them with ``tensorboard --logdir FOLDER``.

    Step is the iteration, wall time is that of the record. Written are what the user logged (``user/…``),
    the iteration's duration and throughput (``run/…``), and per rank share, speed, compute, wait and
    communicate (``rank N/…``).

    Returns:
        How many values were written.

    Raises:
        JournalError: TensorBoard is not installed, there is no journal, or the folder cannot be written.
    """
    data = run_data(read(run))
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise JournalError(f"TensorBoard is not installed ({error}): pip install 'uneven[tensorboard]'") from error
    with access(f"write to {folder} (another folder can be named with --tensorboard)", JournalError):
        folder.mkdir(parents=True, exist_ok=True)
        writer = SummaryWriter(str(folder))
    values = _values(data)
    for name, value, iteration, at_s in values:
        writer.add_scalar(name, value, iteration, walltime=at_s)
    writer.close()
    return len(values)


def _values(data: RunData) -> list[tuple[str, float, int, float]]:
    values = [
        (f"user/{printable(name)}", row.value, row.iteration, row.at_s)
        for name, rows in data.scalars.items()
        for row in rows
    ]
    for one in data.iterations:
        at = (one.iteration, one.ended_at_s)
        if one.duration_s == one.duration_s:
            values.append(("run/iteration_s", one.duration_s, *at))
            values.append(("run/samples_per_s", one.global_batch / one.duration_s, *at))
        for rank, timing in one.timings.items():
            columns = {
                "share": float(timing.batch),
                "speed_per_s": timing.speed_per_s,
                "compute_s": timing.compute_s,
                "wait_s": timing.wait_s,
                "communicate_s": timing.communicate_s,
            }
            values += [(f"rank {rank}/{column}", value, *at) for column, value in columns.items()]
    return values
