"""A case as a guest on a cluster that exists: in namespaces of its own, and gone afterwards.

Nodes, slices and classes belong to no namespace, so they keep their names; one that is there already is a miss of the
case and is left alone. Whatever a run creates carries a label with the run's name, or is in a namespace that does.
"""

from __future__ import annotations

import asyncio
import secrets
from copy import deepcopy
from dataclasses import replace
from typing import Any

from drakkar.api import kinds, objects
from drakkar.api.errors import ApiError, EnvironmentProblem
from drakkar.api.kinds import Kind
from drakkar.api.meta import Object
from drakkar.api.names import CASE
from drakkar.client import Client
from drakkar.insight.cases import Case, CaseResult, ServedKinds, play

#: Longest time in seconds until pods and claims are gone.
PATIENCE = 30.0
POLL = 0.05


async def visit(client: Client, case: Case, *, scheduler_name: str = "") -> CaseResult:
    """Plays the case on this cluster and deletes what it created there.

    Namespaces are renamed, also in the expected usage of quotas. ``scheduler_name`` is for pods that name no scheduler.
    Raises EnvironmentProblem when pods or claims do not go away.
    """
    guest = _Guest(client, f"case-{secrets.token_hex(4)}", scheduler_name)
    usage: dict[str, Any] = case.expect.get("usage") or {}
    moved = replace(
        case,
        cluster=[await guest.moved(obj) for obj in case.cluster],
        workload=[await guest.moved(obj) for obj in case.workload],
        expect={**case.expect, "usage": {guest.home(name): used for name, used in usage.items()}},
    )
    home: Object = {"metadata": {"name": guest.home("default"), "labels": {CASE: guest.run}}}
    await client.create(kinds.NAMESPACE, home)
    try:
        await _make_account(client, guest.home("default"))
        return await play(moved, client)
    finally:
        await guest.leave()


async def _make_account(client: Client, namespace: str) -> None:
    """The account that pods run as. Kubernetes refuses them until it is there, and its controller may take a while."""
    account: Object = {"metadata": {"name": "default"}}
    try:
        await client.create(kinds.SERVICEACCOUNT, account, namespace=namespace)
    except ApiError as error:
        if error.code != 409:
            raise


class _Guest:
    def __init__(self, client: Client, run: str, scheduler_name: str):
        self.run = run
        self._client = client
        self._scheduler_name = scheduler_name
        self._served = ServedKinds(client)
        self._kinds: dict[Kind, None] = {}

    def home(self, namespace: str) -> str:
        """What a namespace of the case is called on the cluster."""
        return self.run if namespace == "default" else f"{self.run}-{namespace}"

    async def moved(self, obj: Object) -> Object:
        """The object as it is to be created."""
        kind = await self._served.of(obj)
        self._kinds[kind] = None
        new: dict[str, Any] = deepcopy(obj)
        metadata = new["metadata"]
        metadata["labels"] = {**(metadata.get("labels") or {}), CASE: self.run}
        if kind == kinds.NAMESPACE:
            metadata["name"] = self.home(metadata["name"])
        elif kind.namespaced:
            metadata["namespace"] = self.home(metadata.get("namespace", "default"))
        if kind == kinds.POD and self._scheduler_name:
            new["spec"].setdefault("schedulerName", self._scheduler_name)
        return new

    async def leave(self) -> None:
        """Deletes all that carries the label: first what makes pods, pods, claims; then what they depend on."""
        label = f"{CASE}={self.run}"
        namespaces = [objects.name_of(obj) for obj in (await self._client.list(kinds.NAMESPACE, None, label)).items]
        for kind in self._kinds:
            if kind.namespaced and kind not in (kinds.POD, kinds.RESOURCECLAIM):
                await self._delete(kind, [obj for name in namespaces for obj in await self._list(kind, name, label)])
        left = await self._emptied(namespaces)
        for kind in self._kinds:
            if not kind.namespaced and kind != kinds.NAMESPACE:
                await self._delete(kind, await self._list(kind, None, label))
        await self._delete(kinds.NAMESPACE, await self._list(kinds.NAMESPACE, None, label))
        if left:
            raise EnvironmentProblem(
                f"{', '.join(left)}: still there {PATIENCE:g} s after deletion; a controller for claims has to run "
                "on the cluster (drakkar controllers --only claims, or kube-controller-manager)"
            )

    async def _emptied(self, namespaces: list[str]) -> list[str]:
        """Deletes pods and claims, also those that appear meanwhile; answers what does not go."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            left: list[str] = []
            for kind in (kinds.POD, kinds.RESOURCECLAIM):
                found = [obj for name in namespaces for obj in await self._list(kind, name)]
                await self._delete(kind, [obj for obj in found if not objects.is_deleting(obj)])
                left += [f"{kind.kind} {objects.key_of(obj)}" for obj in found]
            if not left or loop.time() > deadline:
                return left
            await asyncio.sleep(POLL)

    async def _list(self, kind: Kind, namespace: str | None, label: str = "") -> list[Any]:
        try:
            return (await self._client.list(kind, namespace, label)).items
        except ApiError as error:
            if not error.is_unknown_kind:
                raise
            # That the cluster does not serve it was a miss of the case when an object of it was refused.
            return []

    async def _delete(self, kind: Kind, found: list[Any]) -> None:
        for obj in found:
            namespace = objects.namespace_of(obj) if kind.namespaced else None
            # Nobody ends the containers of a pod on a node that is only an object.
            grace = 0 if kind == kinds.POD else None
            try:
                await self._client.delete(kind, objects.name_of(obj), namespace, objects.uid_of(obj), grace=grace)
            except ApiError as error:
                if error.code != 404:
                    raise
