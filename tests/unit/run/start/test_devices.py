"""What carries tensors between the devices of workers."""

import pytest

from uneven.run.start.connect import backend_for


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["cuda a", "cuda b"], "cpu:gloo,cuda:nccl"),
        (["rocm a", "rocm b"], "cpu:gloo,cuda:nccl"),
        (["cuda a", "rocm b"], "gloo"),  # NCCL and RCCL have one name and do not understand each other
        (["cuda a", "cuda a"], "gloo"),  # NCCL refuses two workers on one GPU
        (["cuda a", "cuda b", "cuda a"], "gloo"),
        (["cuda a", ""], "gloo"),  # a worker without a GPU takes part
        (["", ""], "gloo"),
    ],
)
def test_nccl_carries_only_where_each_has_a_gpu_to_itself(gpus: list[str], backend: str) -> None:
    assert backend_for(gpus) == backend
