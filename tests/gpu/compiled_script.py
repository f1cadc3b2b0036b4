"""A session on a compiled model; a process of its own, as the compiler leaves processes and threads behind."""

from gpu_training import alone, assert_same, mlp, momentum, together

if __name__ == "__main__":
    import torch

    model = mlp("cuda")
    together(torch.compile(model), momentum, 2)
    assert_same(model, alone(mlp("cuda"), momentum, 2), 1e-10)
