"""Random objects, bodies and patches: shaped by the schemas, then broken somewhere."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import yaml

from drakkar.apiserver.catalog import Catalog, Served
from drakkar.apiserver.schema import SchemaNode, schemas
from tests.unit.apiserver.pure import protobuf_encoder

Object = dict[str, Any]

_WORDS = ["", "a", "a-b", "x.y", "a/b", "gpu.example.com", "default", "Always", "true", "1", "100m", "1Gi", "A" * 300]
_WORDS += [
    "\u0000",
    "\u00e9\u2603",
    "..",
    "-",
    "node-1",
    "v1",
    "*",
    "metadata.name",
    "@every 1h",
    "*/5 * * * *",
    "device.driver == 'x'",
]
_NUMBERS = [0, 1, -1, 7, 80, 65535, 65536, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**63, 10**30]
_TIMES = ["2026-11-29T17:12:45Z", "2026-11-29T17:12:45.000001Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now"]
_QUANTITIES = ["0", "1", "500m", "80Gi", "1e3", "-5", "1.5", "9999999999999999999", "1E", ".", "1n", "", 5, 1.5]
_JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    "",
    "x",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"a": {"b": []}},
]
_POINTER_ENDS = ["", "-", "0", "1", "-1", "~", "~0", "~1", "x", "9" * 30]


class Maker:
    """All inputs of one run, from one source of chance."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.catalog = Catalog()
        self.targets = [served for served in self.catalog.served.values() if served.stored is not None]

    def node(self, served: Served) -> SchemaNode | None:
        return schemas().for_kind(served.group, served.version, served.kind)

    # Objects.

    def object(self, served: Served, name: str, *, junk: float) -> Object:
        """An object of the kind; each value is nonsense with probability ``junk``."""
        node = self.node(served)
        found = self.value(node, 0, junk) if node is not None else {}
        if not isinstance(found, dict):
            found = {}
        found["apiVersion"], found["kind"] = served.api_version, served.kind
        meta = found.get("metadata")
        found["metadata"] = {**(meta if isinstance(meta, dict) and self.rng.random() < 0.2 else {}), "name": name}
        return found

    def value(self, node: SchemaNode | None, depth: int, junk: float) -> Any:
        rng = self.rng
        if rng.random() < junk:
            return rng.choice(_JUNK)
        if node is None or depth > 7:
            return rng.choice(_JUNK[:10])
        match node.kind:
            case "struct":
                return {
                    name: self.value(child, depth + 1, junk)
                    for name, child in node.fields.items()
                    if name in node.required or rng.random() < (0.5 if depth < 2 else 0.25)
                }
            case "map":
                return {
                    rng.choice(_WORDS): self.value(node.additional, depth + 1, junk) for _ in range(rng.randrange(3))
                }
            case "list":
                return [self.value(node.items, depth + 1, junk) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
            case "string":
                return rng.choice([*node.enum, *_WORDS] if node.enum else _WORDS)
            case "integer":
                return rng.choice(_NUMBERS)
            case "number":
                return rng.choice([0.0, 1.5, -1e300])
            case "boolean":
                return rng.random() < 0.5
            case "quantity":
                return rng.choice(_QUANTITIES)
            case "int-or-string":
                return rng.choice([*_NUMBERS[:5], "50%", "http", "", "101%", "x%"])
            case "time" | "microtime":
                return rng.choice(_TIMES)
            case _:
                return rng.choice(_JUNK)

    # Bodies.

    def body(self, obj: Object) -> tuple[str, bytes]:
        """Media type and bytes; sometimes bytes that are no longer that."""
        rng = self.rng
        how = rng.random()
        if how < 0.5:
            media, data = "application/json", json.dumps(obj).encode()
        elif how < 0.65:
            media, data = "application/yaml", yaml.safe_dump(_plain(obj)).encode("utf-8", "surrogatepass")
        else:
            media = "application/vnd.kubernetes.protobuf"
            try:
                data = protobuf_encoder.encode(obj)
            except Exception:
                # The encoder takes sound objects only.
                data = b"k8s\0" + rng.randbytes(rng.randrange(200))
        return media, self.broken(data) if rng.random() < 0.3 else data

    def broken(self, data: bytes) -> bytes:
        """The bytes with some of them changed, taken out, doubled or cut off."""
        rng = self.rng
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 3, 10))):
            if not out:
                break
            at = rng.randrange(len(out))
            match rng.randrange(5):
                case 0:
                    out[at] = rng.randrange(256)
                case 1:
                    out[at] ^= 1 << rng.randrange(8)
                case 2:
                    del out[at : at + rng.randrange(1, 9)]
                case 3:
                    out[at:at] = out[at : at + rng.randrange(1, 20)] * rng.choice((1, 2, 50))
                case _:
                    del out[at:]
        return bytes(out)

    # Patches.

    def patch(self, served: Served, current: Object) -> tuple[str, bytes]:
        """Media type and body of a patch to ``current``."""
        rng = self.rng
        kind = rng.choice(("merge", "strategic-merge", "json", "apply"))
        if kind == "json":
            patch: Any = [self.operation(current) for _ in range(rng.randrange(1, 5))]
        else:
            patch = self.object(served, current.get("metadata", {}).get("name", "x"), junk=rng.choice((0, 0.02, 0.1)))
            if kind == "strategic-merge":
                self.direct(patch)
            elif kind == "merge" and rng.random() < 0.5:
                self.delete_some(patch)
        media = "application/apply-patch+yaml" if kind == "apply" else f"application/{kind}-patch+json"
        data = json.dumps(patch).encode()
        return media, self.broken(data) if rng.random() < 0.1 else data

    def direct(self, value: Any) -> None:
        """Puts directives of strategic merge in, right ones and wrong ones."""
        rng = self.rng
        if isinstance(value, dict):
            for item in list(value.values()):
                self.direct(item)
            if rng.random() < 0.15:
                names = [name for name in value if not name.startswith("$")] or ["x"]
                name = rng.choice(names)
                directives: list[tuple[str, Any]] = [
                    ("$patch", rng.choice(("delete", "replace", "merge", "", 1, None))),
                    ("$retainKeys", rng.choice((names, [name], [], [1], "x", None))),
                    (f"$setElementOrder/{name}", rng.choice(([], ["a"], [{"name": "a"}], [{}], 1, None))),
                    (f"$deleteFromPrimitiveList/{name}", rng.choice((["a"], [1], {}, None))),
                ]
                key, directive = rng.choice(directives)
                value[key] = directive
        elif isinstance(value, list):
            for item in value:
                self.direct(item)
            if rng.random() < 0.1:
                value.append({"$patch": rng.choice(("delete", "replace"))})

    def delete_some(self, value: Any) -> None:
        if isinstance(value, dict):
            for name, item in list(value.items()):
                if self.rng.random() < 0.1:
                    value[name] = None
                else:
                    self.delete_some(item)

    def operation(self, current: Object) -> Any:
        rng = self.rng
        op: Object = {
            "op": rng.choice(("add", "add", "remove", "replace", "move", "copy", "test", "x")),
            "path": self.pointer(current),
        }
        if rng.random() < 0.8:
            op["value"] = rng.choice([*_JUNK, current, current.get("spec"), current.get("metadata")])
        if rng.random() < 0.5:
            op["from"] = self.pointer(current)
        if rng.random() < 0.05:
            op.pop(rng.choice(list(op)))
        return op

    def pointer(self, value: Any) -> str:
        """A pointer into the object, that may end beside it."""
        rng = self.rng
        steps: list[str] = []
        while rng.random() < 0.85:
            if isinstance(value, dict) and value:
                name = rng.choice(list(value))
                steps.append(str(name).replace("~", "~0").replace("/", "~1"))
                value = value[name]
            elif isinstance(value, list) and value:
                at = rng.randrange(len(value))
                steps.append(str(at))
                value = value[at]
            else:
                break
        if rng.random() < 0.2:
            steps.append(rng.choice(_POINTER_ENDS))
        return "".join("/" + step for step in steps)


def _plain(value: Any) -> Any:
    """Without what YAML's safe writer does not know."""
    return msgspec.json.decode(json.dumps(value))
