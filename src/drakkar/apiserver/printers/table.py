"""The table of printers, and ``Table`` objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from drakkar.apiserver.printers import core, devices, other, stored, workloads

Object = dict[str, Any]

_TYPES = {"#": "integer", "?": "boolean", "@": "date"}


def _column(text: str) -> dict[str, Any]:
    """``Name+``: a column; ``#``, ``?``, ``@`` in front mark the type, ``+`` behind a wide one.

    The column Name has the format ``name`` and no other has; ``!`` marks an exception.
    """
    kind = _TYPES.get(text[0], "string")
    name = text.lstrip("#?@")
    wide = name.endswith("+")
    plain = name.endswith("!")
    name = name.rstrip("+!")
    return {
        "name": name,
        "type": kind,
        "format": "name" if (name == "Name") != plain else "",
        "description": "",
        "priority": 1 if wide else 0,
    }


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns as ``Table.columnDefinitions``, and the function that makes the cells of an object."""

    columns: tuple[dict[str, Any], ...]
    cells: Callable[[Object, float], list[Any]]


def _printer(columns: str, cells: Callable[[Object, float], list[Any]]) -> Printer:
    return Printer(tuple(_column(text) for text in columns.split("|")), cells)


_GENERIC = _printer("Name|Age", other.generic)
_DATED = _printer("Name|@Created At", other.dated)
_EVENT = _printer(
    "Last Seen|Type|Reason|Object|Subobject+|Source+|Message|First Seen+|Count+|Name+",
    core.event,
)
_BINDING = _printer("Name|Role|Age|Users+|Groups+|ServiceAccounts+", other.role_binding)
_POLICY_BINDING = _printer("Name|PolicyName|ParamRef|Age", stored.admission_binding)
_WEBHOOKS = _printer("Name|#Webhooks|Age", stored.count("webhooks"))
_REPLICAS = "Name|#Desired|#Current|#Ready|Age|Containers+|Images+|Selector+"

_PRINTERS: dict[tuple[str, str], Printer] = {
    ("", "Pod"): _printer(
        "Name|Ready|Status|Restarts|Age|IP+|Node+|Nominated Node+|Readiness Gates+",
        core.pod,
    ),
    ("", "Node"): _printer(
        "Name|Status|Roles|Age|Version|Internal-IP+|External-IP+|OS-Image+|Kernel-Version+|Container-Runtime+",
        core.node,
    ),
    ("", "Namespace"): _printer("Name|Status|Age", core.namespace),
    ("", "ConfigMap"): _printer("Name|Data|Age", core.configmap),
    ("", "Secret"): _printer("Name|Type|Data|Age", core.secret),
    ("", "Service"): _printer(
        "Name|Type|Cluster-IP|External-IP|Port(s)|Age|Selector+",
        core.service,
    ),
    ("", "Event"): _EVENT,
    ("events.k8s.io", "Event"): _EVENT,
    ("", "LimitRange"): _DATED,
    ("", "PersistentVolumeClaim"): _printer(
        "Name|Status|Volume|Capacity|Access Modes|StorageClass|VolumeAttributesClass|Age|VolumeMode+",
        core.volume_claim,
    ),
    ("", "PersistentVolume"): _printer(
        "Name|Capacity|Access Modes|Reclaim Policy|Status|Claim|StorageClass|VolumeAttributesClass|Reason|Age"
        "|VolumeMode+",
        core.volume,
    ),
    ("", "ReplicationController"): _printer(_REPLICAS, workloads.replication_controller),
    ("coordination.k8s.io", "Lease"): _printer("Name|Holder|Age", core.lease),
    ("batch", "Job"): _printer(
        "Name|Status|Completions|Duration|Age|Containers+|Images+|Selector+",
        workloads.job,
    ),
    ("batch", "CronJob"): _printer(
        "Name|Schedule|Timezone|?Suspend|#Active|Last Schedule|Age|Containers+|Images+|Selector+",
        workloads.cron_job,
    ),
    ("apps", "Deployment"): _printer(
        "Name|Ready|Up-to-date|Available|Age|Containers+|Images+|Selector+",
        workloads.deployment,
    ),
    ("apps", "ReplicaSet"): _printer(_REPLICAS, workloads.replica_set),
    ("apps", "DaemonSet"): _printer(
        "Name|#Desired|#Current|#Ready|#Up-to-date|#Available|Node Selector|Age|Containers+|Images+|Selector+",
        workloads.daemon_set,
    ),
    ("apps", "StatefulSet"): _printer("Name|Ready|Age|Containers+|Images+", workloads.stateful_set),
    ("policy", "PodDisruptionBudget"): _printer(
        "Name|Min Available|Max Unavailable|#Allowed Disruptions|Age",
        workloads.disruption_budget,
    ),
    ("scheduling.k8s.io", "PriorityClass"): _printer(
        "Name|#Value|?Global-Default|Age|PreemptionPolicy",
        core.priority_class,
    ),
    ("scheduling.k8s.io", "PodGroup"): _printer("Name|Policy|Workload|Status|Age", workloads.pod_group),
    ("scheduling.k8s.io", "CompositePodGroup"): _printer("Name|Policy|Workload|Age", workloads.composite_pod_group),
    ("resource.k8s.io", "ResourceClaim"): _printer("Name|State|Age", devices.claim),
    ("resource.k8s.io", "ResourceSlice"): _printer("Name|Node|Driver|Pool|Age", devices.slice_),
    ("resource.k8s.io", "DeviceTaintRule"): _printer("Name|Key|Value|Effect|TimeAdded|Age", devices.taint_rule),
    ("resource.k8s.io", "ResourcePoolStatusRequest"): _printer(
        "Name|Driver|Total|Available|Allocated|Unavailable|Errors|#Pools|Status|Completed",
        devices.pool_status_request,
    ),
    ("rbac.authorization.k8s.io", "Role"): _DATED,
    ("rbac.authorization.k8s.io", "ClusterRole"): _DATED,
    ("rbac.authorization.k8s.io", "RoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _BINDING,
    ("storage.k8s.io", "StorageClass"): _printer(
        "Name|Provisioner|ReclaimPolicy|VolumeBindingMode|AllowVolumeExpansion|Age",
        other.storage_class,
    ),
    ("storage.k8s.io", "CSIStorageCapacity"): _DATED,
    ("node.k8s.io", "RuntimeClass"): _printer("Name|Handler|Age", other.runtime_class),
    ("", "ComponentStatus"): _printer("Name|Status|Message|Error", stored.component_status),
    ("", "Endpoints"): _printer("Name|Endpoints|Age", stored.endpoints),
    ("", "PodTemplate"): _printer("Name|Containers|Images|Pod Labels", stored.pod_template),
    ("", "ResourceQuota"): _printer("Name|Request|Limit|Age", stored.quota),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): _printer(
        "Name|#Mutations|ParamKind|Age", stored.admission_policy("mutations")
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): _printer(
        "Name|#Validations|ParamKind|Age", stored.admission_policy("validations")
    ),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): _POLICY_BINDING,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): _POLICY_BINDING,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("apiregistration.k8s.io", "APIService"): _printer("Name|Service|Available|Age", stored.api_service),
    ("apps", "ControllerRevision"): _printer("Name|Controller|Revision|Age", stored.controller_revision),
    ("autoscaling", "HorizontalPodAutoscaler"): _printer(
        "Name|Reference|Targets|MinPods|MaxPods|Replicas|Age", stored.autoscaler
    ),
    ("certificates.k8s.io", "CertificateSigningRequest"): _printer(
        "Name|Age|SignerName|Requestor|RequestedDuration|Condition", stored.signing_request
    ),
    ("certificates.k8s.io", "ClusterTrustBundle"): _printer("Name|SignerName", stored.paths("spec.signerName")),
    ("certificates.k8s.io", "PodCertificateRequest"): _printer(
        "Name|PodName|ServiceAccountName|NodeName|SignerName|State|UnverifiedUserAnnotations",
        stored.pod_certificate,
    ),
    ("coordination.k8s.io", "LeaseCandidate"): _printer(
        "Name|LeaseName|BinaryVersion|EmulationVersion|Age",
        stored.paths("spec.leaseName", "spec.binaryVersion", "spec.emulationVersion", "age"),
    ),
    ("discovery.k8s.io", "EndpointSlice"): _printer("Name|AddressType|Ports|Endpoints|Age", stored.endpoint_slice),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): _printer(
        "Name|PriorityLevel|MatchingPrecedence|DistinguisherMethod|Age|MissingPL", stored.flow_schema
    ),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): _printer(
        "Name|Type|NominalConcurrencyShares|Queues|HandSize|QueueLengthLimit|Age", stored.priority_level
    ),
    ("internal.apiserver.k8s.io", "StorageVersion"): _printer(
        "Name|CommonEncodingVersion|StorageVersions|Age", stored.storage_version
    ),
    ("networking.k8s.io", "IngressClass"): _printer("Name|Controller|Parameters|Age", stored.ingress_class),
    ("networking.k8s.io", "Ingress"): _printer("Name|Class|Hosts|Address|Ports|Age", stored.ingress),
    ("networking.k8s.io", "IPAddress"): _printer("Name|ParentRef", stored.ip_address),
    ("networking.k8s.io", "NetworkPolicy"): _printer("Name|Pod-Selector|Age", stored.network_policy),
    ("networking.k8s.io", "ServiceCIDR"): _printer("Name|CIDRs|Age", stored.service_cidr),
    ("storage.k8s.io", "CSIDriver"): _printer(
        "Name|?AttachRequired|?PodInfoOnMount|?StorageCapacity|TokenRequests|?RequiresRepublish|Modes|Age",
        stored.csi_driver,
    ),
    ("storage.k8s.io", "CSINode"): _printer("Name|#Drivers|Age", stored.count("spec.drivers")),
    ("storage.k8s.io", "VolumeAttachment"): _printer("Name|Attacher!|PV|Node|?Attached|Age", stored.attachment),
    ("storage.k8s.io", "VolumeAttributesClass"): _printer("Name|DriverName|Age", stored.paths("driverName", "age")),
    ("storagemigration.k8s.io", "StorageVersionMigration"): _printer("Name!|Resource|Status", stored.migration),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _printer(
        "Name|Scope|Versions|@Created At|Group+|Kind+|ShortNames+|?Established+",
        other.definition,
    ),
}


def columns(group: str, kind: str) -> list[dict[str, Any]]:
    """Column definitions of a kind; NAME and AGE when it has none of its own."""
    return [dict(column) for column in _PRINTERS.get((group, kind), _GENERIC).columns]


def row_cells(group: str, kind: str, obj: Object, now: float) -> list[Any]:
    """The cells of one object, wide ones included; ``now`` is in seconds since the epoch."""
    return _PRINTERS.get((group, kind), _GENERIC).cells(obj, now)


def table(
    group: str,
    kind: str,
    objs: Iterable[Object],
    now: float,
    list_meta: Object,
    include_object: str = "Metadata",
    with_columns: bool = True,
    *,
    printer: Printer | None = None,
    api_version: str = "v1",
) -> Object:
    """A ``Table`` of complete objects (``kind`` and ``apiVersion`` included where objects are wanted).

    ``include_object`` is what each row carries: ``None``, ``Metadata`` or ``Object``. Later
    frames of a watch come without columns. ``printer`` overrides that of the kind, for
    custom resources. ``api_version`` is the version of meta.k8s.io the client asked for.
    """
    chosen = printer or _PRINTERS.get((group, kind), _GENERIC)
    meta_version = f"meta.k8s.io/{api_version}"
    rows: list[Object] = []
    for obj in objs:
        if include_object == "Object":
            carried: Object | None = obj
        elif include_object == "Metadata":
            carried = {"kind": "PartialObjectMetadata", "apiVersion": meta_version, "metadata": obj["metadata"]}
        else:
            carried = None
        rows.append({"cells": chosen.cells(obj, now), "object": carried})
    return {
        "kind": "Table",
        "apiVersion": meta_version,
        "metadata": list_meta,
        "columnDefinitions": [dict(column) for column in chosen.columns] if with_columns else [],
        "rows": rows,
    }
