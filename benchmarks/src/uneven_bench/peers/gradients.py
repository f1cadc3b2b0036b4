"""Gradients of all parameters as one vector."""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def parts(vector: torch.Tensor, like: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each tensor with its part of a vector, in its shape."""
    for tensor, part in zip(like, vector.split([tensor.numel() for tensor in like]), strict=True):
        yield tensor, part.view_as(tensor)


def reduce(parameters: Sequence[torch.Tensor], sums: Sequence[torch.Tensor], samples: int) -> int:
    """Let ``.grad`` be the mean over the samples of all ranks, from this rank's sums, and return their number."""
    vector = torch.cat([flat(sums), sums[0].new_tensor([float(samples)])])
    dist.all_reduce(vector)
    done = round(float(vector[-1]))
    for parameter, part in parts(vector[:-1] / done, parameters):
        parameter.grad = part
    return done
