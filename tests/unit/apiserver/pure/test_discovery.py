"""Discovery documents equal the recorded ones."""

from __future__ import annotations

import gzip
import json

import pytest

from drakkar.apiserver import discovery
from tests.support.shared import shared_path


def recorded(name):
    return json.loads(gzip.decompress(shared_path(f"spec/openapi/discovery__{name}.json.gz").read_bytes()))


def served_upstream():
    """Built-in resources without the group that the recorded server did not serve."""
    groups = {group["name"] for group in recorded("apis")["groups"]} | {""}
    return [resource for resource in discovery.resources() if resource.group in groups]


def without_hashes(document):
    for item in document["resources"]:
        item.pop("storageVersionHash", None)
    return document


@pytest.mark.parametrize(("core", "name"), [(True, "api.aggregated"), (False, "apis.aggregated")])
def test_aggregated(core, name):
    assert discovery.aggregated(core, served_upstream()) == recorded(name)


def test_groups():
    assert discovery.api_group_list(served_upstream()) == recorded("apis")
    assert discovery.api_group("resource.k8s.io", discovery.resources())["preferredVersion"]["version"] == "v1"
    assert discovery.api_group("nope", discovery.resources()) is None
    assert discovery.api_versions("127.0.0.1:16443") == recorded("api")


def test_classic_lists():
    for resource in served_upstream():
        path = f"api__{resource.version}" if not resource.group else f"apis__{resource.group}__{resource.version}"
        made = discovery.api_resource_list(resource.group, resource.version, discovery.resources())
        assert made == without_hashes(recorded(path)), path


def test_versions_sort_as_kubernetes_sorts_them():
    names = ["foo", "v1alpha3", "v1", "v2beta1", "v10", "v1beta2", "v2", "v1beta10"]
    assert sorted(names, key=discovery.version_priority) == [
        "v10", "v2", "v1", "v2beta1", "v1beta10", "v1beta2", "v1alpha3", "foo",
    ]  # fmt: skip
