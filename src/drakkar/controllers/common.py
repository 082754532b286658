"""What the controllers share: live reads, indexes, names that cannot be given twice.

A name that follows from its cause (``suffix``) makes a repeated create harmless: after a
crash, or on a cache that has not caught up, the server answers AlreadyExists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol

from drakkar.api import names
from drakkar.api.errors import ApiError
from drakkar.api.kinds import Kind
from drakkar.api.meta import Object
from drakkar.api.objects import (
    condition,
    controller_of,
    is_deleting,
    namespace_of,
    pod_claim_names,
    pod_is_done,
    pod_node,
    uid_of,
)
from drakkar.api.tree import children, text
from drakkar.client.clock import timestamp
from drakkar.client.writes import Patch

#: Characters of generated names; those of the API server, which avoids words.
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
#: Effect of a taint, of a node or a device, by which pods that do not tolerate it have to go.
NO_EXECUTE = "NoExecute"


class Reader(Protocol):
    """Reads live; `drakkar.client.client.Client` is one."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Any: ...


class Queue(Protocol):
    """Where ``setup`` puts the keys that need work."""

    def add(self, key: str) -> None: ...


async def live(reader: Reader, kind: Kind, namespace: str, name: str) -> Any | None:
    """The object as the server has it now, None when it is not there; other errors are raised."""
    try:
        return await reader.get(kind, name, namespace or None)
    except ApiError as error:
        if error.code == 404:
            return None
        raise


async def has_uid(reader: Reader, kind: Kind, namespace: str, name: str, uid: str) -> bool:
    """Whether the server has the object, and it is the same one."""
    found = await live(reader, kind, namespace, name)
    return found is not None and uid_of(found) == uid


def suffix(*parts: object) -> str:
    """Five characters that follow from ``parts``."""
    number = int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8], "big")
    characters: list[str] = []
    for _ in range(5):
        number, digit = divmod(number, len(ALPHABET))
        characters.append(ALPHABET[digit])
    return "".join(characters)


def same(present: Any, wanted: Any) -> bool:
    """Equal, where nothing, zero and empty are one."""
    if isinstance(wanted, dict):
        return all(same((present or {}).get(key), value) for key, value in wanted.items())
    return (present or None) == (wanted or None)


def pod_has_ended(pod: Object) -> bool:
    """Whether no container of the pod runs or will run: terminal phase, or deleted before it had a node.

    A node is never given to a pod that is being deleted, so the answer is final even on an old copy.
    """
    return pod_is_done(pod) or (is_deleting(pod) and not pod_node(pod))


def disruption_patch(pod: Object, reason: str, message: str, now: float, *, failed: bool = False) -> Patch | None:
    """Condition DisruptionTarget (and phase Failed where ``failed``) onto the pod; None when nothing is missing."""
    status: Object = {}
    found = condition(pod, names.DISRUPTION_TARGET)
    if found is None or found.get("status") != "True":
        status["conditions"] = [
            {
                "type": names.DISRUPTION_TARGET,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": timestamp(now),
            }
        ]
    if failed and not pod_is_done(pod):
        status["phase"] = "Failed"
    if not status:
        return None
    return pod_status_patch(pod, status)


def pod_status_patch(pod: Object, status: Object) -> Patch:
    """A strategic patch of a pod's status: conditions and claim statuses merge by key; conditional on the UID."""
    from drakkar.api.kinds import POD

    body = {"metadata": {"uid": uid_of(pod)}, "status": status}
    return Patch(POD, namespace_of(pod), pod["metadata"]["name"], body, "strategic", "status")


# Indexes. Their names are ours, because a cache keeps the first function it gets under a name.

BY_NODE = "controllers/node"
BY_CLAIM = "controllers/claim"
BY_CONTROLLER = "controllers/controller"
BY_OWNER = "controllers/owner"


def node_index(pod: Object) -> Iterable[str]:
    """Name of the node the pod is bound to."""
    node = pod_node(pod)
    return (node,) if node else ()


def claim_index(pod: Object) -> Iterable[str]:
    """``namespace/name`` of every claim the pod uses, that for its extended resources included."""
    namespace = namespace_of(pod)
    special = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    found = {f"{namespace}/{name}" for name in pod_claim_names(pod).values() if name}
    return found | {f"{namespace}/{special}"} if special else found


def controller_index(obj: Any) -> Iterable[str]:
    """UID of the controller."""
    reference = controller_of(obj)
    if reference is None:
        return ()
    return (reference["uid"] if isinstance(reference, dict) else reference.uid,)


def owner_references(obj: Any) -> list[Object]:
    """``metadata.ownerReferences`` as dicts, of a struct as well."""
    if isinstance(obj, dict):
        return children(obj, "metadata", "ownerReferences")
    return [
        {
            "apiVersion": ref.apiVersion,
            "kind": ref.kind,
            "name": ref.name,
            "uid": ref.uid,
            "controller": bool(ref.controller),
            "blockOwnerDeletion": bool(ref.blockOwnerDeletion),
        }
        for ref in obj.metadata.ownerReferences or ()
    ]


def owner_index(obj: Any) -> Iterable[str]:
    """UIDs of all owners."""
    return tuple(reference["uid"] for reference in owner_references(obj))


def phase_of(pod: Object) -> str:
    """``status.phase``; Pending when unset."""
    return text(pod, "status", "phase") or "Pending"
