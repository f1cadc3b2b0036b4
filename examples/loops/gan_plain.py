"""A GAN: two networks, two optimizers, three backward passes for each batch (after DCGAN)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 24
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(200, 5), torch.randn(200, 3))


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5))
        self.discriminator = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, real=None, noise=None):
        x = real if noise is None else self.generator(noise)
        return self.discriminator(x).squeeze(1)


def loss(output, target):
    return F.binary_cross_entropy_with_logits(output, torch.full_like(output, target))


model = Gan()
of_discriminator = torch.optim.SGD(model.discriminator.parameters(), lr=0.1, momentum=0.5)
of_generator = torch.optim.SGD(model.generator.parameters(), lr=0.1, momentum=0.5)
loader = DataLoader(dataset, BATCH)

for _ in range(2):
    for real, noise in loader:
        model.zero_grad()
        loss(model(real), 1.0).backward()
        with torch.no_grad():
            fake = model.generator(noise)
        loss(model(fake), 0.0).backward()
        of_discriminator.step()
        model.zero_grad()
        loss(model(noise=noise), 1.0).backward()
        of_generator.step()
