"""Balancers: how much each worker computes. Pure."""

from uneven.balance.analytic import Analytic
from uneven.balance.base import Balancer, WrappingBalancer, balancers, standing
from uneven.balance.even import Even
from uneven.balance.hysteresis import Hysteresis
from uneven.balance.lb_bsp import LbBsp
from uneven.balance.numerical import Numerical
from uneven.balance.presume import PresumeEqual
from uneven.balance.proportional import Proportional
from uneven.balance.static import Static

balancers.register("even", Even)
balancers.register("static", Static)
balancers.register("proportional", Proportional)
balancers.register("lb-bsp", LbBsp)
balancers.register("analytic", Analytic)
balancers.register("numerical", Numerical)

__all__ = [
    "Analytic",
    "Balancer",
    "Even",
    "Hysteresis",
    "LbBsp",
    "Numerical",
    "PresumeEqual",
    "Proportional",
    "Static",
    "WrappingBalancer",
    "balancers",
    "standing",
]
