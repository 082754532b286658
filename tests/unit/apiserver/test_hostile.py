"""Whatever a client sends, the answer is a Status with 4xx or a success, and what got stored can be read again.

The bodies are sound objects with one value replaced by something that does not belong there, at any
place their schema knows, sent by every write that the kind takes.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from drakkar.api import kinds
from drakkar.api.wire import Request, Response
from drakkar.apiserver import options
from drakkar.apiserver.limits import BODY_LIMIT
from drakkar.apiserver.schema import SchemaNode, schemas
from tests.unit.apiserver.core.serving import Api

Object = dict[str, Any]

DRA = "resource.k8s.io"
_CONTAINERS = [{"name": "c", "image": "i", "resources": {"claims": [{"name": "r"}]}}]
_REQUESTS = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "tpu"}}]}}
_POD = {
    "restartPolicy": "Never",
    "containers": _CONTAINERS,
    "resourceClaims": [{"name": "r", "resourceClaimName": "c"}],
}
_POOL = {"name": "p", "generation": 1, "resourceSliceCount": 1}
_DEVICES = [{"name": "d", "attributes": {"a": {"int": 1}}, "capacity": {"m": {"value": "1Gi"}}}]

#: Kinds of the 64-chip story: group, kind, collection, a sound object.
KINDS: list[tuple[str, str, str, Object]] = [
    ("", "Pod", "/api/v1/namespaces/default/pods", {"spec": _POD}),
    ("", "Node", "/api/v1/nodes", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
    ("", "Namespace", "/api/v1/namespaces", {}),
    ("", "Event", "/api/v1/namespaces/default/events", {"involvedObject": {"namespace": "default"}}),
    ("batch", "Job", "/apis/batch/v1/namespaces/default/jobs", {"spec": {"template": {"spec": _POD}}}),
    ("coordination.k8s.io", "Lease", "/apis/coordination.k8s.io/v1/namespaces/default/leases", {}),
    (DRA, "DeviceClass", f"/apis/{DRA}/v1/deviceclasses", {"spec": {"selectors": [{"cel": {"expression": "true"}}]}}),
    (DRA, "ResourceClaim", f"/apis/{DRA}/v1/namespaces/default/resourceclaims", {"spec": _REQUESTS}),
    (
        DRA,
        "ResourceClaimTemplate",
        f"/apis/{DRA}/v1/namespaces/default/resourceclaimtemplates",
        {"spec": {"spec": _REQUESTS}},
    ),
    (
        DRA,
        "ResourceSlice",
        f"/apis/{DRA}/v1/resourceslices",
        {"spec": {"driver": "x.y", "nodeName": "n", "pool": _POOL, "devices": _DEVICES}},
    ),
    (
        DRA,
        "DeviceTaintRule",
        f"/apis/{DRA}/v1/devicetaintrules",
        {"spec": {"deviceSelector": {"driver": "x.y"}, "taint": {"key": "a.b/c", "effect": "NoExecute"}}},
    ),
]

#: As clients decode them.
STRUCTS = {
    (known.group, known.kind): known.type
    for known in vars(kinds).values()
    if isinstance(known, kinds.Kind) and known.version == "v1"
}

#: JSON texts, since some of these no encoder would write.
HOSTILE = [
    *("null", "[]", "{}", '""', "true", "-1", "0", "1.5", "-0.0", "1e308", "1e400", "NaN", "Infinity"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 400, "9" * 5000),
    *("[null]", "[[]]", "[{}]", '[""]', "[1]", '["a", "a"]', '{"a": null}', '{"": ""}', '{"a": {}}', '{"a": 1}'),
    *('"\\u0000"', '"\\ud800"', '"../.."', '"a/b"', '"%2e%2e"', '"\\u00e9\\u2603"', f'"{"x" * 70_000}"'),
    *('"1e1000000000"', '"9999999999999E"', '"1e-1000000000"', '"\\u00b2"', '"0000-00-00T99:99:99Z"'),
    *('"9999-12-31T23:59:59.999999999+14:00"', '{"a": 1, "a": 2}', "[" * 10_000, '{"a":' * 500 + "1" + "}" * 500),
]

_MARK = "@hostile@"
_TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def places(node: SchemaNode | None, depth: int) -> Iterator[tuple[str, ...]]:
    """Ways to every value that a schema knows; ``[]`` is an element, ``{}`` a member of a map."""
    if node is None or depth < 0:
        return
    yield ()
    if node.kind == "struct":
        below: list[tuple[str, SchemaNode | None]] = list(node.fields.items())
    elif node.kind == "list":
        below = [("[]", node.items)]
    else:
        below = [("{}", node.additional)]
    for name, child in below:
        yield from ((name, *rest) for rest in places(child, depth - 1))


def with_value(obj: Object, way: tuple[str, ...], text: str) -> bytes:
    """The object as JSON, with ``text`` at the place, which is made where it is missing."""
    holder: Any = {"": copy.deepcopy(obj)}
    at, key = holder, ""
    for step in way:
        wanted: type[Any] = list if step == "[]" else dict
        if type(at[key]) is not wanted:
            at[key] = wanted()
        at, key = at[key], 0 if step == "[]" else "k" if step == "{}" else step
        if type(at) is list:
            if not at:
                at.append(None)
        else:
            at.setdefault(key, None)
    at[key] = _MARK
    return json.dumps(holder[""]).replace(json.dumps(_MARK), text).encode()


_PLACES: dict[tuple[str, str], list[tuple[str, ...]]] = {}


def places_of(group: str, kind: str) -> list[tuple[str, ...]]:
    if (group, kind) not in _PLACES:
        found = schemas().for_kind(group, "v1", kind)
        _PLACES[group, kind] = sorted(way for way in places(found, 6) if way)
    return _PLACES[group, kind]


def check(request: Request, response: Response) -> None:
    """A success, or a Status that says what is wrong with the request."""
    about = (request.method, request.path, request.query, request.headers, request.body[:500], response.body[:500])
    if response.status >= 400:
        answer = json.loads(response.body)
        # Upstream answers these two with 500 and 504.
        rules = ("resourceVersion should not be set", "Too large resource version")
        by_rule = any(rule in answer["message"] for rule in rules)
        assert response.status < 500 or by_rule, about
        assert answer["kind"] == "Status", about
        assert answer["message"], about


async def ask(
    api: Api, method: str, path: str, body: bytes = b"", headers: Object | None = None, query: Object | None = None
) -> Response:
    request = Request(method, path, tuple((query or {}).items()), headers or {}, body)
    response = await asyncio.wait_for(api.ask(request), 60)
    if response.stream is None:
        check(request, response)
    return response


WRITES = ("POST", "PUT", "PUT status", "merge", "strategic-merge", "merge status", "apply")


async def write(api: Api, how: str, collection: str, body: bytes) -> Response:
    verb, _, sub = how.partition(" ")
    path = f"{collection}/victim/{sub}" if sub else f"{collection}/victim"
    if verb == "POST":
        return await ask(api, "POST", collection, body)
    if verb == "PUT":
        return await ask(api, "PUT", path, body)
    media = "application/apply-patch+yaml" if verb == "apply" else f"application/{verb}-patch+json"
    return await ask(api, "PATCH", path, body, {"content-type": media}, {"fieldManager": "m", "force": "true"})


async def read_back(api: Api, kind: str, group: str, path: str) -> None:
    """What got stored is readable as the parts of the plane read it."""
    await ask(api, "GET", path, headers=_TABLE)
    found = await ask(api, "GET", path)
    if found.status != 200:
        return
    struct = STRUCTS.get((group, kind))
    if struct is not None:
        msgspec.json.decode(found.body, type=struct)


@seed(20)
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(KINDS), st.data())
def test_wrong_values_anywhere(chosen: tuple[str, str, str, Object], data: st.DataObject) -> None:
    group, kind, collection, sound = chosen
    cases = data.draw(
        st.lists(
            st.tuples(st.sampled_from(places_of(group, kind)), st.sampled_from(HOSTILE), st.sampled_from(WRITES)),
            min_size=1,
            max_size=40,
        )
    )

    async def run() -> None:
        api = await Api.start()
        await ask(api, "POST", collection, json.dumps({**sound, "metadata": {"name": "victim"}}).encode())
        for number, (way, text, how) in enumerate(cases):
            name = f"n{number}" if how == "POST" else "victim"
            body = with_value({**sound, "metadata": {"name": name}}, way, text)
            if (await write(api, how, collection, body)).status < 300:
                await read_back(api, kind, group, f"{collection}/{name}")
        await ask(api, "GET", collection, headers=_TABLE)
        await ask(api, "DELETE", f"{collection}/victim", b'{"gracePeriodSeconds": 9223372036854775807}')
        await api.close()

    asyncio.run(run())


_BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + level, 98 + level, b", ".join([b"*%c" % (97 + level)] * 9)) for level in range(9)
)
BODIES = {
    "deep object": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "deep list": b"[" * 10_000 + b"]" * 10_000,
    "deep twice": b'{"a": 1, "a":' + b'{"a":' * 900 + b"1.0" + b"}" * 901,
    "open": b'{"metadata": {"name": "x"',
    "no utf-8": b'{"a": "\xff\xfe"}',
    "utf-16": '{"metadata": {"name": "x"}}'.encode("utf-16"),
    "digits": b'{"metadata": {"name": "x", "generation": ' + b"9" * 100_000 + b"}}",
    "digits twice": b'{"a": 1, "a": ' + b"9" * 5000 + b"}",
    "too long": b'{"a": "' + b"x" * BODY_LIMIT + b'"}',
    "nothing": b"",
    "bomb": _BOMB,
    "merge bomb": b"a: &a {x: 1}\n"
    + b"".join(
        b"a%d: &a%d {<<: [*a%s, *a%s]}\n" % (n, n, b"%d" % (n - 1) * (n > 0), b"%d" % (n - 1) * (n > 0))
        for n in range(30)
    ),
    "anchor in itself": b"a: &a [*a]",
    "merge of itself": b"&a\n<<: *a\n",
    "deep flow": b"[" * 100_000,
    "deep block": b"- " * 100_000,
    "no number": b"a: !!int x",
    "no truth": b"a: !!bool x",
    "not finite": b"metadata: {name: x, generation: .nan}",
    "two documents": b"a: 1\n---\nb: 2\n",
    "protobuf": b"k8s\x00\x0a\xff\xff\xff\xff\x0f",
}
MEDIA = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/plain", ";;", ""]
PATCHES = ["json", "merge", "strategic-merge"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_bodies(body: bytes) -> None:
    asyncio.run(_test_bodies(body))


async def _test_bodies(body: bytes) -> None:
    api = await Api.start()
    pods = "/api/v1/namespaces/default/pods"
    await ask(api, "POST", pods, json.dumps({"metadata": {"name": "victim"}, "spec": _POD}).encode())
    for media in MEDIA:
        await ask(api, "POST", pods, body, {"content-type": media})
        await ask(api, "DELETE", f"{pods}/nobody", body, {"content-type": media})
    for kind in PATCHES:
        await ask(api, "PATCH", f"{pods}/victim", body, {"content-type": f"application/{kind}-patch+json"})
    await ask(
        api, "PATCH", f"{pods}/victim", body, {"content-type": "application/apply-patch+yaml"}, {"fieldManager": "m"}
    )
    await api.close()


_POINTERS = ["", "/", "/~", "/~2", "/spec/containers/-", "/spec/containers/-1", "/spec/containers/" + "9" * 5000]
_POINTERS += ["/metadata", "/metadata/uid", "/kind", "/a/b/c", "/spec/containers/\u00b2", "/spec/containers/1e3"]
_DIRECTIVES: list[Any] = [
    *({"$patch": value} for value in ("replace", "delete", "bogus", 1, [], {})),
    *({"$retainKeys": value} for value in ([], 1, [[]])),
    *({"spec": {"$setElementOrder/containers": value}} for value in ([1], [{}], {}, None, [{"name": {}}])),
    *({"metadata": {"$deleteFromPrimitiveList/finalizers": value}} for value in ([{}], 1)),
    *({"metadata": {"finalizers": value}} for value in ([{}], [None], [[1]])),
    *({"spec": {"containers": value}} for value in ([[]], [None], ["x"], [{"$patch": "delete", "name": []}])),
    *({"metadata": value} for value in (None, [], 1, {"name": None, "uid": None, "resourceVersion": None})),
    *({"kind": value} for value in (None, 1, [], "X")),
    *({"apiVersion": value} for value in (None, 1, {}, "a/b/c")),
]


def test_patches() -> None:
    asyncio.run(_test_patches())


async def _test_patches() -> None:
    api = await Api.start()
    pods = "/api/v1/namespaces/default/pods"
    victim = f"{pods}/victim"
    await ask(api, "POST", pods, json.dumps({"metadata": {"name": "victim"}, "spec": _POD}).encode())
    media = {"content-type": "application/json-patch+json"}
    for word in ("add", "remove", "replace", "move", "copy", "test", "bogus", None):
        for pointer in [*_POINTERS, None, 1, []]:
            for value in (None, 1, {}, "/metadata"):
                operation = {"op": word, "path": pointer, "value": value, "from": value}
                await ask(api, "PATCH", victim, json.dumps([operation]).encode(), media)
    grown: list[Object] = [{"op": "add", "path": "/x", "value": [1] * 10}]
    grown += [{"op": "copy", "from": "/x", "path": "/x/-"}] * 60
    answer = await ask(api, "PATCH", victim, json.dumps(grown).encode(), media)
    assert answer.status == 413
    nested = [{"op": "add", "path": "/x" * depth, "value": {}} for depth in range(1, 2000)]
    await ask(api, "PATCH", victim, json.dumps(nested).encode(), media)
    for directive in _DIRECTIVES:
        for kind in ("strategic-merge", "merge"):
            headers = {"content-type": f"application/{kind}-patch+json"}
            await ask(api, "PATCH", victim, json.dumps(directive).encode(), headers)
    await api.close()


_GARBAGE = ["", "x", "-1", "1.5", "1_0", " 1", "\u00b2", "null", "99999999999999999999", "9" * 5000, "a in (", "!"]
_GARBAGE += ["a=b,c==", "(" * 5000, "metadata.name=a\\", "a<5", "," * 5000, "\x00"]
_GARBAGE += [options.encode_token(version, "../../secrets/x") for version in (-1, 0, 10**30)] + [
    "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6SW5maW5pdHksInN0YXJ0IjoieCJ9",
    "W1tbW1s",
]
_OPTIONS = ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch"]
_OPTIONS += ["timeoutSeconds", "watch", "sendInitialEvents", "gracePeriodSeconds", "propagationPolicy", "dryRun"]


def test_options() -> None:
    asyncio.run(_test_options())


async def _test_options() -> None:
    api = await Api.start()
    collection = f"/apis/{DRA}/v1/namespaces/default/resourceclaims"
    for name in _OPTIONS:
        for value in _GARBAGE:
            for more in ({}, {"watch": "1"}):
                response = await ask(api, "GET", collection, query={name: value, **more})
                if response.stream is not None:
                    await response.stream.aclose()  # type: ignore[attr-defined]
            await ask(api, "DELETE", collection, query={name: value})
            await ask(api, "DELETE", f"{collection}/nobody", query={name: value})
    await api.close()


def test_paths() -> None:
    asyncio.run(_test_paths())


async def _test_paths() -> None:
    api = await Api.start()
    rng = random.Random(20)
    parts = ["", "..", ".", "%2e%2e", "%2F", "%00", "%ff", "api", "apis", "v1", "namespaces", "pods", "watch", "status"]
    parts += ["x" * 10_000, "batch", DRA, "resourceclaims", "default", "a b", "\u00e9", "-", "openapi", "v3", "healthz"]
    for _ in range(2000):
        path = "/".join(rng.choices(parts, k=rng.randrange(9)))
        method = rng.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", ""])
        request = Request(method, rng.choice(["", "/"]) + path, (), {}, b"{}")
        response = await asyncio.wait_for(api.ask(request), 60)
        assert response.status < 500, (method, path, response.body[:200])
    await api.close()


def test_a_node_makes_only_what_is_its_own() -> None:
    asyncio.run(_test_a_node_makes_only_what_is_its_own())


async def _test_a_node_makes_only_what_is_its_own() -> None:
    api = await Api.start()
    node = api.as_user("system:node:n", "system:nodes")
    slices = f"/apis/{DRA}/v1/resourceslices"
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    spec = {"driver": "x.y", "pool": _POOL, "devices": _DEVICES}
    made = [
        ("/api/v1/nodes", {"metadata": {"name": "n"}}, {"metadata": {"name": "m"}}),
        (leases, {"metadata": {"name": "n"}}, {"metadata": {"name": "m"}}),
        (
            slices,
            {"metadata": {"name": "a"}, "spec": {**spec, "nodeName": "n"}},
            {"metadata": {"name": "b"}, "spec": {**spec, "nodeName": "m"}},
        ),
        (
            slices,
            {"metadata": {"name": "c"}, "spec": {**spec, "nodeName": "n"}},
            {"metadata": {"name": "d"}, "spec": {**spec, "allNodes": True}},
        ),
    ]
    for collection, own, foreign in made:
        assert (await ask(node, "POST", collection, json.dumps(own).encode())).status == 201
        assert (await ask(node, "POST", collection, json.dumps(foreign).encode())).status == 403
    assert (await ask(node, "DELETE", slices)).status == 403
    assert (await ask(node, "DELETE", slices, query={"fieldSelector": "spec.nodeName=m"})).status == 403
    assert (await ask(node, "DELETE", slices, query={"fieldSelector": "spec.nodeName=n"})).status == 200
    assert (await ask(node, "GET", slices, headers={"impersonate-group": "system:masters"})).status == 400
    await api.close()


def test_selectors_of_a_claim_are_bounded_together() -> None:
    asyncio.run(_test_selectors_of_a_claim_are_bounded_together())


async def _test_selectors_of_a_claim_are_bounded_together() -> None:
    api = await Api.start()
    texts = [" && ".join([f'device.driver != "x{number}"'] * 90) for number in range(32 * 32)]
    requests = [
        {
            "name": f"r{number}",
            "exactly": {
                "deviceClassName": "tpu",
                "selectors": [{"cel": {"expression": text}} for text in texts[number * 32 : number * 32 + 32]],
            },
        }
        for number in range(32)
    ]
    body = json.dumps({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}).encode()
    answer = await ask(api, "POST", f"/apis/{DRA}/v1/namespaces/default/resourceclaims", body)
    assert answer.status == 422
    assert b"all expressions of an object together" in answer.body
    await api.close()
