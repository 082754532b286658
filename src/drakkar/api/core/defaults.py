"""Defaults of pods, jobs, nodes and namespaces that Kubernetes keeps in its Go code.

The OpenAPI schemas do not list them. Members that upstream's types hold by value are on the
wire even when empty; they are filled in here as well, so that clients see what they know.

Source: answers of kube-apiserver 1.37 (spec/apiserver-traces/write.json).
"""

from __future__ import annotations

from typing import Any, Final

from drakkar.api.meta import Object
from drakkar.api.names import DEFAULT_SCHEDULER, NAMESPACE_NAME_LABEL
from drakkar.api.rules import Defaults
from drakkar.api.tree import at, child, children, text

DEFAULT_MODE: Final = 0o644
INT32_MAX: Final = 2**31 - 1
_CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")


def _absent(holder: Object, field: str, value: Any) -> None:
    """Set a pointer or string that is absent (or empty, for strings)."""
    if holder.get(field) is None or holder[field] == "":
        holder[field] = value


def _ensure(holder: Object, field: str) -> Object:
    if holder.get(field) is None:
        holder[field] = {}
    return holder[field]


# Pods.


def pod(obj: Object) -> None:
    """A Pod: what holds for every pod spec, plus what templates do not get."""
    spec = _ensure(obj, "spec")
    _ensure(obj, "status")
    pod_spec(spec)
    _absent(spec, "enableServiceLinks", True)
    for field in ("initContainers", "containers"):
        for container in children(spec, field):
            _requests_from_limits(container)


def _requests_from_limits(container: Object) -> None:
    limits = child(container, "resources", "limits")
    if limits:
        requests = _ensure(container["resources"], "requests")
        for name, amount in limits.items():
            requests.setdefault(name, amount)


def pod_template(template: Object) -> None:
    """The pod template inside a Job or another controller."""
    _ensure(template, "metadata")
    pod_spec(_ensure(template, "spec"))


def pod_spec(spec: Object) -> None:
    """What pods and templates have in common."""
    _absent(spec, "restartPolicy", "Always")
    _absent(spec, "terminationGracePeriodSeconds", 30)
    _absent(spec, "dnsPolicy", "ClusterFirst")
    _absent(spec, "schedulerName", DEFAULT_SCHEDULER)
    _ensure(spec, "securityContext")
    account = text(spec, "serviceAccountName") or text(spec, "serviceAccount")
    if account:
        # The old name of the field stays a mirror of the new one.
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    host_network = spec.get("hostNetwork") is True
    for field in _CONTAINER_LISTS:
        for container in children(spec, field):
            _container(container, host_network)
    for volume in children(spec, "volumes"):
        _volume(volume)


def _container(container: Object, host_network: bool) -> None:
    _ensure(container, "resources")
    _absent(container, "terminationMessagePath", "/dev/termination-log")
    _absent(container, "terminationMessagePolicy", "File")
    _absent(container, "imagePullPolicy", pull_policy(text(container, "image")))
    for port in children(container, "ports"):
        _absent(port, "protocol", "TCP")
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort")
    for field in _PROBES:
        if container.get(field) is not None:
            _probe(child(container, field))
    for hook in ("postStart", "preStop"):
        _http_get(child(container, "lifecycle", hook, "httpGet"))
    for variable in children(container, "env"):
        _field_ref(child(variable, "valueFrom", "fieldRef"))


def pull_policy(image: str) -> str:
    """Always for the tag ``latest`` or none at all, IfNotPresent for any other tag or a digest."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _probe(probe: Object) -> None:
    for field, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(field):
            probe[field] = value
    _http_get(child(probe, "httpGet"))
    if probe.get("grpc") is not None and probe["grpc"].get("service") is None:
        probe["grpc"]["service"] = ""


def _http_get(action: Object) -> None:
    if action:
        _absent(action, "path", "/")
        _absent(action, "scheme", "HTTP")


def _field_ref(reference: Object) -> None:
    if reference:
        _absent(reference, "apiVersion", "v1")


def _volume(volume: Object) -> None:
    if not any(value is not None for key, value in volume.items() if key != "name"):
        volume["emptyDir"] = {}
    for field in ("secret", "configMap", "downwardAPI", "projected"):
        if volume.get(field) is not None:
            _absent(volume[field], "defaultMode", DEFAULT_MODE)
    for source in [volume, *children(volume, "projected", "sources")]:
        for item in children(source, "downwardAPI", "items"):
            _field_ref(child(item, "fieldRef"))
        if source.get("serviceAccountToken") is not None:
            _absent(source["serviceAccountToken"], "expirationSeconds", 3600)
    if volume.get("hostPath") is not None and volume["hostPath"].get("type") is None:
        volume["hostPath"]["type"] = ""
    claim = child(volume, "ephemeral", "volumeClaimTemplate", "spec")
    if claim:
        _absent(claim, "volumeMode", "Filesystem")


# Jobs.


def job(obj: Object) -> None:
    """A Job of batch/v1."""
    _ensure(obj, "status")
    job_spec(_ensure(obj, "spec"))
    labels = child(obj, "spec", "template", "metadata", "labels")
    if labels and not at(obj, "metadata", "labels"):
        _ensure(obj, "metadata")["labels"] = dict(labels)


def job_spec(spec: Object, *, template_only: bool = False) -> None:
    """The spec of a Job; ``template_only`` leaves the Job's own fields open, as inside a CronJob."""
    pod_template(_ensure(spec, "template"))
    if template_only:
        return
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    _absent(spec, "parallelism", 1)
    _absent(spec, "backoffLimit", 6 if spec.get("backoffLimitPerIndex") is None else INT32_MAX)
    _absent(spec, "completionMode", "NonIndexed")
    _absent(spec, "suspend", False)
    _absent(spec, "manualSelector", False)
    _absent(spec, "podReplacementPolicy", "TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed")
    for rule in children(spec, "podFailurePolicy", "rules"):
        for pattern in children(rule, "onPodConditions"):
            _absent(pattern, "status", "True")


# Nodes, namespaces, leases.


def node(obj: Object) -> None:
    """A Node: what it offers is all it has, unless it says otherwise."""
    _ensure(obj, "spec")
    status = _ensure(obj, "status")
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    endpoint = _ensure(_ensure(status, "daemonEndpoints"), "kubeletEndpoint")
    if endpoint.get("Port") is None:
        endpoint["Port"] = 0
    information = _ensure(status, "nodeInfo")
    for field in (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ):
        if information.get(field) is None:
            information[field] = ""


def namespace(obj: Object) -> None:
    """A Namespace carries its own name as a label, for selectors."""
    _ensure(obj, "spec")
    _ensure(obj, "status")
    name = text(obj, "metadata", "name")
    if name:
        _ensure(obj["metadata"], "labels")[NAMESPACE_NAME_LABEL] = name


def lease(obj: Object) -> None:
    """A Lease has no defaults but its empty spec."""
    _ensure(obj, "spec")


DEFAULTS: Final[dict[tuple[str, str], Defaults]] = {
    ("Pod", "v1"): pod,
    ("Job", "v1"): job,
    ("Node", "v1"): node,
    ("Namespace", "v1"): namespace,
    ("Lease", "v1"): lease,
}
"""(kind, version) → what fills in its defaults."""
