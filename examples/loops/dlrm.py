"""The shape of DLRM: tables of embeddings with sparse gradients, and two stacks of layers around their products.

    uneven run --nproc 4 --shares 0.6,0.4,0.2,0.1 examples/loops/dlrm.py

What differs from ``dlrm_plain.py``: the lines that name uneven or its session.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven

TABLES, ROWS, DENSE, BATCH = 3, 40, 4, 24
torch.manual_seed(0)
ids, dense = torch.randint(0, ROWS, (200, TABLES)), torch.randn(200, DENSE)
dataset = TensorDataset(ids, dense, torch.randint(0, 2, (200,)).float())


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, 8, sparse=True) for _ in range(TABLES))
        self.bottom = nn.Sequential(nn.Linear(DENSE, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + (TABLES + 1) ** 2, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids, dense):
        below = self.bottom(dense)
        rows = [below, *(table(ids[:, number : number + 1]) for number, table in enumerate(self.tables))]
        vectors = torch.stack(rows, 1)
        products = (vectors @ vectors.mT).flatten(1)
        return self.top(torch.cat([below, products], 1)).squeeze(1)


model = Recommender()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = uneven.Session()
model, optimizer = session.setup(model, optimizer)
loader = session.loader(dataset, BATCH, shuffle=False)

for _ in range(2):
    for ids, dense, clicked in loader:
        loss = F.binary_cross_entropy_with_logits(model(ids, dense), clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
