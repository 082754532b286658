"""Pools, devices, counters and holdings, kept by events; snapshots to decide on.

``Inventory`` takes objects and gives snapshots; ``Snapshot`` is what the allocator reads.
"""

from drakkar.inventory.inventory import Inventory
from drakkar.inventory.snapshot import Snapshot
from drakkar.inventory.switches import Switches

__all__ = ["Inventory", "Snapshot", "Switches"]
