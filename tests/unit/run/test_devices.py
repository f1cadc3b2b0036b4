"""What carries tensors between the devices of workers."""

import pytest

from uneven.run.start.devices import backend_for


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["a", "b"], "cpu:gloo,cuda:nccl"),
        (["a", "a"], "gloo"),  # NCCL refuses two workers on one GPU
        (["a", "b", "a"], "gloo"),
        (["a", ""], "gloo"),  # a worker without a GPU takes part
        (["", ""], "gloo"),
    ],
)
def test_nccl_carries_only_where_each_has_a_gpu_to_itself(gpus: list[str], backend: str) -> None:
    assert backend_for(gpus) == backend
