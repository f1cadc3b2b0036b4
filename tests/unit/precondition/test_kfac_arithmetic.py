"""Factors against loops over samples, preconditioned gradients against a dense solve, the clip against its formula."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workers import CallbackWorker, train

from uneven import KFAC
from uneven.precondition.kfac.sums import AutoSums, PatchSums, PixelSums, RowSums, Sums


def patches(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int], ones: bool) -> Tensor:
    padded, found = F.pad(x, (pad[1], pad[1], pad[0], pad[0])), []
    for one, top, left in itertools.product(
        padded,
        range(0, padded.shape[2] - kernel[0] + 1, stride[0]),
        range(0, padded.shape[3] - kernel[1] + 1, stride[1]),
    ):
        patch = one[:, top : top + kernel[0], left : left + kernel[1]].reshape(-1)
        found.append(torch.cat([patch, patch.new_ones(int(ones))]))
    return torch.stack(found)


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("size", [(5, 5), (4, 6), (1, 1), (2, 3)])
def test_sums_over_patches_are_those_of_a_loop(size: tuple[int, int], ones: bool) -> None:
    x = torch.randn(3, 4, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for sums, how in (
        (AutoSums(4, ones), ((3, 3), (1, 1), (1, 1))),
        (PixelSums(4, (2, 1), ones), ((1, 1), (2, 1), (0, 0))),
        (PatchSums(4, (3, 2), (2, 1), (1, 1), ones), ((3, 2), (2, 1), (1, 1))),
    ):
        rows = patches(x, *how, ones)
        torch.testing.assert_close(twice(sums, x), 0.75 * rows.T @ rows)


@pytest.mark.parametrize("wide", [1, 97, 300])
def test_sums_over_rows_leave_out_half_of_a_large_matrix(wide: int) -> None:
    rows = torch.randn(7, wide, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for ones in (False, True):
        full = torch.cat([rows, torch.ones(7, int(ones), dtype=rows.dtype)], 1)
        torch.testing.assert_close(twice(RowSums(wide, ones), rows), 0.75 * full.T @ full)
    assert RowSums(1000).numbers < 0.56 * 1000**2


def twice(sums: Sums, seen: Tensor) -> Tensor:
    flat = torch.zeros(sums.numbers, dtype=torch.float64)
    sums.add(flat, seen, 0.5)
    sums.add(flat, seen, 0.25)
    return sums.squares(flat[None])[0]


N = 6


def one_step(
    build: type[nn.Module] | object, x: Tensor, lr: float = 0.1, **how: object
) -> tuple[CallbackWorker, list[Tensor], list[Tensor]]:
    """Plain gradients and preconditioned ones of one step."""

    def use(worker: CallbackWorker) -> tuple[CallbackWorker, list[Tensor], list[Tensor]]:
        plain: list[Tensor] = []
        worker.optimizer.register_step_pre_hook(lambda *_: None)
        ready = worker.part.gradients_ready

        def noting(step: object, optimizer: torch.optim.Optimizer) -> None:
            plain.extend(p.grad.clone() for p in worker.model.parameters() if p.grad is not None)
            ready(step, optimizer)  # type: ignore[arg-type]

        worker.part.gradients_ready = noting  # type: ignore[method-assign, assignment]
        worker.step(x, torch.arange(N) % 3, (N,))
        return worker, plain, [p.grad for p in worker.model.parameters() if p.grad is not None]

    found = train(1, build, lambda: KFAC(**how), use, lr=lr)  # type: ignore[arg-type]
    return found[0]  # type: ignore[no-any-return]


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3)).double()


def brute(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """A and G of a linear layer, sample by sample."""
    a = torch.cat([x, torch.ones(N, 1, dtype=x.dtype)], 1)
    rows = []
    for one, label in zip(x, torch.arange(N) % 3, strict=True):
        output = model(one[None])
        rows.append(torch.autograd.grad(F.cross_entropy(output, label[None]), output)[0][0])
    g = torch.stack(rows)
    return a.T @ a / N, g.T @ g / N


@pytest.mark.parametrize("method", ["eigen", "inverse"])
def test_the_gradient_is_that_of_a_dense_solve(method: str) -> None:
    x, lam, decay = torch.randn(N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 0.2, 0.75
    _worker, plain, found = one_step(linear, x, damping=lam, kl_clip=None, factor_decay=decay, compute_method=method)
    torch.manual_seed(1)
    a, g = ((1 - decay) * one + decay * torch.eye(len(one), dtype=one.dtype) for one in brute(linear(), x))
    gradient = torch.cat([plain[0], plain[1][:, None]], 1)
    if method == "eigen":
        dense = torch.kron(a, g) + lam * torch.eye(15, dtype=a.dtype)  # of the gradient's columns, one below the other
        expected = torch.linalg.solve(dense, gradient.T.reshape(-1)).view(5, 3).T
    else:
        unit = torch.eye(5, dtype=a.dtype)
        expected = torch.linalg.inv(g + lam * unit[:3, :3]) @ gradient @ torch.linalg.inv(a + lam * unit)
    torch.testing.assert_close(torch.cat([found[0], found[1][:, None]], 1), expected)


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, (3, 3), padding=1), nn.Flatten(2)).double()


def test_factors_of_a_convolution_have_the_scaling_of_kfc() -> None:
    """The product of the factors is T · mean ⊗ mean; each by itself as in SC 2020's code."""
    x = torch.randn(N, 2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def use(worker: CallbackWorker) -> None:
        y = torch.arange(20).remainder(3).expand(N, 20)
        worker.step(x, y, (N,), loss=lambda model, a, b: F.cross_entropy(model(a), b, reduction="none").sum(1).mean())
        layer = worker.part.layers[0]  # type: ignore[attr-defined]
        a, g = (layer.factors(j, worker.part._kept[j][None], 0.0)[0] for j in (0, 1))  # type: ignore[attr-defined]
        torch.manual_seed(1)
        model, t = conv(), 20
        output = model[0](x)
        loss = F.cross_entropy(output.flatten(2), y, reduction="none").sum()
        g_rows = torch.autograd.grad(loss, output)[0].permute(0, 2, 3, 1).reshape(N * t, 3)  # of each sample alone
        a_rows = patches(x, (3, 3), (1, 1), (1, 1), ones=True)
        torch.testing.assert_close(a, a_rows.T @ a_rows / (N * t) / t)
        torch.testing.assert_close(g, g_rows.T @ g_rows / (N * t) * t**2)

    train(1, conv, lambda: KFAC(factor_decay="exp"), use)


def test_the_other_scaling_makes_the_product_smaller_by_the_factor_of_the_specification() -> None:
    """N² T⁵ of a convolution, 3,888 for four samples of three positions; N² of a linear layer."""
    x = torch.randn(4, 2, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def convolution() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten()).double()

    def flat() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double()

    def traces(build: Callable[[], nn.Module], scaling: str) -> float:
        def use(worker: CallbackWorker) -> float:
            worker.step(x, torch.arange(4) % 3, (4,))
            layer = worker.part.layers[0]  # type: ignore[attr-defined]
            a, g = (layer.factors(j, worker.part._kept[j][None], 0.0)[0] for j in (0, 1))  # type: ignore[attr-defined]
            return float(a.trace() * g.trace())

        return float(train(1, build, lambda: KFAC(factor_decay="exp", scaling=scaling), use)[0])

    assert traces(convolution, "kfc") / traces(convolution, "compat") == pytest.approx(3888)
    assert traces(flat, "kfc") / traces(flat, "compat") == pytest.approx(16)


def test_the_clip_bounds_the_step_and_hides_the_learning_rate() -> None:
    x = torch.randn(N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    worker, plain, free = one_step(linear, x, damping=0.2, kl_clip=None)
    s = sum(float((a * b).sum()) for a, b in zip(plain, free, strict=True)) * 0.1**2
    worker, _, clipped = one_step(linear, x, damping=0.2, kl_clip=s / 4)
    assert worker.part.nu == pytest.approx(0.5)  # type: ignore[attr-defined]
    torch.testing.assert_close(clipped[0], free[0] * 0.5)
    _, _, faster = one_step(linear, x, lr=0.3, damping=0.2, kl_clip=s / 4)
    torch.testing.assert_close(0.3 * faster[0], 0.1 * clipped[0])
    worker, _, loose = one_step(linear, x, damping=0.2, kl_clip=4 * s)
    assert worker.part.nu == 1.0  # type: ignore[attr-defined]
    torch.testing.assert_close(loose[0], free[0])
