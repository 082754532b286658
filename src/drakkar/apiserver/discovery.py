"""Which resources exist, and the documents that tell clients so.

Both generations of discovery are served: the classic lists per group and version, and the
aggregated document that current clients ask for by media type. All documents are built
from :class:`Resource` records, so that custom resources appear beside the built-in ones.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources as package_resources
from typing import Any

import msgspec

#: Media type of the aggregated documents, exactly as it stands in Accept and Content-Type.
AGGREGATED_V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
AGGREGATED_V2BETA1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"

_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


@dataclass(frozen=True, slots=True)
class Subresource:
    """``status``, ``scale`` …; ``group`` and ``version`` are those of the kind it speaks."""

    name: str
    kind: str
    group: str
    version: str
    verbs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource in one version of its group."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    verbs: tuple[str, ...]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[Subresource, ...] = ()

    @property
    def group_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Sort key of versions: stable ones first, then beta, alpha, each newest first, then other names."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (3, 0, 0, version)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (stage, -int(match[1]), -int(match[3] or 0), version)


@cache
def resources() -> tuple[Resource, ...]:
    """All built-in resources, core first, in the order of upstream's groups and versions."""
    packed = package_resources.files("drakkar.data").joinpath("discovery.json.gz").read_bytes()
    data = msgspec.json.decode(gzip.decompress(packed))
    found = _core(data["core_v1"])
    for group in data["groups"]:
        name = group["metadata"]["name"]
        for version in group["versions"]:
            found += [_aggregated_resource(name, version["version"], item) for item in version["resources"]]
    return tuple(found)


def _core(items: list[dict[str, Any]]) -> list[Resource]:
    """Resources from the classic list, where subresources are entries of their own."""
    subresources: dict[str, list[Subresource]] = {}
    for item in items:
        plural, slash, name = item["name"].partition("/")
        if slash:
            subresources.setdefault(plural, []).append(
                Subresource(
                    name=name,
                    kind=item["kind"],
                    group=item.get("group", ""),
                    version=item.get("version", "v1"),
                    verbs=tuple(item["verbs"]),
                )
            )
    return [
        Resource(
            group="",
            version="v1",
            kind=item["kind"],
            plural=item["name"],
            singular=item["singularName"],
            namespaced=item["namespaced"],
            verbs=tuple(item["verbs"]),
            short_names=tuple(item.get("shortNames", ())),
            categories=tuple(item.get("categories", ())),
            subresources=tuple(subresources.get(item["name"], ())),
        )
        for item in items
        if "/" not in item["name"]
    ]


def _aggregated_resource(group: str, version: str, item: dict[str, Any]) -> Resource:
    def sub(entry: dict[str, Any]) -> Subresource:
        kind = entry["responseKind"]
        # An empty group and version stand for those of the resource.
        own = not kind["version"]
        return Subresource(
            name=entry["subresource"],
            kind=kind["kind"],
            group=group if own else kind["group"],
            version=version if own else kind["version"],
            verbs=tuple(entry["verbs"]),
        )

    return Resource(
        group=group,
        version=version,
        kind=item["responseKind"]["kind"],
        plural=item["resource"],
        singular=item["singularResource"],
        namespaced=item["scope"] == "Namespaced",
        verbs=tuple(item["verbs"]),
        short_names=tuple(item.get("shortNames", ())),
        categories=tuple(item.get("categories", ())),
        subresources=tuple(sub(entry) for entry in item.get("subresources", ())),
    )


def api_versions(server_address: str = "") -> dict[str, Any]:
    """``/api``; ``server_address`` is ``host:port`` as clients should see it."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    }


def api_resource_list(group: str, version: str, resources: Iterable[Resource]) -> dict[str, Any]:
    """``/api/v1`` or ``/apis/<group>/<version>``: the classic list, subresources as entries of their own."""
    items: list[dict[str, Any]] = []
    for resource in resources:
        if resource.group != group or resource.version != version:
            continue
        item: dict[str, Any] = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short_names:
            item["shortNames"] = list(resource.short_names)
        if resource.categories:
            item["categories"] = list(resource.categories)
        items.append(item)
        for sub in resource.subresources:
            entry: dict[str, Any] = {
                "name": f"{resource.plural}/{sub.name}",
                "singularName": "",
                "namespaced": resource.namespaced,
            }
            if (sub.group, sub.version) != (group, version):
                entry |= {"group": sub.group, "version": sub.version}
            items.append(entry | {"kind": sub.kind, "verbs": list(sub.verbs)})
    return {
        "kind": "APIResourceList",
        # Upstream leaves it out of the list of the core group.
        **({"apiVersion": "v1"} if group else {}),
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": sorted(items, key=lambda item: item["name"]),
    }


def _versions_by_group(resources: Iterable[Resource]) -> dict[str, list[str]]:
    """Versions of each group, best first; groups in order of appearance, core left out."""
    found: dict[str, dict[str, None]] = {}
    for resource in resources:
        if resource.group:
            found.setdefault(resource.group, {})[resource.version] = None
    return {group: sorted(versions, key=version_priority) for group, versions in found.items()}


def _group(group: str, versions: list[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def api_group_list(resources: Iterable[Resource]) -> dict[str, Any]:
    """``/apis``: the classic list of groups."""
    groups = [_group(group, versions) for group, versions in _versions_by_group(resources).items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(group: str, resources: Iterable[Resource]) -> dict[str, Any] | None:
    """``/apis/<group>``, or None when nothing of the group is served."""
    versions = _versions_by_group(resources).get(group)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)} if versions else None


def aggregated(core: bool, resources: Iterable[Resource], api_version: str = "v2") -> dict[str, Any]:
    """The aggregated document of ``/api`` (``core``) or ``/apis``; ``api_version`` is ``v2`` or ``v2beta1``."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for resource in resources:
        if (resource.group == "") == core:
            versions = groups.setdefault(resource.group, {})
            versions.setdefault(resource.version, []).append(_aggregate(resource))
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": version,
                    "resources": sorted(versions[version], key=lambda item: item["resource"]),
                    "freshness": "Current",
                }
                for version in sorted(versions, key=version_priority)
            ],
        }
        for group, versions in groups.items()
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{api_version}",
        "metadata": {},
        "items": items,
    }


def _aggregate(resource: Resource) -> dict[str, Any]:
    item: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": {"group": "", "version": "", "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        item["shortNames"] = list(resource.short_names)
    if resource.categories:
        item["categories"] = list(resource.categories)
    if resource.subresources:
        item["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": _response_kind(resource, sub),
                "verbs": list(sub.verbs),
            }
            for sub in resource.subresources
        ]
    return item


def _response_kind(resource: Resource, sub: Subresource) -> dict[str, str]:
    own = (sub.group, sub.version) == (resource.group, resource.version)
    return {"group": "" if own else sub.group, "version": "" if own else sub.version, "kind": sub.kind}
