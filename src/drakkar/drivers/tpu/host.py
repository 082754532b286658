"""The part on each host: gives the containers of a claim the host's chips and says which worker of the slice it is.

Devices are published by the central controller; this part prepares them, and marks its Node where chips are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from drakkar.api.meta import Object
from drakkar.api.names import TPU_DRIVER
from drakkar.api.objects import annotations_of, name_of
from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, ContainerEdits, Driver, Health, Pool, Prepared, PrepareError, attributes
from drakkar.drivers.tpu.chips import Chips
from drakkar.drivers.tpu.driver import BROKEN, host_of
from drakkar.drivers.tpu.shapes import Host, area_of

#: Reads the Node of this host, now.
ReadNode = Callable[[], Object]
#: The same as it was seen last, by a watch; None before it was seen.
SeenNode = Callable[[], Object | None]
#: Marks it: what is wrong with its chips, empty when nothing is.
Mark = Callable[[str], None]


class TpuHostDriver(Driver):
    """Every claim on the host gets all of its chips: no two allocated devices share a host."""

    name = TPU_DRIVER
    unhealthy = "None"

    def __init__(self, chips: Chips, read: ReadNode, seen: SeenNode, mark: Mark) -> None:
        self._chips = chips
        self._read = read
        self._seen = seen
        self._mark = mark

    def discover(self) -> Sequence[v1.Device]:
        """Nothing: devices span hosts."""
        return []

    def pools(self, node: str) -> Sequence[Pool]:
        """None of this node's own."""
        return []

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[Prepared]:
        """The chips, and the place of this host in the slice."""
        pod, host = self._host()
        return [self._prepare(pod, host, found) for found in devices]

    def health(self) -> Mapping[str, Health]:
        """Looks for missing chips; the mark on the Node is what the central controller acts on."""
        node = self._seen()
        found = host_of(node) if node is not None else None
        if node is None or found is None:
            return {}
        wanted, present = found[1].chips, len(self._chips.nodes())
        problem = f"{present} of {wanted} chips" if present < wanted else ""
        if problem != annotations_of(node).get(BROKEN, ""):
            self._mark(problem)
        return {}

    def _host(self) -> tuple[str, Host]:
        node = self._read()
        found = host_of(node)
        if found is None:
            raise PrepareError(f"node {name_of(node)} is no host of a TPU pod: its labels do not say which and where")
        return found

    def _prepare(self, pod: str, host: Host, found: AllocatedDevice) -> Prepared:
        area = area_of(found.name)
        number = area.number(host) if area is not None and found.result.pool == pod else None
        if area is None or number is None:
            place = f"({host.x}, {host.y}) of TPU pod {pod}"
            raise PrepareError(f"device {found.result.pool}/{found.name} has no host at {place}, which this node is")
        nodes = self._chips.nodes()
        if len(nodes) < host.chips:
            raise PrepareError(f"{len(nodes)} of {host.chips} chips of this host are there")
        rows = area.rows(host)
        env = {
            "TPU_WORKER_ID": number,
            "TPU_TOPOLOGY": area.topology,
            "TPU_CHIPS_PER_HOST_BOUNDS": f"{host.width},{host.height},1",
            "TPU_HOST_BOUNDS": f"{len(rows[0])},{len(rows)},1",
            # There is no metadata server of a cloud to ask.
            "TPU_SKIP_MDS_QUERY": "true",
        }
        edits = ContainerEdits(
            env=[f"{name}={value}" for name, value in env.items()], deviceNodes=[*nodes, *self._chips.common()]
        )
        told = attributes({"topology": area.topology, "worker": number, "chips": host.chips, "pod": pod})
        return Prepared(edits=edits, attributes=told)
