"""Measurements that are not federated runs, such as the seconds of an aggregation step. They are records too.

A notebook's grid may hold ``Measure("aggregation_time(model=resnet20)")`` beside its ``RunSpec``s: planned, stored
and read back the same way, so that a page renders without measuring anything again.
"""

from fedlib.core.registry import Registry

MEASURES = Registry("measurement")
