"""What pods have beside the common verbs: binding to a node, and eviction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drakkar.api.names import DISRUPTION_TARGET
from drakkar.api.objects import pod_is_done, with_condition
from drakkar.apiserver import status
from drakkar.apiserver.budgets import spend
from drakkar.apiserver.cache import Entry
from drakkar.apiserver.options import DeleteOptions, WriteOptions, delete_options
from drakkar.apiserver.registry import Registry
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.views import View

Object = dict[str, Any]


async def bind(
    registry: Registry, view: View, namespace: str, name: str, binding: Object, options: WriteOptions
) -> None:
    """Assigns a pod to a node, if it still is the pod that the scheduler saw."""
    given = binding.get("metadata") or {}
    target = binding.get("target") or {}
    node = target.get("name") or ""
    if given.get("name") and given["name"] != name:
        text = f"the name of the object ({given['name']}) does not match the name on the URL ({name})"
        raise StatusError(status.bad_request(text))

    def refuse(text: str) -> StatusError:
        return StatusError(status.conflict("", "pods/binding", name, text))

    def assign(pod: Object) -> Object:
        meta, spec = pod["metadata"], pod.setdefault("spec", {})
        if given.get("uid") and given["uid"] != meta.get("uid"):
            found = meta.get("uid")
            raise refuse(f"Precondition failed: UID in precondition: {given['uid']}, UID in object meta: {found}")
        version = given.get("resourceVersion")
        if version and version != meta.get("resourceVersion"):
            current = meta.get("resourceVersion")
            raise refuse(
                f"Precondition failed: ResourceVersion in precondition: {version}, "
                f"ResourceVersion in object meta: {current}"
            )
        if meta.get("deletionTimestamp"):
            raise refuse(f"pod {name} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            raise refuse(f'pod {name} is already assigned to node "{spec["nodeName"]}"')
        if spec.get("schedulingGates"):
            raise refuse(f"pod {name} has non-empty .spec.schedulingGates")
        spec["nodeName"] = node
        for key in ("labels", "annotations"):
            if given.get(key):
                meta[key] = {**(meta.get(key) or {}), **given[key]}
        status_ = pod["status"] = dict(pod.get("status") or {})
        status_.pop("nominatedNodeName", None)
        status_["conditions"] = with_condition(
            status_.get("conditions"),
            {
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": registry.stamps.now(),
            },
        )
        return pod

    if target.get("kind") not in (None, "", "Node") or not node:
        raise StatusError(
            status.bad_request(f"binding of pod {name} needs a target of kind Node with a name, not {target!r}")
        )
    await registry.update(view, namespace, name, "binding", assign, options, [], direct=True)


async def evict(
    registry: Registry, view: View, namespace: str, name: str, eviction: Object, options: WriteOptions
) -> Entry:
    """Marks a pod as disrupted and deletes it, if its disruption budget lets it go.

    The mark (condition DisruptionTarget) is what the failure policy of a Job goes by.
    """
    wanted: DeleteOptions = delete_options(eviction.get("deleteOptions") or {}, {})
    # A rehearsal first, so that a precondition that does not hold leaves no mark.
    entry, _ = await registry.delete(view, namespace, name, replace(wanted, dry_run=True))
    dry_run = options.dry_run or wanted.dry_run
    pod = view.decode(registry.entry(view, namespace, name))
    await spend(registry, pod, replace(options, dry_run=dry_run))
    if dry_run:
        return entry

    def mark(pod: Object) -> Object:
        if pod_is_done(pod):
            return pod
        generation = pod["metadata"].get("generation")
        found = pod["status"] = dict(pod.get("status") or {})
        found["conditions"] = with_condition(
            found.get("conditions"),
            {
                "type": DISRUPTION_TARGET,
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastProbeTime": None,
                "lastTransitionTime": registry.stamps.now(),
                **({"observedGeneration": generation} if generation else {}),
            },
        )
        return pod

    marked = await registry.update(view, namespace, name, "status", mark, options, [], direct=True)
    entry, _ = await registry.delete(view, namespace, name, replace(wanted, uid=marked.uid, resource_version=None))
    return entry
