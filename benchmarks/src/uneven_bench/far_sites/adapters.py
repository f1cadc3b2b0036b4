"""The held-out loss of LoRA's adapters on three unequal machines, by policy: real gradients in virtual time.

GPT, texts and machines are those of the tutorial on adapters. All seeds train at once, as parts of one vector. That is
exact, because no policy here mixes its numbers: what a policy does to the vector it does to each part.
"""

from __future__ import annotations

import statistics
from itertools import accumulate, pairwise
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload, steady
from uneven.cluster.pure.simulate import Outcome, Scenario, simulate
from uneven.cluster.virtual.server_copies_board import Board
from uneven.cluster.virtual.task import Gradient, LearningTask
from uneven.cluster.virtual.virtual_replicas import SampleOrder, Sgd
from uneven.cluster.virtual.virtual_run import prepared
from uneven.cluster.virtual.virtual_training import Training
from uneven.policy.balance import balancers
from uneven.policy.core.actions import Exchange
from uneven.policy.sync import policies
from uneven_bench.harness.data import shakespeare
from uneven_bench.harness.figures import in_turns
from uneven_bench.harness.show import Progress

POLICIES = (
    "bsp",
    "diloco:every=8,outer_momentum=0.5",
    "decoupled:every=8,outer_momentum=0.5",
    "decoupled:every=2,outer_momentum=0.5",
    "decoupled:every=8,outer_momentum=0",
    "decoupled:every=2,outer_momentum=0",
)
SEEDS, QUICK_SEEDS = 5, 2
BATCH, LENGTH, HEADS, SCALE = 24, 64, 4, 4.0
_LEARNING_RATE, _DECAY, _BETAS = 1e-2, 1e-2, (0.9, 0.999)  # of torch's AdamW

MACHINES = ClusterSpec(
    name="three",
    nodes=(
        Node(name="home", cores=1.0, up_bit_per_s=steady(20e6), down_bit_per_s=steady(100e6)),
        Node(name="lab", cores=0.5),
        Node(name="cloud", cores=0.3),
    ),
    workload=Workload(global_batch=BATCH, gradient_bytes=13_000, overhead_core_s=0.01, per_sample_core_s=0.003),
)


def windows(text: str, most: int) -> tuple[Tensor, Tensor]:
    """Return windows to train on, at most this number, and 64 others, both int64 (n, LENGTH)."""
    codes = torch.tensor([ord(one) for one in text if one.isascii()])
    rows = codes[: len(codes) // LENGTH * LENGTH].view(-1, LENGTH)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    return rows[64 : 64 + most], rows[:64]


def gpt() -> Any:
    """Return the GPT before its training."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2}
    ends = {"max_position_embeddings": LENGTH, "bos_token_id": 0, "eos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, **ends, num_attention_heads=HEADS))


def trained(rows: Tensor) -> Any:
    """Return the GPT after one epoch of ``rows`` by one process."""
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in rows.split(32):
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def adapted(model: Any, seed: int) -> Any:
    """Return the model with the first adapters of a seed; ``model.unload()`` takes them away."""
    torch.manual_seed(seed)
    return get_peft_model(model, LoraConfig(r=1, lora_alpha=int(SCALE), target_modules="all-linear"))


class Adapters(LearningTask):
    """The adapters of all seeds, (seeds · numbers,), on one frozen GPT. Each seed has its own order of the samples."""

    def __init__(self, model: Any, rows: Tensor, held_out: Tensor, seeds: int) -> None:
        self.samples, self.learning_rate = len(rows), _LEARNING_RATE
        self._rows, self._held_out = rows, held_out
        self._seeds = seeds
        self._frozen = {name: value.detach().clone() for name, value in model.state_dict().items()}
        orders = [torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)) for seed in range(seeds)]
        self._orders = torch.stack(orders)
        first = []
        for seed in range(seeds):
            peft = adapted(model, seed)
            named = {
                name.removeprefix("base_model.model.").replace(".default.weight", ""): one.detach()
                for name, one in peft.named_parameters()
                if one.requires_grad
            }
            first.append(torch.cat([one.flatten() for one in named.values()]))
            self._shapes = {name: one.shape for name, one in named.items()}
            peft.unload()
        self._first = torch.cat(first)
        self._here = self._first
        size = self._frozen["lm_head.weight"].shape[1] // HEADS
        turns = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(float(LENGTH)), turns).repeat(1, 2)
        self._cos, self._sin = angles.cos(), angles.sin()

    def initial(self) -> Tensor:
        return self._first

    def gradient(self, parameters: Tensor, samples: Tensor) -> Gradient:
        """Return the gradient of each seed's own mean loss over its samples, and the mean loss of all."""
        at = parameters.clone().requires_grad_()
        losses = self.losses(at, self._rows[self._orders[:, samples]])
        losses.sum().backward()
        self._here = parameters
        assert at.grad is not None
        return Gradient(at.grad, float(losses.detach().mean()))

    def direction(self, velocity: Tensor | None, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return AdamW's direction, (size,), and its state: both moments and the number of steps, (2 · size + 1,)."""
        size = len(gradient)
        state = torch.zeros(2 * size + 1) if velocity is None else velocity.clone()
        (b1, b2), steps = _BETAS, float(state[-1]) + 1
        first, second = state[:size], state[size : 2 * size]
        first.lerp_(gradient, 1 - b1)
        second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        state[-1] = steps
        root = (second / (1 - b2**steps)).sqrt_().add_(1e-8)
        return first / (1 - b1**steps) / root + _DECAY * self._here, state

    def accuracy(self, parameters: Tensor) -> float:
        return 0.0

    @torch.no_grad()
    def held_out(self, parameters: Tensor) -> list[float]:
        """Return the held-out loss of each seed."""
        found: list[float] = self.losses(parameters, self._held_out.expand(self._seeds, -1, -1)).tolist()
        return found

    def losses(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return the mean loss of each seed, (seeds,), on its own windows ``x`` (seeds, n, LENGTH): what transformers
        and PEFT compute seed by seed."""
        seeds, n, _ = x.shape
        ends = [0, *accumulate(shape.numel() for shape in self._shapes.values())]
        rows = parameters.view(seeds, -1)
        own = {
            name: rows[:, start:end].reshape(seeds, *shape)
            for (name, shape), (start, end) in zip(self._shapes.items(), pairwise(ends), strict=True)
        }

        def normed(h: Tensor, name: str) -> Tensor:
            return F.rms_norm(h, h.shape[-1:], self._frozen[f"{name}.weight"], 1e-6)

        def linear(h: Tensor, name: str) -> Tensor:
            low = h.flatten(1, 2) @ own[f"{name}.lora_A"].mT
            more = (low @ own[f"{name}.lora_B"].mT).view(*h.shape[:-1], -1)
            return F.linear(h, self._frozen[f"{name}.weight"]) + SCALE * more

        def heads(h: Tensor) -> Tensor:
            return h.view(seeds * n, LENGTH, HEADS, -1).transpose(1, 2)

        def turned(h: Tensor) -> Tensor:
            left, right = h.chunk(2, -1)
            return h * self._cos + torch.cat([-right, left], -1) * self._sin

        h = F.embedding(x, self._frozen["model.embed_tokens.weight"])
        for layer in range(sum(name.endswith("q_proj.lora_A") for name in own)):
            at = f"model.layers.{layer}"
            y = normed(h, f"{at}.input_layernorm")
            q, k, v = (heads(linear(y, f"{at}.self_attn.{one}_proj")) for one in "qkv")
            seen = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
            h = h + linear(seen.transpose(1, 2).reshape(h.shape), f"{at}.self_attn.o_proj")
            y = normed(h, f"{at}.post_attention_layernorm")
            inner = F.silu(linear(y, f"{at}.mlp.gate_proj")) * linear(y, f"{at}.mlp.up_proj")
            h = h + linear(inner, f"{at}.mlp.down_proj")
        told = F.linear(normed(h, "model.norm"), self._frozen["lm_head.weight"])[:, :, :-1]
        return F.cross_entropy(told.flatten(0, 2), x[:, :, 1:].flatten(), reduction="none").view(seeds, -1).mean(1)


class Counted(Training):
    """Counts merges, and each machine's samples."""

    def __init__(self, *rest: Any, **named: Any) -> None:
        super().__init__(*rest, **named)
        self.merged = 0
        self.samples: dict[int, int] = {}

    def steps(self, rank: int, iteration: int, at_s: float) -> None:
        gradient = self._replicas[rank].gradient
        assert gradient is not None
        self.samples[rank] = self.samples.get(rank, 0) + len(gradient.samples)
        super().steps(rank, iteration, at_s)

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        super().merges(exchange, ranks)
        self.merged += 1

    def evaluated(self) -> Tensor:
        """Return the model to evaluate after the end, (size,)."""
        return self._model(min(self._live))


def learn(policy: str, task: Adapters, epochs: int) -> dict[str, Any]:
    """Train once; every policy takes the same number of samples."""
    chosen = policies.resolve(policy)
    iterations = epochs * task.samples // BATCH
    balancer = balancers.resolve("even")
    scenario = prepared(Scenario(spec=MACHINES, balancer=balancer, policy=chosen, iterations=iterations), task)
    board = Board(task, lambda record: None, every=2 * epochs * task.samples)
    sgd = Sgd(task, SampleOrder(task.samples, 0), board.losses)
    training = Counted(sgd, evaluation_model=chosen.evaluation_model, board=board)
    outcome: Outcome = simulate(scenario, lambda record: None, arithmetic=training)
    losses = task.held_out(training.evaluated())
    return {
        "loss": statistics.fmean(losses),
        "seeds": sorted(losses),
        "merges": training.merged,
        "samples": [training.samples[rank] for rank in sorted(training.samples)],
        "seconds": outcome.ended_at_s,
    }


def play(quick: bool, told: Progress) -> dict[str, Any]:
    """Return policy → ``loss``: mean of the ``seeds``, held out; ``merges``; ``samples`` of each machine; virtual
    ``seconds``. Raises DataError: Shakespeare is not on this machine."""
    torch.set_num_threads(1)  # sums, and so the figures, would depend on the number of cores
    most, epochs = (384, 1) if quick else (1536, 4)
    manual = "\n".join(topics.values())
    first, _ = windows(shakespeare(), most)
    rows, held_out = windows(manual[len(manual) // 2 :], most)
    task = Adapters(trained(first), rows, held_out, QUICK_SEEDS if quick else SEEDS)
    return {policy: learn(policy, task, epochs) for (policy,) in in_turns(told, "adapters", POLICIES)}
