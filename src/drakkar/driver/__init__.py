"""The framework for driver authors.

:class:`Driver` is what an author writes and :func:`main` what runs it; the tutorial is docs/tutorial/write-a-driver.md.
Below these: describing devices (:mod:`drakkar.driver.devices`), what has to be written so that the API shows a pool as
it is (:mod:`drakkar.driver.pools`), and the controller that keeps it so (:mod:`drakkar.driver.publisher`).
"""

from drakkar.driver.devices import attributes, capacities, consumes, counter_set, device, hosts, split
from drakkar.driver.driver import AllocatedDevice, Driver, Health, Prepared, PrepareError
from drakkar.driver.pools import Pool, SliceContent, check_pool, node_pool, plan_pool
from drakkar.driver.publisher import SlicePublisher
from drakkar.plugin.cdi import ContainerEdits, DeviceNode, Hook, Mount

__all__ = [
    "AllocatedDevice",
    "ContainerEdits",
    "DeviceNode",
    "Driver",
    "Health",
    "Hook",
    "Mount",
    "Pool",
    "PrepareError",
    "Prepared",
    "SliceContent",
    "SlicePublisher",
    "attributes",
    "capacities",
    "check_pool",
    "consumes",
    "counter_set",
    "device",
    "hosts",
    "main",
    "node_pool",
    "plan_pool",
    "split",
]


def main(driver: Driver, argv: list[str] | None = None) -> int:
    """Run a driver until SIGTERM or Ctrl-C; returns the exit code. Needs the extra `node`."""
    from drakkar.driver.command import main as run  # A client of the API is more than describing devices needs.

    return run(driver, argv)
