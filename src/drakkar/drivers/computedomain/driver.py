"""The part on each node: joins the domain's daemon when a pod of the domain comes, and says so in the ComputeDomain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import msgspec

from drakkar.api.meta import Object
from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, Driver, Health, Pool, Prepared, PrepareError
from drakkar.drivers.computedomain.fabric import Fabric, FabricError
from drakkar.drivers.computedomain.names import NAME, VERSION
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import PreparedDevice

logger = logging.getLogger(__name__)


class ChannelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the controller puts into the claim. `waitForAll`: pods start only when so many nodes have joined."""

    domain: str
    name: str
    numNodes: int = 0
    waitForAll: bool = False


#: Reads the ComputeDomain `namespace/name`; None when there is none.
ReadDomain = Callable[[str, str], Object | None]
#: Says in the domain's status that this node has joined (True) or left.
Tell = Callable[[str, str, bool], None]


class ComputeDomainDriver(Driver):
    """Devices are published by the controller; this part only prepares them."""

    name = NAME
    configs = {(f"{NAME}/{VERSION}", "ChannelConfig"): ChannelConfig}
    unhealthy = "None"

    def __init__(self, node: str, fabric: Fabric, read: ReadDomain, tell: Tell) -> None:
        self._node = node
        self._fabric = fabric
        self._read = read
        self._tell = tell
        self._lock = Lock()
        #: Claims that have been unprepared, and may have their record still: their domains are not joined again.
        self._left: set[str] = set()

    def discover(self) -> Sequence[v1.Device]:
        """Nothing: channels belong to cliques, not to nodes."""
        return []

    def pools(self, node: str) -> Sequence[Pool]:
        """None of this node's own."""
        return []

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[Prepared]:
        """Join the domain, then give access to its channel."""
        return [self._prepare(claim, found) for found in devices]

    def unprepare(self, claim: wire.Claim, devices: Sequence[PreparedDevice]) -> None:
        """Leave it: the last pod of the domain on this node has gone."""
        with self._lock:
            self._left.add(claim.uid)
            for found in devices:
                domain = found.state.get("domain")
                if domain:
                    try:
                        self._fabric.leave(domain)
                    except FabricError as error:
                        raise PrepareError(str(error)) from error
                    self._tell(claim.namespace, found.state["name"], False)

    def health(self) -> Mapping[str, Health]:
        """Nothing to say of devices; every look also tells the daemons of nodes that have joined since.

        It starts those again that ended, by themselves or with the driver's last container.
        """
        with self._lock:
            records = self.records()
            self._left &= records.keys()
        for uid, devices in records.items():
            for found in devices:
                state = found.state
                domain = self._read(state["namespace"], state["name"]) if "domain" in state else None
                if domain is not None and domain["metadata"]["uid"] == state["domain"]:
                    with self._lock:
                        # The claim may have been unprepared while the domain was read.
                        if uid in self._left or uid not in self.records():
                            break
                        try:
                            self._fabric.join(state["domain"], state["channel"], _addresses(domain))
                        except FabricError as error:
                            logger.warning("ComputeDomain %s/%s: %s", state["namespace"], state["name"], error)
        return {}

    def _prepare(self, claim: v1.ResourceClaim, found: AllocatedDevice) -> Prepared:
        config = found.configs[-1] if found.configs else None
        if not isinstance(config, ChannelConfig):
            raise PrepareError("the claim belongs to no ComputeDomain: create one, and use the claim that it names")
        domain = self._read(claim.metadata.namespace, config.name)
        if domain is None or domain["metadata"]["uid"] != config.domain:
            raise PrepareError(f"ComputeDomain {claim.metadata.namespace}/{config.name} is gone or was made anew")
        channel = int(found.name.rpartition("-")[2])
        with self._lock:
            self._left.discard(claim.metadata.uid)
            try:
                self._fabric.join(config.domain, channel, _addresses(domain))
                if not self._fabric.ready(config.domain):
                    raise FabricError(f"the daemon of domain {config.name} is not up yet")
                edits = self._fabric.edits(config.domain, channel)
            except FabricError as error:
                raise PrepareError(str(error)) from error
            self._tell(claim.metadata.namespace, config.name, True)
        if config.waitForAll:
            self._wait_for_all(claim.metadata.namespace, config)
        state = {
            "domain": config.domain,
            "name": config.name,
            "channel": channel,
            "namespace": claim.metadata.namespace,
        }
        return Prepared(edits=edits, state=state)

    def _wait_for_all(self, namespace: str, config: ChannelConfig) -> None:
        """Not here, where the call of another node's pod must get through: the kubelet asks again."""
        domain = self._read(namespace, config.name) or {}
        joined = [node for node in _nodes(domain) if node.get("status") == "Ready"]
        if len(joined) < config.numNodes:
            names = ", ".join(sorted(node["name"] for node in joined))
            raise PrepareError(f"{len(joined)} of {config.numNodes} nodes have joined domain {config.name}: {names}")


def _nodes(domain: Object) -> list[Object]:
    return (domain.get("status") or {}).get("nodes") or []


def _addresses(domain: Object) -> list[str]:
    return sorted(node.get("ipAddress") or node["name"] for node in _nodes(domain))
