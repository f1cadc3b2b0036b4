"""What a step frees stays in the process for the next one, as long as somebody trains there."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from uneven_bench.forked.scripts import run_script

PROGRAM = '''
import ctypes, gc, json, resource, torch, uneven

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def faults():
    """Of what a step does with its activations, a mebibyte each. Not by tensors: what comes with these may by chance
    stay at the end of the heap, and then nothing before it is given back."""
    for step in range(8):
        if step == 3:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        kept = [libc.malloc(1 << 20) for _ in range(64)]
        for block in kept:
            ctypes.memset(block, 1, 1 << 20)
        for block in reversed(kept):
            libc.free(block)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 5

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def begun():
    session = uneven.Session()
    session.setup(torch.nn.Linear(2, 2))
    return session

told = [faults()]
first = begun()
told.append(faults())
second = begun()
first.close()
told.append(faults())
held = resident()
del second  # not closed
gc.collect()
print(json.dumps([*told, held - resident()]))
'''


@pytest.mark.parametrize(
    ("decided", "file"),
    [
        ({}, ""),
        ({}, "[run]\nkeep_freed_memory = false\n"),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, "[run]\nkeep_freed_memory = true\n"),
        ({"GLIBC_TUNABLES": "glibc.malloc.perturb=0"}, ""),
    ],
)
def test_memory_of_a_step_is_kept_for_the_next_one_until_the_last_session_ends(
    decided: dict[str, str], file: str, tmp_path: Path
) -> None:
    (tmp_path / "uneven.toml").write_text(file)
    done = run_script(["-c", PROGRAM], cwd=tmp_path, env={**os.environ, **decided})
    assert done.returncode == 0, done.stderr
    before, with_one, with_second, given_back = json.loads(done.stdout)
    assert before > 4096, "the C library gives it back and takes it anew"
    if decided or "false" in file:
        assert min(with_one, with_second) > before / 2, "the environment, or the setting, says otherwise"
    else:
        assert max(with_one, with_second) < before / 5
        assert given_back > 16 << 20


DEMO = """
from pathlib import Path

import torch
from uneven.cluster.virtual.datasets import ImageData
from uneven.cli.demo import demo_worker
from uneven.run.start import heap

x, y = torch.zeros(512, 1, 8, 8), torch.zeros(512, dtype=torch.long)
some = torch.utils.data.TensorDataset(x, y)
data = ImageData(name="blank", train=some, test=some, classes=10)
kept = []
demo_worker.finish = lambda *rest: kept.append(heap._keepers)  # where training ends and everything is still open
WAY(data, Path("run"), 1)
print(kept)
"""


@pytest.mark.parametrize("way", ["plain", "balanced"])
def test_both_sides_of_the_demo_keep_freed_memory(way: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (tmp_path / "run").mkdir()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = run_script(["-c", DEMO.replace("WAY", f"demo_worker.{way}")], cwd=tmp_path, env={**os.environ, **alone})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1]\n"
