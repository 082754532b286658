"""Extended resources that a DeviceClass stands behind (spec/scheduling.md 10).

A pod may ask for devices by number, as with device plugins: ``example.com/gpu: 2``. Where the
node does not offer that resource itself, the request becomes a claim which the scheduler makes
for the pod. Which requests of which containers the claim serves is written in the pod's status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drakkar.api.kinds import POD
from drakkar.api.meta import ObjectMeta, OwnerReference
from drakkar.api.names import EXTENDED_RESOURCE_CLAIM, IMPLICIT_EXTENDED_RESOURCE_PREFIX
from drakkar.api.objects import annotations_of, controller_of, is_sidecar
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1 as resource
from drakkar.api.tree import child, children
from drakkar.scheduler.pods import PodView


@dataclass(frozen=True, slots=True)
class Extended:
    """The claim to be made for a pod, and the ``requestMappings`` of its status."""

    claim: resource.ResourceClaim
    mappings: tuple[dict[str, str], ...]


class ExtendedClasses:
    """Resource name → class. Of several classes with one explicit name the newest counts, then the first by name."""

    def __init__(self) -> None:
        self._classes: dict[str, resource.DeviceClass] = {}
        self._explicit: dict[str, str] | None = {}

    def set(self, item: resource.DeviceClass) -> None:
        """Takes over a class, new or changed."""
        self._classes[item.metadata.name] = item
        self._explicit = None

    def remove(self, name: str) -> None:
        """Forgets a class."""
        if self._classes.pop(name, None) is not None:
            self._explicit = None

    def serving(self, resources: Iterable[str]) -> dict[str, str]:
        """Those of the resources that a class serves, with its name."""
        return {name: found for name in resources if (found := self.behind(name)) is not None}

    def behind(self, name: str) -> str | None:
        """Name of the class that serves the resource, if one does."""
        if name.startswith(IMPLICIT_EXTENDED_RESOURCE_PREFIX):
            wanted = name.removeprefix(IMPLICIT_EXTENDED_RESOURCE_PREFIX)
            return wanted if wanted in self._classes else None
        if self._explicit is None:
            self._explicit = {}
            for item in sorted(self._classes.values(), key=_by_name_then_age):
                if item.spec.extendedResourceName:
                    self._explicit[item.spec.extendedResourceName] = item.metadata.name
        return self._explicit.get(name)


def _by_name_then_age(item: resource.DeviceClass) -> tuple[str, list[int]]:
    # Sorted so that the winner comes last: newest, and of equally new ones the lower name.
    return item.metadata.creationTimestamp or "", [-ord(letter) for letter in item.metadata.name]


def is_special(claim: resource.ResourceClaim) -> bool:
    """Whether the claim was made for extended resources."""
    return annotations_of(claim).get(EXTENDED_RESOURCE_CLAIM) == "true"


def owner_uid(claim: resource.ResourceClaim) -> str:
    """Uid of the pod for which a special claim was made."""
    owner = controller_of(claim)
    return owner.uid if owner is not None else ""


def make_extended(pod: PodView, classes: Mapping[str, str]) -> Extended:
    """The claim for the pod's requests of the resources in ``classes`` (resource → class)."""
    requests: dict[str, resource.DeviceRequest] = {}
    mappings: list[dict[str, str]] = []
    spec = child(pod.obj, "spec")
    initial = children(spec, "initContainers")
    containers = [*initial, *children(spec, "containers")]
    for name, device_class in sorted(classes.items()):
        asked = [_asked(container, name) for container in containers]
        lasting = [index >= len(initial) or is_sidecar(container) for index, container in enumerate(containers)]
        for index, container in enumerate(containers):
            if lasting[index] and asked[index]:
                request = _request_name(index, container, name)
                requests[request] = _request(request, device_class, asked[index])
                mappings.append(_mapping(container, name, request))
        shared, shared_name = 0, ""
        borrowers: list[dict[str, Any]] = []
        for index, container in enumerate(initial):
            if lasting[index] or not asked[index]:
                continue
            missing = asked[index]
            for later in range(index, len(containers)):
                if missing > 0 and lasting[later] and asked[later]:
                    missing -= asked[later]
                    request = _request_name(later, containers[later], name)
                    mappings.append(_mapping(container, name, request))
            if missing > 0:
                borrowers.append(container)
                if missing > shared:
                    shared, shared_name = missing, _request_name(index, container, name)
        if shared:
            requests[shared_name] = _request(shared_name, device_class, shared)
            mappings.extend(_mapping(container, name, shared_name) for container in borrowers)
    owner = OwnerReference(
        apiVersion=POD.api_version, kind=POD.kind, name=pod.name, uid=pod.uid, controller=True, blockOwnerDeletion=True
    )
    metadata = ObjectMeta(
        generateName=f"{pod.name}-extended-resources-",
        namespace=pod.namespace,
        # Until the server gives a uid: what the decision is booked under.
        uid=f"extended-{pod.uid}",
        annotations={EXTENDED_RESOURCE_CLAIM: "true"},
        ownerReferences=[owner],
    )
    devices = resource.DeviceClaim(requests=[requests[request] for request in sorted(requests)])
    claim = resource.ResourceClaim(metadata=metadata, spec=resource.ResourceClaimSpec(devices=devices))
    return Extended(claim, tuple(mappings))


def _asked(container: Mapping[str, Any], name: str) -> int:
    text = child(container, "resources", "requests").get(name)
    return Quantity.parse(str(text)).to_int() if text is not None else 0


def _request_name(index: int, container: Mapping[str, Any], name: str) -> str:
    position = sorted(child(container, "resources", "requests")).index(name)
    return f"container-{index}-request-{position}"


def _request(name: str, device_class: str, count: int) -> resource.DeviceRequest:
    exactly = resource.ExactDeviceRequest(deviceClassName=device_class, allocationMode="ExactCount", count=count)
    return resource.DeviceRequest(name=name, exactly=exactly)


def _mapping(container: Mapping[str, Any], name: str, request: str) -> dict[str, str]:
    return {"containerName": container["name"], "resourceName": name, "requestName": request}
