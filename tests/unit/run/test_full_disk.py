"""A disk that is full from the first batch on costs records and marks, never the training."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import uneven
from uneven.runtime import rundir
from uneven.runtime.world import READY_VARIABLE, RUN_VARIABLE

_BYTES, _INODES = 64 * 1024, 12
_PAGE = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of sixteen pages and twelve inodes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_BYTES},nr_inodes={_INODES}", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def take_all_inodes(disk: Path) -> None:
    for number in range(_INODES):
        try:
            (disk / f"file{number}").touch()
        except OSError:
            return
    raise AssertionError("the disk is larger than asked for")


def take_all_pages(disk: Path) -> None:
    with (disk / "big").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * _PAGE):
                pass
        except OSError:
            return


@pytest.mark.parametrize("fill", [take_all_inodes, take_all_pages])
def test_no_room_from_the_first_batch_on(
    fill: Callable[[Path], None], disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(disk))
    monkeypatch.setenv(READY_VARIABLE, "1")  # a launcher waits to be told that the training starts …
    monkeypatch.setenv("TMPDIR", "/tmp")
    model, seen = torch.nn.Linear(3, 2), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with uneven.Session(sync="asp", balance="even") as session:  # … and what this worker's death means
        session.setup(model, optimizer)
        loader = session.loader(TensorDataset(torch.randn(12, 3), torch.arange(12) % 2), 4)
        fill(disk)
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += len(x)
    assert seen == 12
    if fill is take_all_inodes:
        said = [one.getMessage() for one in caplog.records if one.name == "uneven.runtime.rundir"]
        assert [text.split(" could not be written (No space left on device): ")[0] for text in said] == [
            f"{disk}/ready-0", f"{disk}/expendable-0.part"
        ]  # fmt: skip
        assert "slows this worker down only when it has waited long enough" in said[0]
        assert "the death of rank 0 would end the others, too" in said[1]
    assert not (disk / "expendable-0.part").exists()


@pytest.mark.parametrize("fill", [take_all_inodes, take_all_pages])
def test_what_cannot_be_said_anew_is_not_left_as_it_was(
    fill: Callable[[Path], None], disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An old word by which the others go on must not outlive the moment in which they no longer can."""
    rundir.mark_expendable(disk, 1)
    rundir.mark_ready(disk, 1)
    assert rundir.expendable_of(disk, 1) == rundir.Expendable()
    fill(disk)
    rundir.mark_expendable(disk, 1, rundir.Expendable("it holds the copy"))
    assert rundir.expendable_of(disk, 1) is None
    assert not (disk / "expendable-1.part").exists()
    assert len(caplog.records) == 1
