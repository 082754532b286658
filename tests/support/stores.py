"""Data folders as releases have left them, made by code from frozen parts.

``TABLES`` has the tables of every schemaVersion that was ever released, as they were then, and
``tests/data/stores/objects.json`` objects in their stored form. Neither changes when the code does: they
stand for data that users have. To see what today's code stores: ``python -m tests.support.stores``.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import apsw

OBJECTS = Path(__file__).parents[1] / "data" / "stores" / "objects.json"

#: schemaVersion → (application_id, statements).
TABLES: dict[int, tuple[int, str]] = {
    1: (
        0x44726B72,
        """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (key TEXT PRIMARY KEY, rev INTEGER NOT NULL, value BLOB NOT NULL);
""",
    ),
}


def make_store(path: Path, version: int) -> dict[str, Any]:
    """A closed store of this schemaVersion; key → object."""
    application, tables = TABLES[version]
    kept = json.loads(OBJECTS.read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(f"PRAGMA application_id={application}")
        connection.execute(f"PRAGMA user_version={version}")
        connection.execute(tables)
        meta = [("schemaVersion", str(version)), ("revision", str(kept["revision"]))]
        connection.executemany("INSERT INTO meta VALUES(?,?)", meta)
        rows = [(key, rev, json.dumps(value).encode()) for key, rev, value in kept["objects"]]
        connection.executemany("INSERT INTO objects VALUES(?,?,?)", rows)
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.close()
    return {key: value for key, _, value in kept["objects"]}


async def record() -> dict[str, Any]:
    """What this version of Drakkar stores of a small cluster at work."""
    from drakkar.apiserver import ApiServer
    from drakkar.store import MemoryBackend
    from tests.unit.apiserver.core.serving import Api, StoppedClock

    clock = StoppedClock()
    backend = MemoryBackend()
    server = ApiServer(backend, clock=clock, rng=random.Random(1))
    await server.start()
    api = Api(server, clock, server.token("admin", "system:masters"))
    await api.post("/api/v1/nodes", {"metadata": {"name": "n1", "labels": {"zone": "a"}}})
    device = {"name": "gpu-0", "attributes": {"model": {"string": "m"}}, "capacity": {"memory": {"value": "80Gi"}}}
    await api.post(
        "/apis/resource.k8s.io/v1/resourceslices",
        {
            "metadata": {"name": "n1-gpu"},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "devices": [device],
            },
        },
    )
    selector = {"cel": {"expression": 'device.driver == "gpu.example.com"'}}
    await api.post(
        "/apis/resource.k8s.io/v1/deviceclasses",
        {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}},
    )
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    claim = await api.post(claims, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}})
    pods = "/api/v1/namespaces/default/pods"
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    wants = {"name": "gpu", "resourceClaimName": "c"}
    pod = await api.post(
        pods, {"metadata": {"name": "p"}, "spec": {"containers": [container], "resourceClaims": [wants]}}
    )
    result = {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
    consumer = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
    claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    claim = await api.put(f"{claims}/c", claim)
    claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
    await api.put(f"{claims}/c/status", claim)
    await api.post(f"{pods}/p/binding", {"target": {"kind": "Node", "name": "n1"}})
    await api.patch(f"{pods}/p/status", {"status": {"phase": "Running", "podIP": "10.0.0.1"}})
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    await api.post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [
                    {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
                ],
            },
        },
    )
    await api.post("/apis/example.com/v1/namespaces/default/things", {"metadata": {"name": "t"}, "spec": {"size": 3}})
    revision = server.state.revision
    await api.close()
    objects = [(record.key, record.revision, json.loads(record.value or b"")) for record in backend.load()]
    return {"revision": revision, "objects": sorted(objects)}


if __name__ == "__main__":
    json.dump(asyncio.run(record()), sys.stdout, indent=1)
