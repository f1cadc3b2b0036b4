"""Balancers: how much each worker computes."""

from uneven.policy.balance.analytic import Analytic
from uneven.policy.balance.balancer import Balancer, Even, Hysteresis, WrappingBalancer, balancers, standing
from uneven.policy.balance.lb_bsp import LbBsp, PresumeEqual, Proportional
from uneven.policy.balance.numerical import Numerical
from uneven.policy.balance.static import Static

balancers.register("even", Even)
balancers.register("static", Static)
balancers.register("proportional", Proportional)
balancers.register("lb-bsp", LbBsp)
balancers.register("analytic", Analytic)
balancers.register("numerical", Numerical)

__all__ = ["Analytic", "Even", "Hysteresis", "LbBsp", "Numerical", "PresumeEqual", "Proportional", "Static"]
