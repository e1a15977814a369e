"""Measurements that are not federated runs; importing this registers them."""

from fedlib.runs.measures import under_flower  # noqa: F401
from fedlib.runs.measures.base import MEASURES
from fedlib.runs.measures.client_data import ClassCounts, DataDistances
from fedlib.runs.measures.times import AggregationTime, EpochTime, RoundCost

__all__ = ["MEASURES", "AggregationTime", "ClassCounts", "DataDistances", "EpochTime", "RoundCost"]
