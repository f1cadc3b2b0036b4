"""Decide which trials continue, and which waiting trial is next. Pure."""

from uneven.search.schedulers.asha import StoppingAsha
from uneven.search.schedulers.base import Scheduler, schedulers
from uneven.search.schedulers.fifo import Fifo
from uneven.search.schedulers.hyperband import HyperBand
from uneven.search.schedulers.median import MedianStopping
from uneven.search.schedulers.pbt import PopulationBased
from uneven.search.schedulers.promotion import PromotingAsha

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
