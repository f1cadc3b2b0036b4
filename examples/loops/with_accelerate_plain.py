"""Accelerate: the loop is one's own, precision and devices are Accelerate's."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import TensorDataset

BATCH = 24
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(200, 5), torch.randint(0, 3, (200,)))
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, optimizer)
loader = accelerator.prepare(torch.utils.data.DataLoader(dataset, BATCH))

for _ in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
