"""What a fact about a machine means for a user. No machine is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uneven.cli.findings import (
    GIB,
    MIB,
    DataFolder,
    Finding,
    Gpu,
    Interface,
    Level,
    MachineFacts,
    TorchFacts,
    findings,
    works,
)

TORCH = TorchFacts(version="2.13.0+cpu", gloo=True, gloo_s=1.5)
GOOD = MachineFacts(
    system="Linux", python=(3, 11, 7), uneven="0.1.0", cores=8, usable_cores=8, quota_cores=None,
    memory_bytes=16 * GIB, available_bytes=12 * GIB, memory_limit_bytes=None, shared_memory_bytes=8 * GIB,
    gpus=(), gpu_error="NVML: no driver", torch=TORCH,
    interface=Interface(name="eth0", address="192.0.2.7", forced=False), lookup_s=0.001, data=None, root=False,
    throttle_error="", isolation_error="", bandwidth_error="", latency_error="", netem_error="",
    packages={"ray": "2.60.0", "tensorboard": ""},
)  # fmt: skip


def find(facts: MachineFacts, topic: str) -> Finding:
    (found,) = [finding for finding in findings(facts) if finding.topic == topic]
    return found


def test_a_good_machine_works_and_every_line_has_a_consequence() -> None:
    found = findings(GOOD)
    assert works(found)
    assert {finding.level for finding in found if finding.topic != "tensorboard"} == {Level.GOOD}
    assert all(finding.found and finding.consequence for finding in found)
    topics = [finding.topic for finding in found]
    assert len(set(topics)) == len(topics)
    assert {"python", "torch", "gloo", "cores", "memory", "gpus", "nccl", "interface", "names", "throttling",
            "emulation", "latency", "data", "ray", "tensorboard"} <= set(topics)  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "topic"),
    [
        (replace(GOOD, torch=TorchFacts(error="ImportError: no torch")), "torch"),
        (replace(GOOD, torch=replace(TORCH, gloo=False, error="no answer within 60 s")), "gloo"),
        (replace(GOOD, python=(3, 10, 1)), "python"),
        (replace(GOOD, interface=Interface(name="eth9", address="", forced=True, exists=False)), "interface"),
    ],
)
def test_what_the_main_job_needs_is_missing(facts: MachineFacts, topic: str) -> None:
    found = findings(facts)
    assert not works(found)
    assert topic in [finding.topic for finding in found if finding.level is Level.MISSING]


def test_the_reason_for_a_failed_trial_is_shown() -> None:
    assert find(replace(GOOD, torch=replace(TORCH, gloo=False, error="refused")), "gloo").found == "refused"


def test_a_process_delays_packets_where_the_kernel_does_not() -> None:
    assert find(GOOD, "latency").found == "netem"
    found = find(replace(GOOD, netem_error="no netem"), "latency")
    assert (found.level, found.found) == (Level.GOOD, "a process, as this kernel has no netem")


@pytest.mark.parametrize(
    ("changed", "topic", "words"),
    [
        ({"quota_cores": 1.5}, "cores", "worth 1.5 cores"),
        ({"usable_cores": 1}, "cores", "share one core"),
        ({"memory_limit_bytes": GIB}, "memory", "about 2 small workers"),
        ({"shared_memory_bytes": 64 * MIB}, "shared memory", "--shm-size"),
        ({"gpus": (Gpu(name="A", memory_bytes=GIB),)}, "gpus", "CPU build"),
        ({"lookup_s": 3.0}, "names", "add '::ffff:192.0.2.7 NAME' to /etc/hosts"),
        ({"throttle_error": "no SIGSTOP"}, "throttling", "training is not affected"),
        ({"isolation_error": "only root may"}, "emulation", "shares of processor time only"),
        ({"bandwidth_error": "no tbf"}, "emulation", "refuses bandwidth limits"),
        ({"latency_error": "no netem"}, "latency", "--leave-out latency_s"),
        ({"system": "Darwin"}, "python", "by design"),
        ({"packages": {"ray": ""}}, "ray", "pip install '.[ray]' in the folder"),
    ],
)
def test_notes(changed: dict[str, object], topic: str, words: str) -> None:
    finding = find(replace(GOOD, **changed), topic)  # type: ignore[arg-type]
    assert finding.level is Level.NOTE
    assert words in finding.consequence
    assert works(findings(replace(GOOD, **changed)))  # type: ignore[arg-type]


def test_gpus_that_torch_can_use() -> None:
    gpus = (Gpu(name="A", memory_bytes=80 * GIB), Gpu(name="A", memory_bytes=80 * GIB))
    cuda = replace(TORCH, cuda_build="13.0", cuda_devices=2, nccl=True)
    assert "--nproc 2" in find(replace(GOOD, gpus=gpus, torch=cuda), "gpus").consequence
    hidden = find(replace(GOOD, gpus=gpus, torch=replace(cuda, cuda_devices=1)), "gpus")
    assert "1 of 2" in hidden.consequence


FOLDER = DataFolder(path="/data", exists=True, listed=3, absent=(), fashion_mnist=True)


@pytest.mark.parametrize(
    ("folder", "level", "words"),
    [
        (None, Level.GOOD, "not set"),
        (FOLDER, Level.GOOD, "all 3"),
        (replace(FOLDER, exists=False), Level.NOTE, "no such folder"),
        (replace(FOLDER, absent=("a", "b")), Level.NOTE, "2 of 3 files absent (a, b)"),
        (replace(FOLDER, listed=0, fashion_mnist=False), Level.NOTE, "no fashion_mnist"),
    ],
)
def test_data_folder(folder: DataFolder | None, level: Level, words: str) -> None:
    finding = find(replace(GOOD, data=folder), "data")
    assert finding.level is level
    assert words in finding.found
