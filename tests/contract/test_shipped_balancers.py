"""Every shipped balancer keeps the contract. Sums and limits are LB-BSP's acceptance test 1."""

from __future__ import annotations

from uneven.policy.balance import (
    Analytic,
    Balancer,
    Even,
    Hysteresis,
    LbBsp,
    Numerical,
    PresumeEqual,
    Proportional,
    Static,
    balancers,
)
from uneven.testing.contracts import BalancerContract


class TestEven(BalancerContract):
    def make(self) -> Balancer:
        return Even()


class TestStaticShares(BalancerContract):
    workers = 4

    def make(self) -> Balancer:
        return balancers.resolve("static:shares=0.6/0.4/0.2/0.1")


class TestStaticProfile(BalancerContract):
    def make(self) -> Balancer:
        return Static(profile=2)


class TestProportional(BalancerContract):
    def make(self) -> Balancer:
        return Proportional()


class TestHysteresis(BalancerContract):
    def make(self) -> Balancer:
        return Hysteresis(Proportional(predictor="last"), fraction=0.5)


class TestPresumeEqual(BalancerContract):
    def make(self) -> Balancer:
        return PresumeEqual(Proportional(predictor="last"), margin=0.2)


class TestLbBsp(BalancerContract):
    def make(self) -> Balancer:
        return LbBsp()


class TestAnalytic(BalancerContract):
    def make(self) -> Balancer:
        return Analytic(window=1, rest=0.0)


class TestAnalyticWithAProfile(BalancerContract):
    workers = 2

    def make(self) -> Balancer:
        return Analytic(profile=((0.0, 0.1, 0.01), (0.2, 0.0, 0.02)))


class TestNumerical(BalancerContract):
    def make(self) -> Balancer:
        return Numerical(window=1)


class TestNumericalOfADevice(BalancerContract):
    workers = 2

    def make(self) -> Balancer:
        return balancers.resolve("numerical:pairs=2,window=1,saturation=2/3,rest=0")


def test_no_shipped_balancer_is_left_out() -> None:
    assert set(balancers) == {"even", "static", "proportional", "lb-bsp", "analytic", "numerical"}
