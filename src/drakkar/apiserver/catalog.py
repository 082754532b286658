"""What the server serves: one :class:`Served` per resource and version, one :class:`Stored` per resource.

Versions of a resource share their storage; objects are kept in the hub version. What differs
between kinds and cannot be read from discovery or schemas stands in the tables here: which
fields can be selected and indexed, what a DELETE answers, which writes need a revision.

Source: spec/apiserver.md sections 4 and 5, spec/api.md 6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from drakkar.apiserver.discovery import Resource, Subresource
from drakkar.apiserver.discovery import resources as built_in

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A resource as it is kept: its hub version and what holds for all versions."""

    group: str
    plural: str
    kind: str
    version: str
    namespaced: bool
    #: Selectable fields beside name and namespace, each with the way to its value.
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    indexed: tuple[str, ...] = ()
    #: Whether DELETE answers the deleted object rather than a Status.
    answers_deleted: bool = False
    #: Whether ``metadata.generation`` counts changes of the spec.
    counts_generations: bool = False
    #: Whether a PUT of an absent object creates it.
    create_on_update: bool = False
    #: Whether a PUT has to name a resourceVersion.
    conditional: bool = False
    #: Whether a status sent with a create is dropped.
    drops_status: bool = False
    #: Whether a definition, not this program, says what it is.
    custom: bool = False
    #: Kept in memory only, for so many seconds after the last write.
    lifetime: float | None = None

    @property
    def prefix(self) -> str:
        """Beginning of its keys in the store."""
        return f"/{self.group or 'core'}/{self.plural}/"

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``, as stored."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def store_key(self, namespace: str, name: str) -> str:
        """Key in the store."""
        return f"{self.prefix}{namespace}/{name}"


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A resource in one version, as a path names it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    verbs: frozenset[str]
    subresources: Mapping[str, Subresource]
    #: None for resources that only compute an answer (reviews).
    stored: Stored | None
    resource: Resource
    #: What clients of a version on its way out are told with every answer.
    deprecation: str = ""

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``, as served."""
        return f"{self.group}/{self.version}" if self.group else self.version


def _paths(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(name.split(".")) for name in names}


_EVENT_FIELDS = {
    **_paths("reason", "type", "reportingComponent", "source"),
    **_paths(
        *(f"involvedObject.{part}" for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion"))
    ),
    "involvedObject.fieldPath": ("involvedObject", "fieldPath"),
    "source": ("source", "component"),
}

_FIELDS: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("", "pods"): {
        **_paths(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        )
    },
    ("", "nodes"): _paths("spec.unschedulable"),
    ("", "events"): _EVENT_FIELDS,
    ("", "secrets"): _paths("type"),
    ("", "namespaces"): _paths("status.phase"),
    ("", "replicationcontrollers"): _paths("status.replicas"),
    ("", "services"): _paths("spec.clusterIP", "spec.type"),
    ("apps", "replicasets"): _paths("status.replicas"),
    ("batch", "jobs"): _paths("status.successful"),
    ("certificates.k8s.io", "certificatesigningrequests"): _paths("spec.signerName"),
    ("certificates.k8s.io", "clustertrustbundles"): _paths("spec.signerName"),
    ("certificates.k8s.io", "podcertificaterequests"): _paths("spec.signerName", "spec.nodeName"),
    ("resource.k8s.io", "resourceslices"): {
        "spec.nodeName": ("spec", "nodeName"),
        "spec.driver": ("spec", "driver"),
        "spec.pool.name": ("spec", "pool", "name"),
    },
}

_INDEXED: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): ("spec.nodeName",),
    ("", "events"): ("involvedObject.uid", "involvedObject.name"),
    ("resource.k8s.io", "resourceslices"): ("spec.nodeName", "spec.driver", "spec.pool.name"),
}

#: Beside all of ``resource.k8s.io`` and ``storage.k8s.io``.
_ANSWERS_DELETED: dict[str, str] = {
    "": (
        "pods services persistentvolumeclaims persistentvolumes namespaces serviceaccounts resourcequotas podtemplates"
    ),
    # Upstream marks it first and removes its objects before it goes.
    "apiextensions.k8s.io": "customresourcedefinitions",
}

_GENERATIONS: dict[str, str] = {
    "": "pods replicationcontrollers",
    "apps": "daemonsets deployments replicasets statefulsets",
    "batch": "jobs cronjobs",
    "networking.k8s.io": "ingresses networkpolicies ingressclasses",
    "policy": "poddisruptionbudgets",
    "admissionregistration.k8s.io": (
        "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations"
        " validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations"
    ),
    "apiextensions.k8s.io": "customresourcedefinitions",
    "scheduling.k8s.io": "priorityclasses",
    "discovery.k8s.io": "endpointslices",
    "resource.k8s.io": "resourceslices deviceclasses devicetaintrules",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
}

_CREATE_ON_UPDATE: dict[str, str] = {
    "": "endpoints events limitranges services",
    "coordination.k8s.io": "leases leasecandidates",
    "node.k8s.io": "runtimeclasses",
    "rbac.authorization.k8s.io": "clusterroles clusterrolebindings roles rolebindings",
}

_CONDITIONAL: dict[str, str] = {
    "coordination.k8s.io": "leases leasecandidates",
    "admissionregistration.k8s.io": _GENERATIONS["admissionregistration.k8s.io"],
    "node.k8s.io": "runtimeclasses",
    "policy": "poddisruptionbudgets",
    "scheduling.k8s.io": "podgroups compositepodgroups workloads",
    "storage.k8s.io": "csidrivers csinodes csistoragecapacities volumeattachments",
    "certificates.k8s.io": "clustertrustbundles",
}

#: Kinds with a status subresource that take the status of a create as it is.
_KEEPS_STATUS = {("", "nodes"), ("", "namespaces"), ("", "persistentvolumes")}

#: Two names of one storage: resources of ``events.k8s.io`` are kept as those of the core group.
_ALIASES = {("events.k8s.io", "events"): ("", "events")}

EVENT_LIFETIME = 3600.0

#: The resources of this group take requests about subjects; they store nothing.
_COMPUTED = {"authentication.k8s.io", "authorization.k8s.io"}
_COMPUTED_CORE = {"bindings", "componentstatuses"}


#: Minor release in which a version of a kind that is on its way out came; "" is every other kind of the version.
_CAME: dict[tuple[str, str], dict[str, int]] = {
    ("resource.k8s.io", "v1beta1"): {"": 32},
    ("resource.k8s.io", "v1beta2"): {"": 33, "DeviceTaintRule": 36},
    ("resource.k8s.io", "v1alpha3"): {"DeviceTaintRule": 33},
}
_MINOR = 37


def deprecation(resource: Resource) -> str:
    """What clients of a deprecated version are warned of, empty for others.

    A beta is deprecated three releases after it came and gone after six (deprecation policy of Kubernetes);
    texts as in spec/apiserver-traces.
    """
    if (resource.group, resource.version, resource.kind) == ("", "v1", "Endpoints"):
        return "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
    kinds = _CAME.get((resource.group, resource.version), {})
    came = kinds.get(resource.kind, kinds.get(""))
    if came is None or came + 3 > _MINOR:
        return ""
    named = f"{resource.group_version} {resource.kind}"
    return f"{named} is deprecated in v1.{came + 3}+, unavailable in v1.{came + 6}+"


def _listed(table: Mapping[str, str], group: str, plural: str) -> bool:
    return plural in table.get(group, "").split()


class Catalog:
    """All served resources, by path and by storage."""

    def __init__(self, resources: Iterable[Resource] | None = None):
        self.served: dict[tuple[str, str, str], Served] = {}
        self.stored: dict[str, Stored] = {}
        self.group_versions: set[tuple[str, str]] = set()
        for resource in built_in() if resources is None else resources:
            self.add(resource)

    def add(self, resource: Resource) -> Served:
        """Serves one more resource; the first version of a resource that is added is its hub."""
        group, plural = _ALIASES.get((resource.group, resource.plural), (resource.group, resource.plural))
        stored = None
        if group not in _COMPUTED and not (group == "" and plural in _COMPUTED_CORE):
            stored = self.stored.get(f"/{group or 'core'}/{plural}/")
            if stored is None and (group, plural) == (resource.group, resource.plural):
                stored = _stored(resource)
                self.stored[stored.prefix] = stored
        served = Served(
            resource.group,
            resource.version,
            resource.plural,
            resource.kind,
            resource.namespaced,
            frozenset(resource.verbs),
            {sub.name: sub for sub in resource.subresources},
            stored,
            resource,
            deprecation(resource),
        )
        self.served[resource.group, resource.version, resource.plural] = served
        self.group_versions.add((resource.group, resource.version))
        return served

    def add_custom(self, resource: Resource, fields: Mapping[str, tuple[str, ...]], *, served: bool) -> None:
        """Adds a version of a custom resource, the storage version first; not served, it is only kept."""
        prefix = f"/{resource.group}/{resource.plural}/"
        if prefix not in self.stored:
            has_status = any(sub.name == "status" for sub in resource.subresources)
            self.stored[prefix] = Stored(
                group=resource.group,
                plural=resource.plural,
                kind=resource.kind,
                version=resource.version,
                namespaced=resource.namespaced,
                fields=fields,
                answers_deleted=False,
                counts_generations=True,
                drops_status=has_status,
                custom=True,
            )
        if served:
            self.add(resource)

    def remove(self, group: str, plural: str, *, forget: bool) -> None:
        """Serves a custom resource no longer; with ``forget`` it is not kept either."""
        for key in [key for key in self.served if key[0] == group and key[2] == plural]:
            del self.served[key]
        if forget:
            self.stored.pop(f"/{group}/{plural}/", None)
        self.group_versions = {(key[0], key[1]) for key in self.served}

    def find(self, group: str, version: str, plural: str) -> Served | None:
        """The resource that a path names."""
        return self.served.get((group, version, plural))

    def resources(self) -> tuple[Resource, ...]:
        """Everything served, for discovery."""
        return tuple(served.resource for served in self.served.values())


def _stored(resource: Resource) -> Stored:
    group, plural = resource.group, resource.plural
    has_status = any(sub.name == "status" for sub in resource.subresources)
    return Stored(
        group=group,
        plural=plural,
        kind=resource.kind,
        version=resource.version,
        namespaced=resource.namespaced,
        fields=_FIELDS.get((group, plural), {}),
        indexed=_INDEXED.get((group, plural), ()),
        answers_deleted=group in ("resource.k8s.io", "storage.k8s.io") or _listed(_ANSWERS_DELETED, group, plural),
        counts_generations=_listed(_GENERATIONS, group, plural),
        create_on_update=_listed(_CREATE_ON_UPDATE, group, plural),
        conditional=_listed(_CONDITIONAL, group, plural),
        drops_status=has_status and (group, plural) not in _KEEPS_STATUS,
        lifetime=EVENT_LIFETIME if (group, plural) == ("", "events") else None,
    )


@cache
def _steps(path: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    return path[:-1], path[-1]


def field_reader(fields: Mapping[str, tuple[str, ...]]) -> Callable[[Object], dict[str, str] | None] | None:
    """Reads the selectable fields that are set from an object; None when the resource has none."""
    if not fields:
        return None
    ways = [(name, *_steps(path)) for name, path in fields.items()]

    def read(obj: Object) -> dict[str, str] | None:
        found: dict[str, str] = {}
        for name, steps, last in ways:
            at: Any = obj
            for step in steps:
                at = at.get(step)
                if not at:
                    break
            else:
                value = at.get(last)
                if value is not None and value != "" and not isinstance(value, (dict, list)):
                    found[name] = value if isinstance(value, str) else ("true" if value is True else str(value).lower())
        return found or None

    return read
