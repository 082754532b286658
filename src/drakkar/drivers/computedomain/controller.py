"""The part for the whole cluster: channels of cliques as devices, a claim and a status for every ComputeDomain.

A clique is a pool of its own whose devices any of its nodes can use; all pods of a job share the claim, so they land on
nodes of one clique, and allocation chooses it. Nothing is labelled, no daemon set follows (spec/scheduling.md 15.2 and
16.8 say what that costs elsewhere).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence

from drakkar.api.clock import Clock
from drakkar.api.kinds import NODE, RESOURCECLAIM
from drakkar.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Object
from drakkar.api.objects import is_deleting, labels_of, name_of, owner_reference, uid_of
from drakkar.api.resource import v1
from drakkar.client.cache import Cache, Caches
from drakkar.client.clock import timestamp
from drakkar.client.queue import KeyQueue
from drakkar.client.writes import Create, Patch, Write
from drakkar.driver import Pool, SliceContent, SlicePublisher, device
from drakkar.drivers.computedomain.names import CLIQUE, COMPUTEDOMAIN, DEVICE_CLASS, NAME, REQUEST, VERSION

#: Domains that can share a clique.
CHANNELS = 8


class CliqueController:
    """Publishes a pool per clique; keys are labels' values."""

    def __init__(self, clock: Clock, *, channels: int = CHANNELS) -> None:
        self.name = f"{NAME}-cliques"
        self._channels = channels
        self._publisher = SlicePublisher(NAME, self._desired, clock)
        self._nodes: Cache | None = None

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch nodes and the driver's slices."""
        self._publisher.setup(caches, queue)
        self._nodes = caches.of(NODE, indexes={"clique": lambda node: [_pool_of(node)] if _clique(node) else []})
        self._nodes.subscribe(self._changed)

    def reconcile(self, key: str) -> Sequence[Write] | Awaitable[Sequence[Write]]:
        """Writes for one clique's pool."""
        return self._publisher.reconcile(key)

    def _changed(self, event_type: str, old: Object | None, new: Object) -> None:
        for node in (old, new):
            if node is not None and _clique(node):
                self._publisher.trigger(_pool_of(node))

    def _desired(self, key: str, slices: Sequence[v1.ResourceSlice]) -> Pool | None:
        members = [] if self._nodes is None else self._nodes.by("clique", key)
        return clique_pool(key, members, self._channels) if members else None


class DomainController:
    """Gives every ComputeDomain its claim and its status; keys are namespace and name."""

    def __init__(self, clock: Clock) -> None:
        self.name = f"{NAME}-domains"
        self._clock = clock
        self._domains: Cache | None = None
        self._claims: Cache | None = None

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch domains and claims."""
        self._domains = caches.of(COMPUTEDOMAIN)
        self._domains.subscribe(lambda _type, _old, new: queue.add((new["metadata"]["namespace"], name_of(new))))
        self._claims = caches.of(RESOURCECLAIM)
        self._claims.subscribe(lambda _type, _old, new: _owner_key(new, queue))

    def reconcile(self, key: tuple[str, str]) -> Sequence[Write]:
        """The claim, then the status."""
        assert self._domains is not None
        assert self._claims is not None
        domain = self._domains.get(*key)
        if domain is None or is_deleting(domain):
            return []
        name = domain["spec"]["channel"]["resourceClaimName"]
        claim: v1.ResourceClaim | None = self._claims.get(key[0], name)
        if claim is None:
            return [Create(RESOURCECLAIM, claim_for(domain))]
        foreign = all(owner.uid != uid_of(domain) for owner in claim.metadata.ownerReferences or ())
        status = status_of(domain, claim, foreign=foreign, now=timestamp(self._clock.time()))
        if status == {k: v for k, v in (domain.get("status") or {}).items() if k in status}:
            return []
        return [Patch(COMPUTEDOMAIN, key[0], key[1], {"status": status}, subresource="status")]


def clique_pool(key: str, members: Sequence[Object], channels: int) -> Pool:
    """Channels that the nodes of a clique share; `nodes` says how many there are."""
    clique = _clique(members[0])
    requirement = NodeSelectorRequirement(key=CLIQUE, operator="In", values=[clique])
    selector = NodeSelector(nodeSelectorTerms=[NodeSelectorTerm(matchExpressions=[requirement])])
    devices = tuple(
        device(f"channel-{i}", {"type": "channel", "id": i, "clique": clique, "nodes": len(members)})
        for i in range(channels)
    )
    return Pool(key, (SliceContent(devices=devices),), node_selector=selector)


def claim_for(domain: Object) -> Object:
    """The claim that all pods of the domain share."""
    spec = domain["spec"]
    nodes = int(spec.get("numNodes") or 0)
    attributes = f"device.attributes['{NAME}']"
    expression = f"{attributes}.nodes >= {nodes}"
    if spec.get("clique"):
        expression += f" && {attributes}.clique == '{spec['clique']}'"
    config: Object = {
        "apiVersion": f"{NAME}/{VERSION}",
        "kind": "ChannelConfig",
        "domain": uid_of(domain),
        "name": name_of(domain),
        "numNodes": nodes,
        "waitForAll": spec.get("startPolicy") == "All",
    }
    exactly = {"deviceClassName": DEVICE_CLASS, "selectors": [{"cel": {"expression": expression}}]}
    devices = {
        "requests": [{"name": REQUEST, "exactly": exactly}],
        "config": [{"requests": [REQUEST], "opaque": {"driver": NAME, "parameters": config}}],
    }
    return {
        "apiVersion": v1.API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            "name": spec["channel"]["resourceClaimName"],
            "namespace": domain["metadata"]["namespace"],
            "ownerReferences": [owner_reference(COMPUTEDOMAIN, domain)],
        },
        "spec": {"devices": devices},
    }


def status_of(domain: Object, claim: v1.ResourceClaim, *, foreign: bool, now: str) -> Object:
    """`status`, `clique`, `channel` and the condition Ready; the nodes are written by the nodes themselves."""
    wanted = int(domain["spec"].get("numNodes") or 0)
    joined = sum(node.get("status") == "Ready" for node in (domain.get("status") or {}).get("nodes") or ())
    results = claim.status.allocation.devices.results if claim.status.allocation else None
    result = results[0] if results else None
    if foreign:
        reason, message = (
            "ClaimExists",
            f"claim {claim.metadata.name} exists and is not this domain's; rename one of them",
        )
    elif result is None:
        reason, message = "NotAllocated", "no clique is chosen yet; see the events of the pods that wait"
    elif joined < max(1, wanted):
        reason, message = "NodesMissing", f"{joined} of {max(1, wanted)} nodes have joined"
    else:
        reason, message = "Joined", f"{joined} nodes have joined"
    ready = reason == "Joined"
    before = next((c for c in (domain.get("status") or {}).get("conditions") or () if c["type"] == "Ready"), None)
    condition = {
        "type": "Ready",
        "status": str(ready),
        "reason": reason,
        "message": message,
        "lastTransitionTime": before["lastTransitionTime"] if before and before["status"] == str(ready) else now,
    }
    return {
        "status": "Ready" if ready else "NotReady",
        "clique": result.pool if result is not None else "",
        "channel": result.device if result is not None else "",
        "conditions": [condition],
    }


def _clique(node: Object) -> str:
    return labels_of(node).get(CLIQUE, "")


def _pool_of(node: Object) -> str:
    """The clique as the name of a pool."""
    return re.sub(r"[^a-z0-9.-]+", "-", _clique(node).lower()).strip("-.")


def _owner_key(claim: v1.ResourceClaim, queue: KeyQueue) -> None:
    for owner in claim.metadata.ownerReferences or ():
        if owner.kind == COMPUTEDOMAIN.kind:
            queue.add((claim.metadata.namespace, owner.name))
