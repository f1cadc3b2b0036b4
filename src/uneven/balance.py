"""Balancers as objects: ``Session(balance=uneven.balance.LbBsp())``. By its name it is ``balance="lb-bsp"``."""

from uneven.policy.balance import Analytic, Even, Hysteresis, LbBsp, Numerical, PresumeEqual, Proportional, Static

__all__ = ["Analytic", "Even", "Hysteresis", "LbBsp", "Numerical", "PresumeEqual", "Proportional", "Static"]
