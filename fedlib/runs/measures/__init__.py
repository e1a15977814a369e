"""Measurements that are not federated runs; importing this registers them."""

from fedlib.runs.measures import client_data, times, under_flower  # noqa: F401
from fedlib.runs.measures.base import MEASURES

__all__ = ["MEASURES"]
