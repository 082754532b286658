"""The least API server that clients can be tested against, with faults on demand."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from typing import Any

from drakkar.api.kinds import Kind
from drakkar.api.wire import Request, Response


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def with_conditions(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """As `merged`, but conditions are merged by their type: all of a strategic merge that is needed here."""
    new = merged(target, patch)
    conditions = patch.get("status", {}).get("conditions")
    if conditions is not None:
        types = {entry["type"] for entry in conditions}
        kept = [entry for entry in target.get("status", {}).get("conditions", []) if entry["type"] not in types]
        new["status"]["conditions"] = [*kept, *conditions]
    return new


def answer(obj: Any, status: int = 200) -> Response:
    return Response(status, {"content-type": "application/json"}, json.dumps(obj).encode())


def failure(code: int, reason: str, message: str = "no", headers: dict[str, str] | None = None) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return Response(code, headers or {}, json.dumps({**status, "code": code}).encode())


class FakeServer:
    """Keeps JSON objects by path; ``handle`` is the handler for `MemoryTransport`."""

    def __init__(self) -> None:
        self.revision = 0
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.oldest = 0
        #: Whether it has streaming lists; None: it says no within the stream, as kube-apiserver does with an old etcd.
        self.streaming_lists: bool | None = True
        self.refuse: list[Response] = []
        self.requests: list[Request] = []
        self.changed = asyncio.Event()
        self.generation = 0
        #: Watches are held back while this is cleared.
        self.deliver = asyncio.Event()
        self.deliver.set()
        #: Watches show nothing newer than this revision; None: everything.
        self.shown: int | None = None

    # for tests

    def put(self, kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
        """Stores as the server would, without a request."""
        meta = obj.setdefault("metadata", {})
        key = (self._collection(kind), meta.get("namespace", ""), meta["name"])
        event = "MODIFIED" if key in self.objects else "ADDED"
        return self._store(key, event, {"apiVersion": kind.api_version, "kind": kind.kind, **obj})

    def get(self, kind: Kind, name: str, namespace: str = "default") -> dict[str, Any]:
        return self.objects[(self._collection(kind), namespace if kind.namespaced else "", name)]

    def remove(self, kind: Kind, name: str, namespace: str = "default") -> None:
        self._drop((self._collection(kind), namespace if kind.namespaced else "", name))

    def disconnect(self) -> None:
        """Ends every watch."""
        self.generation += 1
        self._notify()

    def expire(self) -> None:
        """Forgets the history: watches from older revisions are answered 410."""
        self.history.clear()
        self.oldest = self.revision

    # the server

    @staticmethod
    def _collection(kind: Kind) -> str:
        return kind.path()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _store(self, key: tuple[str, str, str], event: str, obj: dict[str, Any]) -> dict[str, Any]:
        self.revision += 1
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        meta.setdefault("uid", f"uid-{self.revision}")
        meta.setdefault("creationTimestamp", f"2026-01-01T00:00:{self.revision % 60:02d}Z")
        meta["resourceVersion"] = str(self.revision)
        self.objects[key] = obj
        self.history.append((self.revision, event, key[0], obj))
        self._notify()
        return obj

    def _drop(self, key: tuple[str, str, str]) -> dict[str, Any]:
        obj = copy.deepcopy(self.objects.pop(key))
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        self.history.append((self.revision, "DELETED", key[0], obj))
        self._notify()
        return obj

    def show_all(self) -> None:
        """Ends what ``shown`` asks for."""
        self.shown = None
        self._notify()

    async def handle(self, request: Request) -> Response:
        self.requests.append(request)
        await asyncio.sleep(0)
        if self.refuse:
            return self.refuse.pop(0)
        collection, namespace, name, subresource = self._parse(request.path)
        query = dict(request.query)
        if request.method == "GET" and not name:
            if query.get("watch"):
                if query.get("sendInitialEvents") and self.streaming_lists is False:
                    return failure(422, "Invalid", "sendInitialEvents is forbidden")
                return Response(200, {}, stream=self._watch(collection, namespace, query))
            items = [obj for key, obj in self.objects.items() if self._in(key, collection, namespace)]
            return answer({"kind": "List", "metadata": {"resourceVersion": str(self.revision)}, "items": items})
        body = json.loads(request.body) if request.body else {}
        key = (collection, namespace, name or body.get("metadata", {}).get("name", ""))
        if request.method == "POST" and not subresource:
            if key in self.objects:
                return failure(409, "AlreadyExists")
            body.get("metadata", {}).pop("resourceVersion", None)
            if not key[2]:
                key = (collection, namespace, body["metadata"].get("generateName", "x") + str(self.revision))
                body["metadata"]["name"] = key[2]
            return answer(self._store(key, "ADDED", body), 201)
        old = self.objects.get(key)
        if old is None:
            return failure(404, "NotFound", f"{key[2]} not found")
        if request.method == "POST" and subresource == "binding":
            return self._bind(key, old, body)
        if request.method == "GET":
            return answer(old)
        if request.method == "DELETE":
            wanted = body.get("preconditions", {}).get("uid")
            if wanted and wanted != old["metadata"]["uid"]:
                return failure(409, "Conflict")
            if old["metadata"].get("finalizers"):
                return answer(self._store(key, "MODIFIED", merged(old, {"metadata": {"deletionTimestamp": "now"}})))
            return answer(self._drop(key))
        asked = body.get("metadata", {})
        for field in ("resourceVersion", "uid"):
            if asked.get(field) and asked[field] != old["metadata"][field]:
                return failure(409, "Conflict", "the object has been modified")
        strategic = "strategic" in request.headers.get("content-type", "")
        new = (with_conditions if strategic else merged)(old, body) if request.method == "PATCH" else body
        if new == old:
            return answer(old)
        meta = new["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            return answer(self._drop(key))
        return answer(self._store(key, "MODIFIED", new))

    def _bind(self, key: tuple[str, str, str], old: dict[str, Any], body: dict[str, Any]) -> Response:
        asked = body.get("metadata", {})
        for field in ("resourceVersion", "uid"):
            if asked.get(field) and asked[field] != old["metadata"][field]:
                return failure(409, "Conflict", "the pod has been modified")
        if old["spec"].get("nodeName"):
            return failure(409, "Conflict", "pod is already assigned to a node")
        self._store(key, "MODIFIED", merged(old, {"spec": {"nodeName": body["target"]["name"]}}))
        return answer({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}, 201)

    @staticmethod
    def _parse(path: str) -> tuple[str, str, str, str]:
        parts = path.strip("/").split("/")
        size = 2 if parts[0] == "api" else 3
        root, rest = parts[:size], parts[size:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        rest += [""] * (3 - len(rest))
        return "/" + "/".join([*root, rest[0]]), namespace, rest[1], rest[2]

    @staticmethod
    def _in(key: tuple[str, str, str], collection: str, namespace: str) -> bool:
        return key[0] == collection and namespace in ("", key[1])

    async def _watch(self, collection: str, namespace: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        def frame(event: str, obj: Any) -> bytes:
            return json.dumps({"type": event, "object": obj}).encode() + b"\n"

        generation = self.generation
        position = int(query.get("resourceVersion") or 0)
        if query.get("sendInitialEvents") and self.streaming_lists is None:
            message = "the required storage feature RequestWatchProgress is disabled"
            yield frame("ERROR", {"kind": "Status", "code": 500, "reason": "InternalError", "message": message})
            return
        if query.get("sendInitialEvents"):
            position = self.revision
            for key, obj in [*self.objects.items()]:
                if self._in(key, collection, namespace):
                    yield frame("ADDED", obj)
            meta = {"resourceVersion": str(position), "annotations": {"k8s.io/initial-events-end": "true"}}
            yield frame("BOOKMARK", {"kind": "X", "metadata": meta})
        elif position < self.oldest:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            yield frame("ERROR", status)
            return
        while generation == self.generation:
            changed = self.changed
            await self.deliver.wait()
            until = self.revision if self.shown is None else min(self.revision, self.shown)
            for revision, event, where, obj in [*self.history]:
                if (
                    position < revision <= until
                    and where == collection
                    and namespace in ("", obj["metadata"].get("namespace"))
                ):
                    yield frame(event, obj)
            position = until
            await changed.wait()
