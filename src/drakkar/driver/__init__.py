"""The framework for driver authors.

So far its core: describing devices (:mod:`drakkar.driver.devices`), what has to be written so
that the API shows a pool as it is (:mod:`drakkar.driver.pools`), and the controller that
keeps it so (:mod:`drakkar.driver.publisher`).
"""

from drakkar.driver.devices import attributes, capacities, consumes, counter_set, hosts, split
from drakkar.driver.pools import Pool, SliceContent, check_pool, plan_pool
from drakkar.driver.publisher import SlicePublisher

__all__ = [
    "Pool",
    "SliceContent",
    "SlicePublisher",
    "attributes",
    "capacities",
    "check_pool",
    "consumes",
    "counter_set",
    "hosts",
    "plan_pool",
    "split",
]
