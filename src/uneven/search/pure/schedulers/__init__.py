"""Decide which trials continue, and which waiting trial is next."""

from uneven.search.pure.schedulers.asha import StoppingAsha
from uneven.search.pure.schedulers.hyperband import HyperBand
from uneven.search.pure.schedulers.median import MedianStopping
from uneven.search.pure.schedulers.pbt import PopulationBased
from uneven.search.pure.schedulers.promotion import PromotingAsha
from uneven.search.pure.schedulers.scheduler import Fifo, Scheduler, schedulers

schedulers.register("fifo", Fifo)
schedulers.register("asha", StoppingAsha)
schedulers.register("asha-promote", PromotingAsha)
schedulers.register("hyperband", HyperBand)
schedulers.register("median", MedianStopping)
schedulers.register("pbt", PopulationBased)

__all__ = [
    "Fifo",
    "HyperBand",
    "MedianStopping",
    "PopulationBased",
    "PromotingAsha",
    "Scheduler",
    "StoppingAsha",
    "schedulers",
]
