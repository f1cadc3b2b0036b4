"""The trainings of the benches, by name: the demo's network on real images, or one of the authors' own workloads."""

from functools import lru_cache

from uneven.cli.demo.demo_training import network
from uneven.cluster.virtual.datasets import images
from uneven.errors import UnknownNameError
from uneven_bench.workloads.base import TrainingWorkload
from uneven_bench.workloads.resnet import resnet
from uneven_bench.workloads.svm import svm

WIDTH = 64  # channels of the benches' network


@lru_cache(maxsize=1)
def workload(name: str, data: str = "digits") -> TrainingWorkload:
    """Return "images" (the network on ``data``), "svm" (sparse URLs) or "resnet" (CIFAR-10). Raises UnknownNameError:
    no such workload or data set. DataError: the data is not on this machine; the message says how to get it."""
    makers = {"images": lambda: _convolutional(data), "svm": svm, "resnet": resnet}
    if name not in makers:
        raise UnknownNameError("workload", name, makers)
    return makers[name]()


def _convolutional(data: str) -> TrainingWorkload:
    found = images(data)
    about = f"a convolutional network of width {WIDTH} on {data}"
    return TrainingWorkload(about=about, train=found.train, test=found.test, make=lambda: network(found, WIDTH))
