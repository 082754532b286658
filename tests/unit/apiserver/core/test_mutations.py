"""Objects that are nearly good: whatever is wrong with them, the server says so and does not fail.

Good objects of the kinds with the most rules are changed at random places to odd values, posted,
and what was accepted is changed again and put back. A failing run prints the object.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from drakkar.api.wire import Request
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_bounds import SERVICES, service
from tests.unit.apiserver.core.test_custom import DEFINITIONS, WIDGETS
from tests.unit.apiserver.core.test_custom_rules import two_versions, with_spec
from tests.unit.apiserver.core.test_policies import BINDINGS, POLICIES, binding, policy
from tests.unit.apiserver.core.test_resource_rules import claim, slice_
from tests.unit.apiserver.core.test_webhooks import MUTATING, config, entry
from tests.unit.apiserver.core.test_writes import CLAIMS, PODS, SLICES, play, pod

TURNS = 700
ODD: list[Any] = [
    None, {}, [], -1, 0, 1 << 70, 1.5, "", "x", "*", True, False, [None], [{}], {"a": None}, ["a", "a"], "-1", "1e9",
    "é", "a" * 300, {"": ""}, [[]], "1/0", "%",
]  # fmt: skip
NEW = ("x", "nullable", "default", "items", "type", "name", "minimum", "x-kubernetes-validations", "$ref")
CORE = "/api/v1/namespaces/default"
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]}
ITEM = {"type": "object", "properties": {"k": {"type": "string", "default": "x"}}}
KEYED = {
    "type": "array",
    "maxItems": 3,
    "items": ITEM,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["k"],
}
LIMIT = {"type": "Container", "min": {"cpu": "1"}}
SCHEDULE = {"schedule": "*/5 1-3 * jan mon", "jobTemplate": {"spec": {"template": TEMPLATE}}}
GANG = {"gang": {"minCount": 2}}

GOOD: list[tuple[str, Object]] = [
    (DEFINITIONS, two_versions()),
    (DEFINITIONS, with_spec({"a": KEYED}, {"rule": "self.a.all(x, x.k != 'y')", "message": "m", "fieldPath": ".a"})),
    (POLICIES, policy("object.x == 1", variables=[{"name": "a", "expression": "1"}])),
    (BINDINGS, binding(paramRef={"name": "x", "parameterNotFoundAction": "Deny"})),
    (MUTATING, config("m", entry("m.example.com", {"service": {"namespace": "a", "name": "b"}}))),
    (SERVICES, service("s", type="NodePort")),
    (f"{CORE}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}}),
    (f"{CORE}/limitranges", {"metadata": {"name": "q"}, "spec": {"limits": [LIMIT]}}),
    (f"{CORE}/secrets", {"metadata": {"name": "q"}, "data": {"a": "YQ=="}, "stringData": {"a": "b"}}),
    (PODS, pod("p")),
    (
        "/apis/apps/v1/namespaces/default/deployments",
        {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}},
    ),
    (
        "/apis/batch/v1/namespaces/default/cronjobs",
        {"metadata": {"name": "d"}, "spec": SCHEDULE},
    ),
    (
        "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads",
        {"metadata": {"name": "w"}, "spec": {"podGroupTemplates": [{"name": "a", "schedulingPolicy": GANG}]}},
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        {"metadata": {"name": "g"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]},
    ),
    (SLICES, slice_()),
    (CLAIMS, claim()),
]  # fmt: skip
CUSTOM = {"metadata": {"name": "w"}, "spec": {"a": [{"k": "x"}, {"k": "y"}], "size": 3, "old": "x"}}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in members:
        found += places(below, (*path, key))
    return found


def mutated(obj: Object, rng: random.Random) -> Object:
    obj = copy.deepcopy(obj)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *way, last = rng.choice(places(obj) or [("metadata",)])
        holder: Any = obj
        for step in way:
            holder = holder[step]
        turn = rng.random()
        if turn < 0.15 and last in (holder if isinstance(holder, dict) else range(len(holder))):
            del holder[last]
        elif turn < 0.25 and isinstance(holder, dict):
            holder[rng.choice(NEW)] = copy.deepcopy(rng.choice(ODD))
        else:
            holder[last] = copy.deepcopy(rng.choice(ODD))
    return obj


def test_the_server_never_fails() -> None:
    rng = random.Random(23)

    async def scene(api: Api) -> None:
        async def send(method: str, path: str, obj: Object | None = None) -> tuple[int, Object]:
            body = b"" if obj is None else json.dumps(obj).encode()
            answer = await api.ask(Request(method, path, (), {"content-type": "application/json"}, body))
            known = answer.status < 500 or b"resourceVersion should not be set" in answer.body
            assert known, (method, path, obj, answer.body)
            return answer.status, json.loads(answer.body) if answer.body.startswith(b"{") else {}

        accepted = 0
        for _ in range(TURNS):
            path, good = rng.choice(GOOD)
            code, made = await send("POST", path, mutated(good, rng))
            if code != 201:
                continue
            accepted += 1
            if path == DEFINITIONS:
                code, custom = await send("POST", WIDGETS, mutated(CUSTOM, rng))
                if code == 201:
                    await send("PUT", f"{WIDGETS}/{custom['metadata']['name']}", mutated(custom, rng))
            one = f"{path}/{made['metadata']['name']}"
            await send("PUT", one, mutated(made, rng))
            await send("DELETE", one, {"gracePeriodSeconds": 0})
        assert accepted > TURNS // 20

    play(scene)
