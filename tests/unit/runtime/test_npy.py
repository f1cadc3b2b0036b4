"""NumPy's files are read by one thread at a time, whatever several threads ask for."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest

from uneven.runtime.npy import load_array, load_arrays


def test_two_threads_never_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "some.npz", a=np.arange(2), b=np.arange(5))
    reading, met, load = Lock(), [], np.load

    def watched(*args: Any, **more: Any) -> Any:
        met.append(reading.acquire(blocking=False))
        time.sleep(0.01)  # for the other to come
        if met[-1]:
            reading.release()
        return load(*args, **more)

    monkeypatch.setattr(np, "load", watched)

    def read(turn: int) -> int:
        if turn % 2:
            return len(load_arrays(tmp_path / "some.npz", ["b"])["b"])
        return len(load_array(tmp_path / "one.npy", mapped=turn % 4 == 0))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(8))) == [3, 5] * 4
    assert met == [True] * 8


def test_arrays_are_those_that_were_written(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "some.npz", a=np.arange(2), b=np.arange(5))
    mapped = load_array(tmp_path / "one.npy", mapped=True)
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert not isinstance(load_array(tmp_path / "one.npy"), np.memmap)
    assert {name: one.tolist() for name, one in load_arrays(tmp_path / "some.npz").items()} == {
        "a": [0, 1],
        "b": [0, 1, 2, 3, 4],
    }
    with pytest.raises(KeyError, match="c"):
        load_arrays(tmp_path / "some.npz", ["c"])
    np.save(tmp_path / "what.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        load_array(tmp_path / "what.npy")
