"""Balancers: how much each worker computes."""

from uneven.policy.balance.analytic import Analytic
from uneven.policy.balance.balancer import Balancer, WrappingBalancer, balancers, standing
from uneven.policy.balance.even import Even
from uneven.policy.balance.hysteresis import Hysteresis
from uneven.policy.balance.lb_bsp import LbBsp
from uneven.policy.balance.numerical import Numerical
from uneven.policy.balance.presume import PresumeEqual
from uneven.policy.balance.proportional import Proportional
from uneven.policy.balance.static import Static

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
