"""What a new cluster has before anybody asks: namespaces, priority classes, roles and who holds them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from drakkar.api.names import SYSTEM_PRIORITIES
from drakkar.apiserver.cache import entry_key
from drakkar.apiserver.options import WriteOptions
from drakkar.apiserver.registry import Registry
from drakkar.apiserver.roles import AUTO_UPDATE, RBAC, initial
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.views import View

_log = logging.getLogger(__name__)
Object = dict[str, Any]

#: Group, plural and object.
Initial = tuple[str, str, Object]

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


def _first() -> Iterable[Initial]:
    for name in NAMESPACES:
        yield "", "namespaces", {"metadata": {"name": name}}
    for name, value in SYSTEM_PRIORITIES.items():
        meta: Object = {"name": name}
        body: Object = {"metadata": meta, "value": value, "preemptionPolicy": "PreemptLowerPriority"}
        yield "scheduling.k8s.io", "priorityclasses", body


async def create_missing(registry: Registry) -> None:
    """Creates those of the initial objects that are not there, and adds to roles and bindings what they lack."""
    await _settle(registry, _first())
    # Roles are in namespaces, so these have to be there first.
    await _settle(registry, ((RBAC, plural, obj) for plural, obj in initial()))


async def _settle(registry: Registry, objects: Iterable[Initial]) -> None:
    """Together, so that they share one commit."""
    writes = [
        _one(registry, registry.view(served), obj)
        for group, plural, obj in objects
        if (served := registry.catalog.find(group, "v1", plural)) is not None
    ]
    for outcome in await asyncio.gather(*writes, return_exceptions=True):
        if isinstance(outcome, StatusError) and outcome.code == 507:
            # What is stored can be read and deleted all the same; the next start tries again.
            _log.warning("an initial object could not be written: %s", outcome)
        # Another server of the same store may have been quicker.
        elif isinstance(outcome, BaseException) and not (isinstance(outcome, StatusError) and outcome.code == 409):
            raise outcome


async def _one(registry: Registry, view: View, obj: Object) -> None:
    meta = obj["metadata"]
    name, namespace = meta["name"], meta.get("namespace") or ""
    entry = view.table.entries.get(entry_key(namespace, name))
    if entry is None:
        await registry.create(view, namespace, obj, WriteOptions(), [])
    elif view.stored.group == RBAC:
        old = view.decode(entry)
        if completed(old, obj) != old:
            await registry.update(view, namespace, name, "", lambda now: completed(now, obj), WriteOptions(), [])


def completed(old: Object, wanted: Object) -> Object:
    """A role or binding with the rules and subjects that it lacks, unless its owner does not want that.

    The annotation ``rbac.authorization.kubernetes.io/autoupdate: "false"`` says so. Nothing is taken away.
    """
    meta: Object = old["metadata"]
    if (meta.get("annotations") or {}).get(AUTO_UPDATE) == "false":
        return old
    new = {**old, "metadata": dict(meta)}
    for field in ("labels", "annotations"):
        new["metadata"][field] = {**wanted["metadata"][field], **(meta.get(field) or {})}
    for field in ("rules", "subjects"):
        there = [_plain(one) for one in old.get(field) or ()]
        missing = [one for one in wanted.get(field) or () if _plain(one) not in there]
        if missing:
            new[field] = [*(old.get(field) or ()), *missing]
    return new


def _plain(item: Object) -> Object:
    """A rule or subject for comparing: the order in its lists means nothing."""
    return {key: sorted(value) if isinstance(value, list) else value for key, value in item.items()}
