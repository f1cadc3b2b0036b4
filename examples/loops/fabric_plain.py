"""Lightning Fabric: the loop is one's own, precision and devices are Fabric's."""

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import TensorDataset

BATCH = 24
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(200, 5), torch.randint(0, 3, (200,)))
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

fabric = Fabric(accelerator="cpu", devices=1)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(dataset, BATCH))

for _ in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
