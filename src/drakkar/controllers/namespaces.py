"""Ends namespaces: everything in them first, then the namespace itself.

What there is to delete is asked of discovery, so that kinds we have never heard of go as well.
Content may take its time (a pod its grace, a claim its finalizer); the namespace is looked at
again right after a deletion, whenever something that we watch leaves it, and every half second besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drakkar.api import names
from drakkar.api.errors import ApiError
from drakkar.api.kinds import CONFIGMAP, JOB, NAMESPACE, POD, RESOURCECLAIM, SERVICEACCOUNT, Kind
from drakkar.api.meta import Object
from drakkar.api.objects import is_deleting, name_of, namespace_of, uid_of
from drakkar.api.tree import child, texts
from drakkar.client.cache import Caches
from drakkar.client.writes import After, Create, Delete, Patch, Write
from drakkar.controllers.common import Queue
from drakkar.controllers.discovery import Server, namespaced_kinds

#: Seconds between two looks at a namespace whose content is still going.
INTERVAL = 0.5
#: The same after a look that deleted something: most things go at once.
SOON = 0.02


class Namespaces:
    """Finalizes namespaces; keys are their names."""

    name = "namespace-controller"

    def __init__(self, server: Server):
        self._server = server

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to namespaces, and to what usually leaves them last."""
        self._namespaces = caches.of(NAMESPACE)

        def changed(event: str, old: Object | None, new: Object | None) -> None:
            if new is not None and event != "DELETED" and is_deleting(new):
                queue.add(name_of(new))

        def left(event: str, old: Any, new: Any) -> None:
            if event == "DELETED":
                namespace = self._namespaces.get("", namespace_of(old if old is not None else new))
                if namespace is not None and is_deleting(namespace):
                    queue.add(name_of(namespace))

        self._namespaces.subscribe(changed)
        for kind in (POD, JOB, RESOURCECLAIM):
            caches.of(kind).subscribe(left)

    async def reconcile(self, key: str) -> list[Write]:
        """Deletes what is left; finalizes when nothing is. Raises ApiError when the server cannot be asked."""
        namespace = self._namespaces.get("", key)
        if namespace is None or not is_deleting(namespace):
            return []
        finalizers = texts(namespace, "spec", "finalizers")
        if names.NAMESPACE_FINALIZER not in finalizers:
            return []
        writes: list[Write] = []
        remaining = 0
        for kind in await namespaced_kinds(self._server):
            try:
                content = await self._server.list(kind, key)
            except ApiError as error:
                if error.code in (404, 405):
                    continue
                raise
            remaining += len(content.items)
            writes.extend(
                Delete(kind, key, name_of(obj), uid=uid_of(obj), propagation="Background")
                for obj in content.items
                if not is_deleting(obj)
            )
        if remaining:
            return [*writes, After(SOON if writes else INTERVAL)]
        left = [finalizer for finalizer in finalizers if finalizer != names.NAMESPACE_FINALIZER]
        final = {**namespace, "spec": {**child(namespace, "spec"), "finalizers": left}}
        try:
            await self._server.update(NAMESPACE, final, "finalize")
        except ApiError as error:
            if error.code != 404:
                raise
        return []


class ServiceAccounts:
    """Gives every namespace its ServiceAccount ``default`` and the ConfigMap with the root certificate.

    Args:
        root_ca: certificate of the cluster in PEM; empty: no ConfigMap is made.
    """

    name = "service-accounts"

    def __init__(self, *, root_ca: str = ""):
        self._root_ca = root_ca

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Keys are names of namespaces."""
        self._namespaces = caches.of(NAMESPACE)
        self._accounts = caches.of(SERVICEACCOUNT)
        self._maps = caches.of(CONFIGMAP)

        def content_changed(wanted: str) -> Any:
            def changed(event: str, old: Any, new: Any) -> None:
                obj = new or old
                if name_of(obj) == wanted:
                    queue.add(namespace_of(obj))

            return changed

        self._namespaces.subscribe(
            lambda event, old, new: queue.add(name_of(new)) if new is not None and event == "ADDED" else None
        )
        self._accounts.subscribe(content_changed("default"))
        if self._root_ca:
            self._maps.subscribe(content_changed("kube-root-ca.crt"))

    def reconcile(self, key: str) -> list[Write]:
        """What is missing or was changed."""
        namespace = self._namespaces.get("", key)
        if namespace is None or is_deleting(namespace):
            return []
        writes: list[Write] = []
        if self._accounts.get(key, "default") is None:
            writes.append(Create(SERVICEACCOUNT, _object(SERVICEACCOUNT, key, "default", {})))
        if self._root_ca:
            present = self._maps.get(key, "kube-root-ca.crt")
            data = {"data": {"ca.crt": self._root_ca}}
            if present is None:
                writes.append(Create(CONFIGMAP, _object(CONFIGMAP, key, "kube-root-ca.crt", data)))
            elif present.get("data") != data["data"]:
                body = {"metadata": {"uid": uid_of(present)}, **data}
                writes.append(Patch(CONFIGMAP, key, "kube-root-ca.crt", body))
        return writes


def _object(kind: Kind, namespace: str, name: str, rest: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": namespace},
        **rest,
    }
