"""How tensors travel between the devices of workers."""

import pytest

from uneven.policy.core.back_end import WorkerDevice, backend_for, takes, through_host

NCCL = "cpu:gloo,cuda:nccl"


def devices(*named: str) -> list[WorkerDevice]:
    return [WorkerDevice(*one.split()) for one in named]


@pytest.mark.parametrize(
    ("workers", "backend"),
    [
        (["cuda a", "cuda b"], NCCL),
        (["rocm a", "rocm b"], NCCL),
        (["cuda a", "rocm b"], "gloo"),  # NCCL and RCCL have one name and do not understand each other
        (["cuda a", "cuda b", "rocm c"], "gloo"),
        (["cuda a", "cuda a"], "gloo"),  # NCCL refuses two workers on one GPU
        (["cuda a", "cuda b", "cuda a"], "gloo"),
        (["cuda a", "cuda"], "gloo"),  # a build of torch without NCCL
        (["cuda a", "cpu"], "gloo"),  # a worker without a GPU takes part
        (["xpu", "xpu"], "gloo"),
        (["mps", "mps"], "gloo"),
        (["cpu", "cpu"], "gloo"),
        (["cuda a", "rocm b", "xpu", "mps", "cpu"], "gloo"),
    ],
)
def test_nccl_carries_only_where_each_has_a_gpu_of_one_vendor_to_itself(workers: list[str], backend: str) -> None:
    assert backend_for(devices(*workers)) == backend


@pytest.mark.parametrize(
    ("backend", "kinds", "host"),
    [
        (NCCL, ["cuda", "cuda"], False),
        (NCCL, ["cuda", "cpu"], True),  # a script that keeps its model on the CPU
        (NCCL, ["cpu", "cpu"], False),
        ("nccl", ["cuda", "cuda"], False),  # a group that the script has made
        ("xccl", ["xpu", "xpu"], False),
        ("gloo", ["cuda", "cuda"], True),
        ("cpu:gloo,cuda:gloo", ["cuda", "cpu"], True),  # torch names devices that gloo takes in a few exchanges
        ("gloo", ["xpu", "mps", "cpu"], True),
        ("gloo", ["mps"], True),
        ("gloo", ["cpu", "cpu"], False),
        ("", ["cpu"], False),  # a single process
    ],
)
def test_all_go_through_host_memory_if_one_must(backend: str, kinds: list[str], host: bool) -> None:
    assert through_host(backend, kinds) is host


def test_what_a_back_end_takes() -> None:
    assert [takes(NCCL, kind) for kind in ("cpu", "cuda", "xpu", "mps")] == [True, True, False, False]
