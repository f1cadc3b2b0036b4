"""Models of the bench and their random batches: a step costs the same on any numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven_bench.workloads.resnet import resnet32


class _Attention(nn.Module):
    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(wide)
        self.norm2 = nn.LayerNorm(wide)
        self._heads = heads
        self.mix = nn.Linear(wide, 3 * wide)
        self.out = nn.Linear(wide, wide)
        self.up = nn.Linear(wide, 4 * wide)
        self.down = nn.Linear(4 * wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.mix(self.norm(x)).view(n, t, 3, self._heads, d // self._heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A language model of four layers of 128."""

    def __init__(self, words: int = 256, wide: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, wide)
        self.places = nn.Parameter(torch.zeros(64, wide))
        self.layers = nn.Sequential(*(_Attention(wide, 4) for _ in range(layers)))
        self.norm = nn.LayerNorm(wide)
        self.head = nn.Linear(wide, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of the next word, shape (words in all, 256)."""
        return self.head(self.norm(self.layers(self.words(x) + self.places))).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A model, and samples of one worker in a step."""

    make: Callable[[], nn.Module]
    draw: Callable[[int], tuple[Tensor, Tensor]]  # samples → a batch
    each: int


def _images(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 32, 32), torch.randint(0, 10, (n,))


def _rows(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 784), torch.randint(0, 10, (n,))


def _words(n: int) -> tuple[Tensor, Tensor]:
    text = torch.randint(0, 256, (n, 65))
    return text[:, :-1].contiguous(), text[:, 1:].reshape(-1)


def _mlp() -> nn.Module:
    wide = (784, 512, 512, 512)
    hidden = [layer for a, b in pairwise(wide) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(512, 10))


MODELS = {
    "resnet20": TimedModel(lambda: resnet32(3), _images, 8),
    "resnet32": TimedModel(lambda: resnet32(5), _images, 8),
    "mlp": TimedModel(_mlp, _rows, 32),
    "transformer": TimedModel(Transformer, _words, 4),
}
