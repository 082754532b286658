"""What the scheduler needs to know of a pod, read out of its JSON once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from drakkar.api.declared import required_features
from drakkar.api.groups import group_of
from drakkar.api.meta import Object
from drakkar.api.objects import (
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    pod_is_done,
    pod_node,
    pod_priority,
    pod_requests,
    uid_of,
)
from drakkar.api.quantity import Quantity
from drakkar.api.tree import at, child, children
from drakkar.scheduler.terms import PREFERRED, REQUIRED, SpreadConstraint, Term, preferred_terms, required_terms

#: Upper limit of ``reservedFor`` (spec/api.md).
MOST_CONSUMERS = 256


def amount(resource: str, quantity: Quantity) -> int:
    """A quantity as the whole number that is compared: thousandths for cpu, units for everything else."""
    return quantity.to_milli() if resource == "cpu" else quantity.to_int()


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as the decision sees it; ``obj`` is the JSON it was read from."""

    obj: Object
    uid: str
    namespace: str
    name: str
    priority: int
    #: Resource → amount (see `amount`), pods themselves not counted.
    requests: Mapping[str, int]
    #: Host ports as (address, protocol, port); address ``""`` means every address.
    ports: frozenset[tuple[str, str, int]]
    node_selector: Mapping[str, str]
    #: ``requiredDuringSchedulingIgnoredDuringExecution`` of the node affinity, or None.
    required_affinity: Object | None
    preferred_affinity: tuple[Object, ...]
    tolerations: tuple[Object, ...]
    labels: Mapping[str, str]
    deleting: bool
    #: Required affinity and anti-affinity with other pods, then the preferred terms of both.
    near: tuple[Term, ...] = ()
    away: tuple[Term, ...] = ()
    drawn: tuple[Term, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    #: Name of the pod's PodGroup, empty without one.
    group: str = ""
    #: What the node must declare.
    features: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def group_key(self) -> str:
        """``namespace/name`` of the pod's PodGroup, where it has one."""
        return f"{self.namespace}/{self.group}"

    @staticmethod
    def of(pod: Object) -> PodView:
        """Reads ``pod``."""
        spec = child(pod, "spec")
        affinity = child(spec, "affinity", "nodeAffinity")
        labels, others = labels_of(pod), child(spec, "affinity")
        namespace = namespace_of(pod)
        return PodView(
            obj=pod,
            uid=uid_of(pod),
            namespace=namespace,
            name=name_of(pod),
            priority=pod_priority(pod),
            requests={name: value for name, q in pod_requests(pod).items() if (value := amount(name, q))},
            ports=_host_ports(spec),
            node_selector=child(spec, "nodeSelector"),
            required_affinity=at(affinity, REQUIRED),
            preferred_affinity=tuple(children(affinity, PREFERRED)),
            tolerations=tuple(children(spec, "tolerations")),
            labels=labels,
            deleting=is_deleting(pod),
            near=required_terms(others, "podAffinity", namespace, labels) if others else (),
            away=required_terms(others, "podAntiAffinity", namespace, labels) if others else (),
            drawn=tuple(preferred_terms(others, namespace, labels)) if others else (),
            group=group_of(pod),
            features=required_features(pod),
            spread=tuple(SpreadConstraint.of(c, labels) for c in children(spec, "topologySpreadConstraints")),
        )

    def with_more(self, amounts: Mapping[str, int]) -> PodView:
        """The pod with these amounts on top of its requests."""
        if not amounts:
            return self
        names = dict.fromkeys((*self.requests, *amounts))
        return replace(self, requests={name: self.requests.get(name, 0) + amounts.get(name, 0) for name in names})


def _host_ports(spec: Object) -> frozenset[tuple[str, str, int]]:
    found: set[tuple[str, str, int]] = set()
    for container in (*children(spec, "containers"), *children(spec, "initContainers")):
        for port in children(container, "ports"):
            # With hostNetwork the server's defaults make hostPort equal to containerPort.
            if port.get("hostPort"):
                address = port.get("hostIP") or ""
                found.add(
                    ("" if address in ("0.0.0.0", "::") else address, port.get("protocol") or "TCP", port["hostPort"])
                )
    return frozenset(found)


def ports_clash(wanted: frozenset[tuple[str, str, int]], used: frozenset[tuple[str, str, int]]) -> bool:
    """Whether two pods with these host ports cannot share a node."""
    return any(
        protocol == other_protocol and port == other_port and (not address or not other or address == other)
        for address, protocol, port in wanted
        for other, other_protocol, other_port in used
    )


def is_waiting(pod: Object) -> bool:
    """Whether the pod is one that a scheduler may bind now: alive, unbound and without gates."""
    return not (pod_node(pod) or is_deleting(pod) or pod_is_done(pod) or children(pod, "spec", "schedulingGates"))


def consumer(pod: PodView) -> dict[str, str]:
    """The entry of ``reservedFor`` that stands for the pod."""
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def claim_keys(pod: Object) -> frozenset[str]:
    """``namespace/name`` of every claim that the pod is known to use, by its spec or by its status."""
    namespace = namespace_of(pod)
    names = {entry.get("resourceClaimName") for entry in children(pod, "spec", "resourceClaims")}
    names |= {entry.get("resourceClaimName") for entry in children(pod, "status", "resourceClaimStatuses")}
    extended: Any = at(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    return frozenset(f"{namespace}/{name}" for name in (*names, extended) if name)
