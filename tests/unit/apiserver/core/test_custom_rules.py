"""Definitions that are refused, and what their schemas and rules have against objects."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_custom import DEFINITIONS, WIDGETS, definition
from tests.unit.apiserver.core.test_writes import play, refused

SCHEMA = "spec.versions[0].schema.openAPIV3Schema"
RULES = "x-kubernetes-validations"


def with_spec(properties: Object, *rules: Object | str, **more: Any) -> Object:
    """A definition whose ``spec`` has these properties and rules."""
    found = definition()
    version = found["spec"]["versions"][0]
    version["additionalPrinterColumns"] = []
    spec: Object = {"type": "object", "properties": properties, **more}
    if rules:
        spec[RULES] = [{"rule": rule} if isinstance(rule, str) else rule for rule in rules]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec
    return found


def widget(called: str = "w", /, **spec: Any) -> Object:
    return {"metadata": {"name": called}, "spec": spec}


def causes(error: Any) -> list[tuple[str, str, str]]:
    return [(cause["field"], cause["reason"], cause["message"]) for cause in error.status["details"]["causes"]]


INTEGER: Object = {"type": "integer"}
TEXT: Object = {"type": "string", "maxLength": 20}


def test_rules_say_what_is_wrong_and_where() -> None:
    async def scene(api: Api) -> None:
        await api.post(
            DEFINITIONS,
            with_spec(
                {"min": INTEGER, "max": INTEGER, "name": TEXT},
                "self.min <= self.max",
                {
                    "rule": "self.name != 'bad'",
                    "message": "never",
                    "messageExpression": "'name ' + self.name + ' is bad'",
                    "reason": "FieldValueForbidden",
                    "fieldPath": ".name",
                },
                {"rule": "self.max < 100", "message": "at most 99", "fieldPath": ".max"},
            ),
        )
        error = await refused(api.post(WIDGETS, widget(min=3, max=2, name="bad")))
        assert error.code == 422
        assert causes(error) == [
            ("spec", "FieldValueInvalid", 'Invalid value: "object": failed rule: self.min <= self.max'),
            ("spec.name", "FieldValueForbidden", "Forbidden: name bad is bad"),
        ]
        error = await refused(api.post(WIDGETS, widget(min=3, max=200, name="ok")))
        assert causes(error) == [("spec.max", "FieldValueInvalid", 'Invalid value: "object": at most 99')]
        error = await refused(api.post(WIDGETS, widget(min=3, name="ok")))
        assert "no such key: max" in str(error)
        await api.post(WIDGETS, widget(min=1, max=2, name="ok"))
        assert (await refused(api.patch(f"{WIDGETS}/w", {"spec": {"min": 5}}))).code == 422
        # The schema comes first: rules need not expect a text where a number stands.
        error = await refused(api.post(WIDGETS, widget(min="x", max=2, name="ok")))
        assert causes(error) == [
            (
                "spec.min",
                "FieldValueTypeInvalid",
                'Invalid value: "string": spec.min in body must be of type integer: "string"',
            )
        ]

    play(scene)


def test_transitions_and_ratcheting() -> None:
    async def scene(api: Api) -> None:
        item = {"type": "object", "required": ["key"], "properties": {"key": TEXT, "size": INTEGER}}
        item[RULES] = [{"rule": "self.size >= oldSelf.size", "message": "may only grow"}]
        await api.post(
            DEFINITIONS,
            with_spec(
                {
                    "kind": {**TEXT, RULES: [{"rule": "self == oldSelf", "message": "is immutable"}]},
                    "items": {
                        "type": "array",
                        "maxItems": 5,
                        "items": item,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["key"],
                    },
                    "late": {
                        **TEXT,
                        RULES: [
                            {
                                "rule": "oldSelf.hasValue() || self == 'first'",
                                "optionalOldSelf": True,
                                "message": "starts with first",
                            }
                        ],
                    },
                },
            ),
        )
        assert (await refused(api.post(WIDGETS, widget(late="second")))).code == 422
        items = [{"key": "a", "size": 1}, {"key": "b", "size": 5}]
        await api.post(WIDGETS, widget(kind="x", late="first", items=items))
        error = await refused(api.patch(f"{WIDGETS}/w", {"spec": {"kind": "y"}}))
        assert causes(error) == [("spec.kind", "FieldValueInvalid", 'Invalid value: "string": is immutable')]
        # Elements belong together by key, wherever they stand.
        moved = [{"key": "new", "size": 0}, {"key": "b", "size": 6}, {"key": "a", "size": 0}]
        error = await refused(api.patch(f"{WIDGETS}/w", {"spec": {"items": moved}}))
        assert causes(error) == [("spec.items[2]", "FieldValueInvalid", 'Invalid value: "object": may only grow')]
        moved[2]["size"] = 1
        await api.patch(f"{WIDGETS}/w", {"spec": {"items": moved, "late": "other"}})

        # A stricter schema: what is already so may stay, what changes has to be good.
        current = await api.get(f"{DEFINITIONS}/widgets.demo.example.com")
        spec = current["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["properties"]["kind"]["maxLength"] = 0
        spec["properties"]["late"][RULES] = [{"rule": "self == 'never'"}]
        await api.put(f"{DEFINITIONS}/widgets.demo.example.com", current)
        await api.patch(f"{WIDGETS}/w", {"metadata": {"labels": {"a": "b"}}})
        await api.patch(f"{WIDGETS}/w", {"spec": {"items": [{"key": "b", "size": 7}]}})
        assert (await refused(api.patch(f"{WIDGETS}/w", {"spec": {"late": "again"}}))).code == 422
        assert (await refused(api.post(WIDGETS, widget("v", kind="x")))).code == 422

    play(scene)


def test_rules_on_the_whole_object_maps_and_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(api: Api) -> None:
        made = with_spec(
            {
                "weights": {
                    "type": "object",
                    "maxProperties": 9,
                    "additionalProperties": {**INTEGER, RULES: [{"rule": "self > 0"}]},
                }
            }
        )
        root = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        root[RULES] = [{"rule": "self.metadata.name.startsWith('w') && self.kind == 'Widget'"}]
        await api.post(DEFINITIONS, made)
        assert causes(await refused(api.post(WIDGETS, widget("x"))))[0][0] == ""
        error = await refused(api.post(WIDGETS, widget(weights={"a": 1, "b": 0})))
        assert causes(error)[0][0] == "spec.weights[b]"
        monkeypatch.setattr("drakkar.cel.expressions.BUDGET", 10)
        error = await refused(api.post(WIDGETS, widget(weights={str(index): 1 for index in range(9)})))
        assert "running out of cost budget" in str(error)

    play(scene)


@pytest.mark.parametrize(
    ("rule", "place", "cause", "said"),
    [
        ({"rule": "self.nope == 1"}, "rule", "FieldValueInvalid", "compilation failed"),
        ({"rule": "self.size"}, "rule", "FieldValueInvalid", "must evaluate to bool"),
        ({"rule": " "}, "rule", "FieldValueRequired", "rule is not specified"),
        ({"rule": "true", "message": "a\nb"}, "message", "FieldValueInvalid", "line breaks"),
        ({"rule": "true", "messageExpression": "1"}, "messageExpression", "FieldValueInvalid", "compilation failed"),
        ({"rule": "true", "reason": "Why"}, "reason", "FieldValueNotSupported", "supported values"),
        ({"rule": "true", "fieldPath": ".nope"}, "fieldPath", "FieldValueInvalid", "valid path"),
        ({"rule": "true", "fieldPath": "size"}, "fieldPath", "FieldValueInvalid", "valid path"),
        ({"rule": "true", "optionalOldSelf": True}, "optionalOldSelf", "FieldValueInvalid", "oldSelf is not used"),
        (
            {"rule": "self.texts.all(a, self.texts.all(b, self.texts.all(c, a != b + c)))"},
            "rule",
            "FieldValueForbidden",
            "exceeds budget by factor of more than 100x",
        ),
    ],
)
def test_rules_that_are_refused(rule: Object, place: str, cause: str, said: str) -> None:
    async def scene(api: Api) -> None:
        texts = {"type": "array", "items": {"type": "string"}}
        error = await refused(api.post(DEFINITIONS, with_spec({"size": INTEGER, "texts": texts}, rule)))
        field, reason, message = causes(error)[0]
        assert (field, reason) == (f"{SCHEMA}.properties[spec].{RULES}[0].{place}", cause)
        assert said in message

    play(scene)


def test_more_rules_than_the_server_wants_to_compile() -> None:
    async def scene(api: Api) -> None:
        rule = "self.size != 1 || " * 60 + "true"
        error = await refused(api.post(DEFINITIONS, with_spec({"size": INTEGER}, *[rule] * 125)))
        assert "together may not have more than 131072 characters" in str(error)

    play(scene)


def test_a_change_cannot_be_judged_where_nothing_belongs_together() -> None:
    async def scene(api: Api) -> None:
        loose = {"type": "array", "maxItems": 3, "items": {**TEXT, RULES: [{"rule": "self == oldSelf"}]}}
        error = await refused(api.post(DEFINITIONS, with_spec({"texts": loose})))
        assert "oldSelf cannot be used on the uncorrelatable portion of the schema" in str(error)

    play(scene)


@pytest.mark.parametrize(
    ("schema", "place", "cause"),
    [
        ({}, ".type", "FieldValueRequired"),
        ({"type": "text"}, ".type", "FieldValueNotSupported"),
        ({"type": "array"}, ".items", "FieldValueRequired"),
        ({"type": "array", "items": {}}, ".items.type", "FieldValueRequired"),
        ({"type": "array", "items": TEXT, "uniqueItems": True}, ".uniqueItems", "FieldValueForbidden"),
        ({"type": "object", "properties": {"a": {}}}, ".properties[a].type", "FieldValueRequired"),
        (
            {"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT},
            ".additionalProperties",
            "FieldValueForbidden",
        ),
        ({"type": "object", "additionalProperties": False}, ".additionalProperties", "FieldValueForbidden"),
        ({"type": "string", "$ref": "#/x"}, ".$ref", "FieldValueForbidden"),
        ({"type": "string", "pattern": "("}, ".pattern", "FieldValueInvalid"),
        ({"type": "string", "x-kubernetes-int-or-string": True}, ".type", "FieldValueInvalid"),
        ({"type": "object", "x-kubernetes-embedded-resource": True}, ".properties", "FieldValueRequired"),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": False}, ".x-kubernetes-preserve-unknown-fields", "FieldValueInvalid"),  # noqa: E501
        ({"type": "string", "x-kubernetes-list-type": "set"}, ".type", "FieldValueInvalid"),
        ({"type": "array", "items": TEXT, "x-kubernetes-list-type": "bag"}, ".x-kubernetes-list-type", "FieldValueNotSupported"),  # noqa: E501
        ({"type": "array", "items": TEXT, "x-kubernetes-list-type": "map"}, ".x-kubernetes-list-map-keys", "FieldValueRequired"),  # noqa: E501
        (
            {
                "type": "array",
                "items": {"type": "object", "properties": {"k": TEXT}},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
            },
            ".items.properties[k].default",
            "FieldValueRequired",
        ),
        ({"type": "string", "anyOf": [{"type": "string"}]}, ".anyOf[0].type", "FieldValueForbidden"),
        (
            {"type": "object", "properties": {"a": TEXT}, "not": {"properties": {"b": {"enum": [1]}}}},
            ".properties[b]",
            "FieldValueRequired",
        ),
        ({"type": "integer", "default": "x"}, ".default", "FieldValueInvalid"),
        ({"type": "object", "properties": {"a": TEXT}, "default": {"b": 1}}, ".default", "FieldValueInvalid"),
    ],
)  # fmt: skip
def test_schemas_that_are_not_structural(schema: Object, place: str, cause: str) -> None:
    async def scene(api: Api) -> None:
        error = await refused(api.post(DEFINITIONS, with_spec({"x": schema})))
        found = [(field, reason) for field, reason, _ in causes(error)]
        assert (f"{SCHEMA}.properties[spec].properties[x]{place}", cause) in found

    play(scene)


@pytest.mark.parametrize(
    ("change", "field", "cause"),
    [
        ({"scope": "Galaxy"}, "spec.scope", "FieldValueNotSupported"),
        ({"group": "nodots"}, "spec.group", "FieldValueInvalid"),
        ({"names": {"plural": "Widgets", "kind": "Widget"}}, "spec.names.plural", "FieldValueInvalid"),
        ({"names": {"plural": "widgets", "kind": "Widget", "listKind": "Widget"}}, "spec.names.listKind", "FieldValueInvalid"),  # noqa: E501
        ({"versions": []}, "spec.versions", "FieldValueRequired"),
        ({"preserveUnknownFields": True}, "spec.preserveUnknownFields", "FieldValueInvalid"),
        ({"conversion": {"strategy": "Magic"}}, "spec.conversion.strategy", "FieldValueNotSupported"),
        ({"conversion": {"strategy": "Webhook"}}, "spec.conversion.webhook.clientConfig", "FieldValueRequired"),
    ],
)  # fmt: skip
def test_definitions_that_are_refused(change: Object, field: str, cause: str) -> None:
    async def scene(api: Api) -> None:
        bad = definition()
        bad["spec"] |= change
        assert (field, cause) in [
            (where, reason) for where, reason, _ in causes(await refused(api.post(DEFINITIONS, bad)))
        ]

    play(scene)


@pytest.mark.parametrize(
    ("change", "place", "cause"),
    [
        ({"name": "V1"}, "name", "FieldValueInvalid"),
        ({"schema": {}}, "schema.openAPIV3Schema", "FieldValueRequired"),
        ({"additionalPrinterColumns": [{"name": "A", "type": "text", "jsonPath": ".a"}]}, "additionalPrinterColumns[0].type", "FieldValueInvalid"),  # noqa: E501
        ({"additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": "a"}]}, "additionalPrinterColumns[0].jsonPath", "FieldValueInvalid"),  # noqa: E501
        ({"subresources": {"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".status.x"}}}, "subresources.scale.specReplicasPath", "FieldValueInvalid"),  # noqa: E501
        ({"selectableFields": [{"jsonPath": ".spec.nope"}]}, "selectableFields[0].jsonPath", "FieldValueInvalid"),
        ({"selectableFields": [{"jsonPath": ".metadata.name"}]}, "selectableFields[0].jsonPath", "FieldValueInvalid"),
    ],
)  # fmt: skip
def test_versions_that_are_refused(change: Object, place: str, cause: str) -> None:
    async def scene(api: Api) -> None:
        bad = definition()
        bad["spec"]["versions"][0] |= change
        found = [(field, reason) for field, reason, _ in causes(await refused(api.post(DEFINITIONS, bad)))]
        assert (f"spec.versions[0].{place}", cause) in found

    play(scene)


@pytest.mark.parametrize(
    ("schema", "good", "bad", "said"),
    [
        ({"type": "string", "format": "date-time"}, "2026-01-01T00:00:00Z", "yesterday", "must be of type date-time"),
        ({"type": "string", "format": "duration"}, "1h30m", "1 hour", "must be of type duration"),
        ({"type": "string", "format": "ipv4"}, "10.0.0.1", "10.0.0", "must be of type ipv4"),
        ({"type": "string", "format": "unheard-of"}, "x", 1, "must be of type string"),
        ({"type": "integer", "format": "int32"}, 1, 1 << 31, "must be of type int32"),
        ({"type": "number", "multipleOf": 0.5}, 1.5, 1.2, "a multiple of 0.5"),
        ({"type": "array", "items": INTEGER, "x-kubernetes-list-type": "set"}, [1, 2], [1, 1], "Duplicate value"),
        ({"type": "array", "items": INTEGER, "maxItems": 1}, [1], [1, 2], "must have at most 1 item"),
        (
            {"type": "object", "additionalProperties": INTEGER, "minProperties": 1},
            {"a": 1},
            {},
            "at least 1 properties",
        ),
        ({"type": "string", "anyOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "b", "c", "(anyOf)"),
        ({"type": "integer", "oneOf": [{"minimum": 3}, {"maximum": 5}]}, 9, 4, "Found 2 valid alternatives"),
        ({"type": "string", "not": {"enum": ["x"]}}, "y", "x", "must not validate the schema (not)"),
        ({"type": "integer", "allOf": [{"minimum": 3}]}, 3, 2, "greater than or equal to 3"),
        ({"x-kubernetes-int-or-string": True}, "50%", True, "must be of type integer,string"),
        ({"type": "boolean"}, True, "true", "must be of type boolean"),
        ({"type": "integer", "enum": [1]}, 1, 2, "Unsupported value"),
    ],
)
def test_values(schema: Object, good: Any, bad: Any, said: str) -> None:
    async def scene(api: Api) -> None:
        await api.post(DEFINITIONS, with_spec({"x": schema}))
        assert (await api.post(WIDGETS, widget("good", x=good)))["spec"] == {"x": good}
        error = await refused(api.post(WIDGETS, widget("bad", x=bad)))
        assert (error.code, said in str(error)) == (422, True), str(error)

    play(scene)


def test_null_is_kept_where_it_is_a_value() -> None:
    async def scene(api: Api) -> None:
        await api.post(
            DEFINITIONS, with_spec({"a": {**TEXT, "nullable": True, "default": "x"}, "b": {**TEXT, "default": "y"}})
        )
        assert (await api.post(WIDGETS, widget(a=None, b=None)))["spec"] == {"a": None, "b": "y"}

    play(scene)


def two_versions() -> Object:
    found = with_spec({"size": INTEGER, "old": TEXT})
    newer = copy.deepcopy(found["spec"]["versions"][0])
    newer |= {"name": "v2", "storage": False}
    properties = newer["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties.pop("old")
    properties["fresh"] = {**TEXT, "default": "yes"}
    found["spec"]["versions"].append(newer)
    return found


def test_versions_have_schemas_of_their_own() -> None:
    async def scene(api: Api) -> None:
        await api.post(DEFINITIONS, two_versions())
        v2 = WIDGETS.replace("/v1/", "/v2/")
        await api.post(WIDGETS, widget(size=1, old="x"))
        shown = await api.get(f"{v2}/w")
        assert (shown["apiVersion"], shown["spec"]) == ("demo.example.com/v2", {"size": 1, "fresh": "yes"})
        assert [item["spec"] for item in (await api.get(v2))["items"]] == [{"size": 1, "fresh": "yes"}]
        made = await api.post(v2, widget("n", size=2))
        assert made["spec"] == {"size": 2, "fresh": "yes"}
        assert (await api.get(f"{WIDGETS}/n"))["spec"] == {"size": 2}
        gone = await api.get(f"{DEFINITIONS}/widgets.demo.example.com")
        gone["spec"]["versions"] = [{**gone["spec"]["versions"][1], "storage": True}]
        error = await refused(api.put(f"{DEFINITIONS}/widgets.demo.example.com", gone))
        assert causes(error)[0][0] == "status.storedVersions[0]"
        gone = await api.get(f"{DEFINITIONS}/widgets.demo.example.com")
        gone["spec"]["scope"] = "Cluster"
        error = await refused(api.put(f"{DEFINITIONS}/widgets.demo.example.com", gone))
        assert causes(error)[0][0] == "spec.scope"

    play(scene)


def test_the_storage_version_may_change_and_the_old_one_go() -> None:
    async def scene(api: Api) -> None:
        await api.post(DEFINITIONS, two_versions())
        await api.post(WIDGETS, widget(size=1))
        path = f"{DEFINITIONS}/widgets.demo.example.com"
        found = await api.get(path)
        for version in found["spec"]["versions"]:
            version["storage"] = version["name"] == "v2"
        found = await api.put(path, found)
        assert found["status"]["storedVersions"] == ["v1", "v2"]
        found["status"]["storedVersions"] = ["v2"]
        found = await api.put(f"{path}/status", found)
        found["spec"]["versions"] = [version for version in found["spec"]["versions"] if version["name"] == "v2"]
        await api.put(path, found)
        v2 = WIDGETS.replace("/v1/", "/v2/")
        assert (await api.get(f"{v2}/w"))["apiVersion"] == "demo.example.com/v2"
        assert (await api.post(v2, widget("n", size=2)))["spec"] == {"size": 2, "fresh": "yes"}
        await api.patch(f"{v2}/w", {"spec": {"size": 5}})
        await api.delete(path)

    play(scene)


def test_a_version_that_only_a_webhook_could_make_is_refused_by_name() -> None:
    async def scene(api: Api) -> None:
        made = two_versions()
        hook = {"clientConfig": {"url": "https://127.0.0.1:1/"}, "conversionReviewVersions": ["v1"]}
        made["spec"]["conversion"] = {"strategy": "Webhook", "webhook": hook}
        await api.post(DEFINITIONS, made)
        await api.post(WIDGETS, widget(size=1))
        error = await refused(api.get(f"{WIDGETS.replace('/v1/', '/v2/')}/w"))
        assert (error.code, "use the stored version v1" in str(error)) == (501, True)
        await api.delete(f"{DEFINITIONS}/widgets.demo.example.com")
        assert "demo.example.com" not in [group["name"] for group in (await api.get("/apis"))["groups"]]

    play(scene)


def test_scale_and_selectable_fields_stand_where_the_definition_says() -> None:
    async def scene(api: Api) -> None:
        made = with_spec({"pool": {"type": "object", "properties": {"size": INTEGER}}, "color": TEXT})
        version = made["spec"]["versions"][0]
        status = {"size": INTEGER, "labels": TEXT}
        version["schema"]["openAPIV3Schema"]["properties"]["status"] = {"type": "object", "properties": status}
        version["subresources"]["scale"] = {
            "specReplicasPath": ".spec.pool.size",
            "statusReplicasPath": ".status.size",
            "labelSelectorPath": ".status.labels",
        }
        version["selectableFields"] = [{"jsonPath": ".spec.color"}]
        await api.post(DEFINITIONS, made)
        await api.post(WIDGETS, widget(pool={"size": 2}, color="red"))
        await api.post(WIDGETS, widget("blue", color="blue"))
        await api.patch(f"{WIDGETS}/w/status", {"status": {"size": 1, "labels": "a=b"}})
        found = await api.get(f"{WIDGETS}/w/scale")
        assert (found["spec"], found["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "a=b"})
        await api.patch(f"{WIDGETS}/w/scale", {"spec": {"replicas": 5}})
        assert (await api.get(f"{WIDGETS}/w"))["spec"] == {"pool": {"size": 5}, "color": "red"}
        named = await api.get(f"{WIDGETS}?fieldSelector=spec.color%3Dred".replace("%3D", "="))
        assert [item["metadata"]["name"] for item in named["items"]] == ["w"]

    play(scene)
