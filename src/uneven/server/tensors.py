"""Tensors as the flat arrays that :class:`uneven.server.client.Client` takes; the memory is shared."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from uneven.errors import ConfigError
from uneven.server.wire import Array


def arrays_of(tensors: Iterable[Tensor]) -> list[Array]:
    """Views of the tensors, in their shapes. Autograd does not see writes to them as changes.

    Raises:
        ConfigError: a tensor does not lie in the host's memory in one piece, as the message says.
    """
    views = []
    for number, tensor in enumerate(tensors):
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ConfigError(
                f"tensor {number} of shape {tuple(tensor.shape)} on {tensor.device} cannot be shared: only contiguous "
                f"tensors on the CPU can; copy it to one first"
            )
        views.append(tensor.data.numpy().reshape(-1))
    return views
