"""ValidatingAdmissionPolicy through real requests: what is matched, what is said, what is done."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drakkar.api.wire import Request
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import CLAIMS, CONFIGMAPS, PODS, SLICES, claim, play, pod, refused

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{GROUP}/validatingadmissionpolicies"
NODE_NAME = "authentication.kubernetes.io/node-name"
BINDINGS = f"{GROUP}/validatingadmissionpolicybindings"


def policy(*validations: Object | str, resources: str = "configmaps", name: str = "p", **more: Any) -> Object:
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resources]}
    rules = [{"expression": one} if isinstance(one, str) else one for one in validations]
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": rules, **more}
    return {"metadata": {"name": name}, "spec": spec}


def binding(*actions: str, name: str = "b", **more: Any) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"policyName": "p", "validationActions": list(actions or ("Deny",)), **more},
    }


def data(name: str, **values: str) -> Object:
    return {"metadata": {"name": name}, "data": values}


async def warnings_of(api: Api, path: str, body: Object) -> str:
    response = await api.ask(Request("POST", path, (), {}, json.dumps(body).encode()))
    assert response.status == 201, response.body
    return response.headers.get("warning", "")


def test_denied_with_the_best_message_there_is() -> None:
    async def scene(api: Api) -> None:
        await api.post(
            POLICIES,
            policy(
                "object.data.size == 'small'",
                {
                    "expression": "variables.length < 3",
                    "message": "too long",
                    "messageExpression": "'name has ' + string(variables.length) + ' letters'",
                    "reason": "Forbidden",
                },
                {"expression": "object.data.color in ['red']", "message": "only red", "messageExpression": "''"},
                variables=[
                    {"name": "name", "expression": "object.metadata.name"},
                    {"name": "length", "expression": "size(variables.name)"},
                ],
            ),
        )
        # Not bound: nobody is judged.
        await api.post(CONFIGMAPS, data("free", size="big"))
        await api.post(BINDINGS, binding())
        error = await refused(api.post(CONFIGMAPS, data("c", size="big", color="red")))
        assert (error.code, error.reason) == (422, "Invalid")
        assert str(error) == (
            "configmaps \"c\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "
            "failed expression: object.data.size == 'small'"
        )
        assert error.status["details"]["causes"][0]["message"].startswith("ValidatingAdmissionPolicy 'p'")
        error = await refused(api.post(CONFIGMAPS, data("long", size="small", color="red")))
        assert (error.code, error.reason) == (403, "Forbidden")
        assert str(error).endswith("denied request: name has 4 letters")
        error = await refused(api.post(CONFIGMAPS, data("c", size="small", color="blue")))
        assert str(error).endswith("denied request: only red")
        await api.post(CONFIGMAPS, data("c", size="small", color="red"))
        assert (await refused(api.patch(f"{CONFIGMAPS}/c", {"data": {"size": "big"}}))).code == 422

    play(scene)


def test_warnings_and_a_missing_field() -> None:
    async def scene(api: Api) -> None:
        await api.post(POLICIES, policy("object.data.size == 'small'"))
        await api.post(BINDINGS, binding("Warn", "Audit"))
        said = await warnings_of(api, CONFIGMAPS, data("c", size="big"))
        assert "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': failed expression" in said
        assert "resulted in error" in await warnings_of(api, CONFIGMAPS, data("d", other="x"))
        found = await api.get(f"{POLICIES}/p")
        found["spec"]["failurePolicy"] = "Ignore"
        await api.put(f"{POLICIES}/p", found)
        assert await warnings_of(api, CONFIGMAPS, data("e", other="x")) == ""

    play(scene)


def test_deletes_old_objects_and_match_conditions() -> None:
    async def scene(api: Api) -> None:
        await api.post(
            POLICIES,
            policy(
                "request.operation != 'DELETE' || oldObject.data.keep != 'yes'",
                "oldObject == null || object == null || object.data.size >= oldObject.data.size",
                matchConditions=[{"name": "judged", "expression": "request.userInfo.username != 'root'"}],
            ),
        )
        await api.post(BINDINGS, binding())
        await api.post(CONFIGMAPS, data("c", keep="yes", size="2"))
        assert (await refused(api.delete(f"{CONFIGMAPS}/c"))).code == 422
        assert (await refused(api.patch(f"{CONFIGMAPS}/c", {"data": {"size": "1"}}))).code == 422
        root = api.as_user("root", "system:masters")
        await root.delete(f"{CONFIGMAPS}/c")

    play(scene)


def test_parameters_by_name_by_selector_and_none() -> None:
    async def scene(api: Api) -> None:
        await api.post(
            POLICIES,
            policy(
                "int(object.data.size) <= int(params.data.max)",
                paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
                matchConditions=[{"name": "sized", "expression": "has(object.data) && 'size' in object.data"}],
            ),
        )
        ref = {"name": "limit", "parameterNotFoundAction": "Deny"}
        await api.post(BINDINGS, binding(paramRef=ref))
        error = await refused(api.post(CONFIGMAPS, data("c", size="3")))
        assert "no params found for policy binding with `Deny` parameterNotFoundAction" in str(error)
        # The parameter of the namespace counts; it can be made only by those whom the policy does not judge.
        await api.delete(f"{BINDINGS}/b")
        await api.post(CONFIGMAPS, data("limit", max="5"))
        await api.post(BINDINGS, binding(paramRef=ref))
        await api.post(CONFIGMAPS, data("c", size="3"))
        assert (await refused(api.post(CONFIGMAPS, data("d", size="6")))).code == 422
        await api.delete(f"{BINDINGS}/b")
        chosen = {"selector": {"matchLabels": {"limits": "yes"}}, "parameterNotFoundAction": "Allow"}
        await api.post(BINDINGS, binding(paramRef=chosen))
        await api.post(CONFIGMAPS, data("d", size="6"))
        await api.post(CONFIGMAPS, {"metadata": {"name": "low", "labels": {"limits": "yes"}}, "data": {"max": "1"}})
        await api.post(CONFIGMAPS, {"metadata": {"name": "high", "labels": {"limits": "yes"}}, "data": {"max": "9"}})
        # Every one of them has to be content.
        assert (await refused(api.post(CONFIGMAPS, data("e", size="6")))).code == 422
        await api.post(CONFIGMAPS, data("e", size="1"))

    play(scene)


def test_what_a_driver_chart_ships_a_node_writes_only_its_own_slices() -> None:
    async def scene(api: Api) -> None:
        await api.post(
            POLICIES,
            policy(
                {
                    "expression": "variables.userNodeName == variables.objectNodeName",
                    "messageExpression": "'this user running on node ' + variables.userNodeName + ' may not modify '",
                },
                resources="resourceslices",
                matchConditions=[
                    {
                        "name": "isRestrictedUser",
                        "expression": "request.userInfo.username == 'system:serviceaccount:dra:driver'",
                    }
                ],
                variables=[
                    {
                        "name": "userNodeName",
                        "expression": f"request.userInfo.extra[?'{NODE_NAME}'][0].orValue('')",
                    },
                    {
                        "name": "objectNodeName",
                        "expression": "(request.operation == 'DELETE' ? oldObject : object).spec.?nodeName.orValue('')",
                    },
                ],
            ),
        )
        await api.post(BINDINGS, binding())
        extra = (("authentication.kubernetes.io/node-name", ("n1",)),)
        token = api.server.authenticator.issue("system:serviceaccount:dra:driver", ("system:masters",), extra=extra)
        driver = Api(api.server, api.clock, token)

        def slice_(name: str, node: str) -> Object:
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            return {"metadata": {"name": name}, "spec": {"driver": "d.example.com", "nodeName": node, "pool": pool}}

        await driver.post(SLICES, slice_("mine", "n1"))
        error = await refused(driver.post(SLICES, slice_("other", "n2")))
        assert str(error).endswith("this user running on node n1 may not modify")
        await api.post(SLICES, slice_("other", "n2"))
        assert (await refused(driver.delete(f"{SLICES}/other"))).code == 422
        await driver.delete(f"{SLICES}/mine")

    play(scene)


def test_nobody_gets_into_a_pod_that_is_closed() -> None:
    async def scene(api: Api) -> None:
        await api.post(PODS, pod("p"))
        rule = {"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/exec"]}
        closed = policy(
            "object.command != ['sh'] && object.stdin == false",
            matchConstraints={"resourceRules": [rule]},
            failurePolicy="Fail",
        )
        await api.post(POLICIES, closed)
        await api.post(BINDINGS, binding())
        for query, denied in (("command=sh&stdin=false", True), ("command=ls&stdin=false", False)):
            error = await refused(api.post(f"{PODS}/p/exec?{query}", None))
            assert ("denied request" in str(error)) is denied, str(error)

    play(scene)


def test_namespaces_rights_and_versions() -> None:
    async def scene(api: Api) -> None:
        await api.post(
            POLICIES,
            policy(
                "namespaceObject.metadata.labels[?'tier'].orValue('') != 'gold'"
                " || authorizer.group('').resource('secrets').namespace(request.namespace).check('get').allowed()",
                "authorizer.requestResource.check('custom').allowed() == false || request.userInfo.username == 'admin'",
                "object.spec.devices.requests.all(r, has(r.deviceClassName))",
                resources="resourceclaims",
                matchConstraints={
                    "resourceRules": [
                        {
                            "operations": ["CREATE"],
                            "apiGroups": ["resource.k8s.io"],
                            "apiVersions": ["v1beta1"],
                            "resources": ["resourceclaims"],
                        }
                    ]
                },
            ),
        )
        await api.post(BINDINGS, binding())
        await api.post("/api/v1/namespaces", {"metadata": {"name": "gold", "labels": {"tier": "gold"}}})
        role = {
            "metadata": {"name": "r"},
            "rules": [{"apiGroups": ["*"], "resources": ["resourceclaims"], "verbs": ["*"]}],
        }
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        await api.post(f"{rbac}/clusterroles", role)
        bound = {
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}],
        }
        await api.post(f"{rbac}/clusterrolebindings", bound)
        gold = CLAIMS.replace("default", "gold")
        await api.post(gold, claim("c"))
        assert "namespaceObject" in str(await refused(api.as_user("eve").post(gold, claim("d"))))
        assert "requestResource" in str(await refused(api.as_user("eve").post(CLAIMS, claim("d"))))

    play(scene)


def test_bindings_narrow_what_a_policy_is_for() -> None:
    async def scene(api: Api) -> None:
        await api.post(POLICIES, policy("false"))
        await api.post(
            BINDINGS,
            binding(matchResources={"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "strict"}}}),
        )
        await api.post("/api/v1/namespaces", {"metadata": {"name": "strict"}})
        await api.post(CONFIGMAPS, data("c"))
        assert (await refused(api.post("/api/v1/namespaces/strict/configmaps", data("c")))).code == 422

    play(scene)


def test_the_budget_is_common_to_all_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Spending the real one, ten million, takes seconds.
    monkeypatch.setattr("drakkar.cel.expressions.BUDGET", 1000)

    async def scene(api: Api) -> None:
        heavy = "[1, 2, 3, 4, 5].all(a, [1, 2, 3, 4, 5].all(b, a + b < 11))"
        await api.post(POLICIES, policy(heavy))
        await api.post(BINDINGS, binding())
        await api.post(CONFIGMAPS, data("c"))
        await api.post(POLICIES, policy(*[heavy] * 10, name="q"))
        await api.post(
            BINDINGS, {**binding(), "metadata": {"name": "q"}, "spec": {**binding()["spec"], "policyName": "q"}}
        )
        error = await refused(api.post(CONFIGMAPS, data("d")))
        assert "running out of cost budget" in str(error)

    play(scene)


@pytest.mark.parametrize(
    ("spec", "field", "cause"),
    [
        ({"validations": [{"expression": "object.x =="}]}, "spec.validations[0].expression", "FieldValueInvalid"),
        ({"validations": [{"expression": "1"}]}, "spec.validations[0].expression", "FieldValueInvalid"),
        ({"validations": [{"expression": "params.x == 1"}]}, "spec.validations[0].expression", "FieldValueInvalid"),
        ({"validations": [{"expression": ""}]}, "spec.validations[0].expression", "FieldValueRequired"),
        ({"validations": []}, "spec.validations", "FieldValueRequired"),
        (
            {"validations": [{"expression": "true", "message": "a\nb"}]},
            "spec.validations[0].message",
            "FieldValueInvalid",
        ),
        (
            {"validations": [{"expression": "true", "reason": "Why"}]},
            "spec.validations[0].reason",
            "FieldValueNotSupported",
        ),
        (
            {"validations": [{"expression": "true", "messageExpression": "1"}]},
            "spec.validations[0].messageExpression",
            "FieldValueInvalid",
        ),
        ({"matchConstraints": None}, "spec.matchConstraints", "FieldValueRequired"),
        ({"matchConstraints": {"resourceRules": []}}, "spec.matchConstraints.resourceRules", "FieldValueRequired"),
        ({"variables": [{"name": "1a", "expression": "1"}]}, "spec.variables[0].name", "FieldValueInvalid"),
        (
            {"variables": [{"name": "a", "expression": "variables.b"}]},
            "spec.variables[0].expression",
            "FieldValueInvalid",
        ),
        (
            {"matchConditions": [{"name": "", "expression": "true"}]},
            "spec.matchConditions[0].name",
            "FieldValueRequired",
        ),
        ({"failurePolicy": "Maybe"}, "spec.failurePolicy", "FieldValueNotSupported"),
        (
            {"auditAnnotations": [{"key": "k", "valueExpression": "1"}]},
            "spec.auditAnnotations[0].valueExpression",
            "FieldValueInvalid",
        ),
    ],
)
def test_policies_that_are_refused(spec: Object, field: str, cause: str) -> None:
    async def scene(api: Api) -> None:
        bad = policy("true")
        bad["spec"] |= spec
        error = await refused(api.post(POLICIES, bad))
        first = error.status["details"]["causes"][0]
        assert (error.code, first["field"], first["reason"]) == (422, field, cause)

    play(scene)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"policyName": ""}, "spec.policyName"),
        ({"validationActions": []}, "spec.validationActions"),
        ({"validationActions": ["Deny", "Warn"]}, "spec.validationActions"),
        ({"validationActions": ["Shout"]}, "spec.validationActions[0]"),
        ({"paramRef": {"parameterNotFoundAction": "Deny"}}, "spec.paramRef.name"),
        ({"paramRef": {"name": "a"}}, "spec.paramRef.parameterNotFoundAction"),
    ],
)
def test_bindings_that_are_refused(spec: Object, field: str) -> None:
    async def scene(api: Api) -> None:
        bad = binding()
        bad["spec"] |= spec
        error = await refused(api.post(BINDINGS, bad))
        assert (error.code, error.status["details"]["causes"][0]["field"]) == (422, field)

    play(scene)


def test_more_text_than_the_server_wants_to_compile() -> None:
    async def scene(api: Api) -> None:
        error = await refused(api.post(POLICIES, policy(*["'" + "x" * 1000 + "' != ''"] * 140)))
        assert "together may not have more than 131072 characters" in str(error)

    play(scene)


def test_defaults_are_filled_in_and_the_status_says_that_it_is_seen() -> None:
    async def scene(api: Api) -> None:
        made = await api.post(POLICIES, policy("true"))
        assert made["status"] == {"observedGeneration": 1, "typeChecking": {}}
        changed = await api.patch(f"{POLICIES}/p", {"spec": {"failurePolicy": "Ignore"}})
        assert changed["status"]["observedGeneration"] == changed["metadata"]["generation"] == 2
        spec = made["spec"]
        assert spec["failurePolicy"] == "Fail"
        constraints = spec["matchConstraints"]
        assert (constraints["matchPolicy"], constraints["objectSelector"], constraints["namespaceSelector"]) == (
            "Equivalent",
            {},
            {},
        )
        assert constraints["resourceRules"][0]["scope"] == "*"

    play(scene)


def test_mutating_policies_are_kept_and_not_run() -> None:
    path = f"{GROUP}/mutatingadmissionpolicies"
    apply = {"expression": "Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": apply}],
        "reinvocationPolicy": "Never",
    }

    async def scene(api: Api) -> None:
        warning = await warnings_of(api, path, {"metadata": {"name": "p"}, "spec": spec})
        assert warning == '299 - "MutatingAdmissionPolicies are kept but not run by this server"'
        await api.post(f"{path[: -len('ies')]}ybindings", {"metadata": {"name": "b"}, "spec": {"policyName": "p"}})
        assert (await api.get(f"{path}/p"))["spec"]["mutations"] == spec["mutations"]
        assert "labels" not in (await api.post(CONFIGMAPS, data("c")))["metadata"]

    play(scene)
