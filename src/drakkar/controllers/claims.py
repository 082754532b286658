"""Resource claims: made from templates, reserved, and let go with their last consumer.

Three duties. A pod's template entries become claims of its own; pods that were bound past
the scheduler get their reservation; consumers that are gone or done are struck from
``reservedFor``, and with the last one the allocation goes.

A reservation is struck only when the server itself (a live GET, a DELETED event) or a state
that cannot change again (a terminal phase) says so, and always on the resourceVersion that
was looked at: the scheduler may be adding a consumer at the same moment.

Source: spec/controllers.md 1.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.exposition import family
from drakkar.api.kinds import POD, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, Kind
from drakkar.api.meta import Object
from drakkar.api.objects import (
    controller_of,
    finalizers_of,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    owner_reference,
    pod_claim_names,
    pod_node,
    split_key,
    uid_of,
)
from drakkar.api.resource.v1 import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate
from drakkar.api.tree import children, text
from drakkar.client.cache import Caches
from drakkar.client.codec import to_dict
from drakkar.client.writes import After, Create, Delete, Patch, Record, Write
from drakkar.controllers.common import (
    BY_CLAIM,
    BY_CONTROLLER,
    Queue,
    Reader,
    claim_index,
    controller_index,
    has_uid,
    live,
    pod_has_ended,
    pod_status_patch,
    suffix,
)
from drakkar.controllers.podgroups import BY_GROUP, POD_GROUP, group_index, group_of, matching_group_claim

logger = logging.getLogger(__name__)

BY_CONSUMER = "claims/consumer"
BY_TEMPLATE = "claims/template"
#: A generated name has 63 characters at most, of which the server's rule leaves this many to ``<pod>-<entry>``.
NAME_BASE = 57
#: UIDs of deleted consumers that are remembered to spare a GET.
REMEMBERED = 4096
#: A claim that keeps the finalizer without an allocation for so long, in seconds, is in nobody's hands.
IDLE_SECONDS = 30.0


class Claims:
    """The claim controller. ``admin_access`` false refuses templates that ask for it."""

    name = "resource_claim"

    def __init__(self, reader: Reader, clock: Clock, *, admin_access: bool = True, pod_groups: bool = False):
        self._reader = reader
        self._clock = clock
        self._admin_access = admin_access
        self._pod_groups = pod_groups
        self._gone: OrderedDict[str, None] = OrderedDict()
        #: Claims that this process deallocated and whose finalizer is still to come off.
        self._released: set[str] = set()
        #: Claim UID -> (resourceVersion, since when): finalizer without allocation.
        self._idle: dict[str, tuple[str, float]] = {}

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Keys are ``pod:ns/name``, ``claim:ns/name`` and ``group:ns/name``."""
        self._queue = queue
        pod_indexes = {BY_TEMPLATE: _template_index, BY_CLAIM: claim_index, BY_GROUP: group_index}
        self._pods = caches.of(POD, indexes=pod_indexes)
        self._claims = caches.of(RESOURCECLAIM, indexes={BY_CONSUMER: _consumer_index, BY_CONTROLLER: controller_index})
        self._templates = caches.of(RESOURCECLAIMTEMPLATE)
        self._groups = caches.of(POD_GROUP, indexes={BY_TEMPLATE: _template_index}) if self._pod_groups else None
        self._pods.subscribe(self._pod_changed)
        self._claims.subscribe(self._claim_changed)
        self._templates.subscribe(self._template_changed)
        if self._groups is not None:
            self._groups.subscribe(self._group_changed)

    def metrics_text(self) -> str:
        """The claims there are, in Prometheus' text form, by what they hold and where they come from."""
        name = "resourceclaim_controller_resource_claims"
        counts: Counter[str] = Counter()
        for claim in self._claims:
            annotations = claim.metadata.annotations or {}
            special = annotations.get(names.EXTENDED_RESOURCE_CLAIM) == "true"
            source = "extended_resource" if special else ""
            if names.POD_CLAIM_NAME in annotations:
                source = "resource_claim_template"
            requests = claim.spec.devices.requests or ()
            admin = any(request.exactly is not None and request.exactly.adminAccess for request in requests)
            allocated = str(claim.status.allocation is not None).lower()
            counts[f'allocated="{allocated}",admin_access="{str(admin).lower()}",source="{source}"'] += 1
        lines = family(name, "gauge", "Claims, by state and source.")
        return "\n".join((*lines, *(f"{name}{{{label}}} {count}" for label, count in sorted(counts.items())))) + "\n"

    # events to keys

    def _pod_changed(self, event: str, old: Object | None, new: Object | None) -> None:
        if old is not None and (new is None or event == "DELETED" or uid_of(old) != uid_of(new)):
            self._remember_gone(uid_of(old))
            self._wake_claims_of(old)
        if new is None or event == "DELETED":
            return
        if pod_has_ended(new):
            self._wake_claims_of(new)
        elif new.get("spec", {}).get("resourceClaims"):
            self._queue.add(f"pod:{key_of(new)}")

    def _remember_gone(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)

    def _wake_claims_of(self, pod: Object) -> None:
        namespace = namespace_of(pod)
        wanted = {name for name in pod_claim_names(pod).values() if name}
        special = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
        if special:
            wanted.add(special)
        for index in (BY_CONSUMER, BY_CONTROLLER):
            wanted.update(name_of(claim) for claim in self._claims.by(index, uid_of(pod)))
        for name in sorted(wanted):
            self._queue.add(f"claim:{namespace}/{name}")

    def _claim_changed(self, event: str, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new or old
        assert claim is not None
        if new is not None and event != "DELETED":
            self._queue.add(f"claim:{key_of(new)}")
            if new.status.allocation is not None:
                reserved = {ref.uid for ref in new.status.reservedFor or ()}
                for pod in self._pods.by(BY_CLAIM, key_of(new)):
                    if pod_node(pod) and uid_of(pod) not in reserved:
                        self._queue.add(f"pod:{key_of(pod)}")
            return
        self._released.discard(uid_of(claim))
        self._idle.pop(uid_of(claim), None)
        owner = controller_of(claim)
        if owner is not None and (self._pods.uid(owner.uid) is not None):
            self._queue.add(f"pod:{namespace_of(claim)}/{owner.name}")

    def _template_changed(self, event: str, old: Any, new: Any) -> None:
        if event != "ADDED":
            return
        for pod in self._pods.by(BY_TEMPLATE, key_of(new)):
            self._queue.add(f"pod:{key_of(pod)}")
        if self._groups is not None:
            for group in self._groups.by(BY_TEMPLATE, key_of(new)):
                self._queue.add(f"group:{key_of(group)}")

    def _group_changed(self, event: str, old: Object | None, new: Object | None) -> None:
        group = new or old
        assert group is not None
        if event == "DELETED":
            self._remember_gone(uid_of(group))
            for index in (BY_CONSUMER, BY_CONTROLLER):
                for claim in self._claims.by(index, uid_of(group)):
                    self._queue.add(f"claim:{key_of(claim)}")
            return
        self._queue.add(f"group:{key_of(group)}")
        for pod in self._pods.by(BY_GROUP, key_of(group)):
            self._queue.add(f"pod:{key_of(pod)}")

    # keys to writes

    async def reconcile(self, key: str) -> list[Write]:
        """See the class; raises ApiError when a live read fails."""
        what, _, where = key.partition(":")
        namespace, name = split_key(where)
        if what == "pod":
            return await self._reconcile_pod(namespace, name)
        if what == "group":
            return await self._reconcile_group(namespace, name)
        return await self._reconcile_claim(namespace, name)

    async def _reconcile_pod(self, namespace: str, name: str) -> list[Write]:
        pod = self._pods.get(namespace, name)
        if pod is None or is_deleting(pod) or pod_has_ended(pod):
            return []
        group = self._group_of(pod)
        writes, statuses = await self._generate(POD, pod, group)
        if statuses is not None:
            writes.append(pod_status_patch(pod, {"resourceClaimStatuses": statuses}))
        if pod_node(pod):
            writes.extend(self._reserve(pod, group))
        return writes

    async def _reconcile_group(self, namespace: str, name: str) -> list[Write]:
        group = self._groups.get(namespace, name) if self._groups is not None else None
        if group is None or is_deleting(group):
            return []
        writes, statuses = await self._generate(POD_GROUP, group, None)
        if statuses is not None:
            body = {
                "metadata": {"uid": uid_of(group), "resourceVersion": group["metadata"]["resourceVersion"]},
                "status": {"resourceClaimStatuses": statuses},
            }
            writes.append(Patch(POD_GROUP, namespace, name, body, "merge", "status"))
        return writes

    def _group_of(self, pod: Object) -> Object | None:
        name = group_of(pod)
        return self._groups.get(namespace_of(pod), name) if name and self._groups is not None else None

    async def _generate(
        self, kind: Kind, owner: Object, group: Object | None
    ) -> tuple[list[Write], list[Object] | None]:
        """Claims to create for the template entries of ``owner``; the entries for its status, None when unchanged."""
        writes: list[Write] = []
        recorded = {
            entry["name"]: entry.get("resourceClaimName")
            for entry in children(owner, "status", "resourceClaimStatuses")
        }
        known = dict(recorded)
        for entry in children(owner, "spec", "resourceClaims"):
            template = entry.get("resourceClaimTemplateName")
            if not template:
                continue
            label = entry["name"]
            if (
                self._groups is not None
                and kind is POD
                and group_of(owner)
                and (group is None or matching_group_claim(group, entry) is not None)
            ):
                shared = None if group is None else matching_group_claim(group, entry)
                if shared:
                    known[label] = shared
                continue
            if label in recorded and not recorded[label]:
                continue
            previous = recorded.get(label) or ""
            if previous and await self._still_mine(owner, previous):
                continue
            if not previous and (mine := self._adoptable(owner, label)) is not None:
                known[label] = name_of(mine)
                continue
            created = await self._from_template(kind, owner, label, template, previous)
            writes.append(created)
            if isinstance(created, Create):
                known[label] = created.obj["metadata"]["name"]
        if known == recorded:
            return writes, None
        statuses: list[Object] = [
            {"name": label, **({"resourceClaimName": claim} if claim else {})} for label, claim in known.items()
        ]
        return writes, statuses

    async def _still_mine(self, owner: Object, claim_name: str) -> bool:
        claim = self._claims.get(namespace_of(owner), claim_name)
        if claim is not None and _controlled_by(claim, owner):
            return True
        claim = await live(self._reader, RESOURCECLAIM, namespace_of(owner), claim_name)
        return claim is not None and _controlled_by(claim, owner)

    def _adoptable(self, owner: Object, label: str) -> ResourceClaim | None:
        found = [
            claim
            for claim in self._claims.by(BY_CONTROLLER, uid_of(owner))
            if (claim.metadata.annotations or {}).get(names.POD_CLAIM_NAME) == label and not is_deleting(claim)
        ]
        return min(found, key=name_of, default=None)

    async def _from_template(
        self, kind: Kind, owner: Object, label: str, template_name: str, previous: str
    ) -> Create | Record:
        namespace = namespace_of(owner)
        template: ResourceClaimTemplate | None = self._templates.get(namespace, template_name)
        if template is None:
            template = await live(self._reader, RESOURCECLAIMTEMPLATE, namespace, template_name)
        if template is None:
            return _refusal(kind, owner, label, f'resourceclaimtemplates.resource.k8s.io "{template_name}" not found')
        if not self._admin_access and _wants_admin_access(template):
            return _refusal(
                kind, owner, label, f"template {template_name} wants adminAccess, which is not enabled here"
            )
        return Create(
            RESOURCECLAIM,
            self._new_claim(kind, owner, label, template, previous),
            refused=_refusal(kind, owner, label, "{error}"),
        )

    def _new_claim(
        self, kind: Kind, owner: Object, label: str, template: ResourceClaimTemplate, previous: str
    ) -> Object:
        base = claim_name_base(name_of(owner), label)
        attempt = 0
        while True:
            name = base + suffix(uid_of(owner), label, previous, attempt)
            taken = self._claims.get(namespace_of(owner), name)
            if name != previous and taken is None:
                break
            attempt += 1
        pattern = template.spec.metadata
        metadata: Object = {
            "generateName": base,
            "name": name,
            "namespace": namespace_of(owner),
            "annotations": {**(pattern.annotations or {}), names.POD_CLAIM_NAME: label},
            "ownerReferences": [owner_reference(kind, owner)],
        }
        if pattern.labels:
            metadata["labels"] = dict(pattern.labels)
        return {
            "apiVersion": RESOURCECLAIM.api_version,
            "kind": RESOURCECLAIM.kind,
            "metadata": metadata,
            "spec": to_dict(template.spec.spec),
        }

    def _reserve(self, pod: Object, group: Object | None) -> Iterable[Patch]:
        """Reservations for a pod that was bound without them."""
        special = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
        wanted: list[str] = sorted({name for name in (*pod_claim_names(pod).values(), special) if name})
        mine = {uid_of(pod)} | ({uid_of(group)} if group is not None else set())
        for name in wanted:
            claim: ResourceClaim | None = self._claims.get(namespace_of(pod), name)
            if claim is None or claim.status.allocation is None or is_deleting(claim):
                continue
            owner = controller_of(claim)
            if owner is not None and owner.kind == POD.kind and owner.uid != uid_of(pod):
                continue
            reserved = claim.status.reservedFor or []
            if any(ref.uid in mine for ref in reserved):
                continue
            consumer = ResourceClaimConsumerReference(resource="pods", name=name_of(pod), uid=uid_of(pod))
            yield _status_patch(claim, {"reservedFor": [to_dict(ref) for ref in (*reserved, consumer)]})

    async def _reconcile_claim(self, namespace: str, name: str) -> list[Write]:
        claim: ResourceClaim | None = self._claims.get(namespace, name)
        if claim is None:
            return []
        reserved = claim.status.reservedFor or []
        kept = [ref for ref in reserved if await self._consumes(namespace, ref)]
        protected = names.DELETE_PROTECTION in finalizers_of(claim)
        writes: list[Write] = []
        if len(kept) < len(reserved):
            status: Object = {"reservedFor": [to_dict(ref) for ref in kept] or None}
            if not kept and protected and claim.status.allocation is not None:
                status |= {"allocation": None, "devices": None}
                self._released.add(uid_of(claim))
            writes.append(_status_patch(claim, status))
        elif not reserved and protected:
            writes.extend(self._unprotect(claim))
        if not kept and not is_deleting(claim) and await self._owner_ended(claim):
            writes.append(Delete(RESOURCECLAIM, namespace, name, uid=uid_of(claim)))
        return writes

    def _unprotect(self, claim: ResourceClaim) -> list[Write]:
        """Takes the finalizer off a claim without consumers, the allocation first where that is due."""
        uid, version = uid_of(claim), claim.metadata.resourceVersion
        if claim.status.allocation is not None:
            self._released.discard(uid)
            self._idle.pop(uid, None)
            if not is_deleting(claim):
                return []
            self._released.add(uid)
            return [_status_patch(claim, {"allocation": None, "devices": None})]
        if not is_deleting(claim) and uid not in self._released:
            # The scheduler may be between the finalizer and the allocation; it moves the version when it is.
            seen, since = self._idle.get(uid, ("", 0.0))
            if seen != version:
                since = self._clock.monotonic()
                self._idle[uid] = (version, since)
            rest = since + IDLE_SECONDS - self._clock.monotonic()
            if rest > 0:
                return [After(rest)]
        self._released.discard(uid)
        self._idle.pop(uid, None)
        left = [finalizer for finalizer in finalizers_of(claim) if finalizer != names.DELETE_PROTECTION]
        body = {"metadata": {"uid": uid, "resourceVersion": version, "finalizers": left or None}}
        return [Patch(RESOURCECLAIM, namespace_of(claim), name_of(claim), body)]

    async def _consumes(self, namespace: str, ref: ResourceClaimConsumerReference) -> bool:
        """Whether the consumer still needs the claim."""
        if ref.uid in self._gone:
            return False
        if not ref.apiGroup and ref.resource == "pods":
            pod = self._pods.get(namespace, ref.name)
            if pod is None or uid_of(pod) != ref.uid:
                pod = await live(self._reader, POD, namespace, ref.name)
            return pod is not None and uid_of(pod) == ref.uid and not pod_has_ended(pod)
        if self._groups is not None and ref.apiGroup == POD_GROUP.group and ref.resource == POD_GROUP.plural:
            group = self._groups.get(namespace, ref.name)
            if group is not None and uid_of(group) == ref.uid:
                return True
            return await has_uid(self._reader, POD_GROUP, namespace, ref.name, ref.uid)
        logger.error("claim consumer %s/%s %s is of an unknown kind; kept", ref.apiGroup, ref.resource, ref.name)
        return True

    async def _owner_ended(self, claim: ResourceClaim) -> bool:
        """Whether the claim was made for a pod that is done or replaced; a missing pod is for the collector."""
        owner = controller_of(claim)
        if owner is None or owner.kind != POD.kind or owner.apiVersion != POD.api_version:
            return False
        pod = self._pods.get(namespace_of(claim), owner.name)
        if pod is None:
            return False
        if uid_of(pod) == owner.uid:
            return pod_has_ended(pod)
        pod = await live(self._reader, POD, namespace_of(claim), owner.name)
        return pod is not None and uid_of(pod) != owner.uid


def claim_name_base(owner: str, entry: str) -> str:
    """``<owner>-<entry>-``, both parts cut in proportion where the name would get too long."""
    joined = f"{owner}-{entry}-"
    if len(joined) <= NAME_BASE:
        return joined
    left = owner[: len(owner) * NAME_BASE // len(joined)]
    right = entry[: len(entry) * NAME_BASE // len(joined)]
    return f"{left}-{right}-"


def _refusal(kind: Kind, owner: Object, label: str, problem: str) -> Record:
    what = "PodResourceClaim" if kind is POD else "PodGroupResourceClaim"
    return Record(kind, owner, "Warning", "FailedResourceClaimCreation", f"{what} {label}: {problem}")


def _status_patch(claim: ResourceClaim, status: Object) -> Patch:
    body = {
        "metadata": {"uid": uid_of(claim), "resourceVersion": claim.metadata.resourceVersion},
        "status": status,
    }
    return Patch(RESOURCECLAIM, namespace_of(claim), name_of(claim), body, "merge", "status")


def _controlled_by(claim: ResourceClaim, owner: Object) -> bool:
    reference = controller_of(claim)
    return reference is not None and reference.uid == uid_of(owner)


def _wants_admin_access(template: ResourceClaimTemplate) -> bool:
    requests = template.spec.spec.devices.requests or ()
    return any(request.exactly is not None and request.exactly.adminAccess for request in requests)


def _consumer_index(claim: ResourceClaim) -> Iterable[str]:
    return [ref.uid for ref in claim.status.reservedFor or ()]


def _template_index(owner: Object) -> Iterable[str]:
    namespace = namespace_of(owner)
    return {
        f"{namespace}/{entry['resourceClaimTemplateName']}"
        for entry in children(owner, "spec", "resourceClaims")
        if entry.get("resourceClaimTemplateName")
    }
