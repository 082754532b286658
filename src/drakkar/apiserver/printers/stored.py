"""Cells of kinds that no part of ours acts on: they are served for the clients that expect them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from drakkar.apiserver.printers.text import NONE, UNKNOWN, age, human_duration, joined, label_selector, labels

Object = dict[str, Any]
Cells = Callable[[Object, float], list[Any]]

_UNSET = "<unset>"

#: How many values a cell lists before it says how many more there are.
_SHOWN = 3


def _at(obj: Any, path: str, default: Any = "") -> Any:
    """The value at a dotted path, or ``default``."""
    for name in path.split("."):
        if type(obj) is not dict:
            return default
        obj = obj.get(name)
    return default if obj is None else obj


def _age(obj: Object, now: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _some(values: Iterable[str]) -> str:
    """The first values of a list, and how many more there are."""
    items = list(values)
    if len(items) <= _SHOWN:
        return ",".join(items) or NONE
    return ",".join(items[:_SHOWN]) + f" + {len(items) - _SHOWN} more..."


def paths(*cells: str) -> Cells:
    """Cells by dotted paths behind the name; ``age`` stands for the age, ``path?text`` gives a default."""

    def row(obj: Object, now: float) -> list[Any]:
        result: list[Any] = [obj["metadata"]["name"]]
        for cell in cells:
            path, _, default = cell.partition("?")
            result.append(_age(obj, now) if path == "age" else _at(obj, path, default))
        return result

    return row


def count(path: str) -> Cells:
    """The length of a list, and the age."""
    return lambda obj, now: [obj["metadata"]["name"], len(_at(obj, path, ())), _age(obj, now)]


def admission_policy(rules: str) -> Cells:
    """Number of ``rules``, kind of the parameters, age."""

    def row(obj: Object, now: float) -> list[Any]:
        param = _at(obj, "spec.paramKind", None)
        kind = f"{param.get('apiVersion', '')}/{param.get('kind', '')}" if param else _UNSET
        return [obj["metadata"]["name"], len(_at(obj, f"spec.{rules}", ())), kind, _age(obj, now)]

    return row


def admission_binding(obj: Object, now: float) -> list[Any]:
    """Policy, parameters, age."""
    param = _at(obj, "spec.paramRef", None)
    reference = _UNSET
    if param and param.get("name"):
        reference = f"{param.get('namespace') or '*'}/{param['name']}"
    elif param and param.get("selector") is not None:
        reference = label_selector(param["selector"])
    return [obj["metadata"]["name"], _at(obj, "spec.policyName"), reference, _age(obj, now)]


def api_service(obj: Object, now: float) -> list[Any]:
    """Who serves it, whether it is available, age."""
    service = _at(obj, "spec.service", None)
    where = f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "Local"
    available = UNKNOWN
    for condition in _at(obj, "status.conditions", ()):
        if condition["type"] == "Available":
            available = condition["status"]
            if available != "True":
                available += f" ({condition.get('reason', '')})"
    return [obj["metadata"]["name"], where, available, _age(obj, now)]


def controller_revision(obj: Object, now: float) -> list[Any]:
    """Controlling owner, revision, age."""
    controller = NONE
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            group = owner["apiVersion"].rpartition("/")[0]
            kind = owner["kind"].lower() + (f".{group}" if group else "")
            controller = f"{kind}/{owner['name']}"
    return [obj["metadata"]["name"], controller, obj.get("revision", 0), _age(obj, now)]


def autoscaler(obj: Object, now: float) -> list[Any]:
    """Target, utilisation, bounds, replicas, age."""
    target = _at(obj, "spec.scaleTargetRef", {})
    return [
        obj["metadata"]["name"],
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _metrics(obj),
        str(_at(obj, "spec.minReplicas", _UNSET)),
        _at(obj, "spec.maxReplicas", 0),
        _at(obj, "status.currentReplicas", 0),
        _age(obj, now),
    ]


def _metrics(obj: Object) -> str:
    """``cpu: 12%/80%``: current and wanted value of each resource metric."""
    wanted = _at(obj, "spec.targetCPUUtilizationPercentage", None)
    if wanted is not None:
        current = _at(obj, "status.currentCPUUtilizationPercentage", None)
        return f"cpu: {UNKNOWN if current is None else f'{current}%'}/{wanted}%"
    currents = {
        item["resource"]["name"]: item["resource"].get("current") or {}
        for item in _at(obj, "status.currentMetrics", ())
        if item.get("resource")
    }
    found: list[str] = []
    for metric in _at(obj, "spec.metrics", ()):
        resource = metric.get("resource")
        if not resource:
            found.append(f"{UNKNOWN}/{metric.get('type', '').lower()}")
            continue
        current, target = currents.get(resource["name"], {}), resource.get("target") or {}
        if "averageUtilization" in target:
            now_text = f"{current['averageUtilization']}%" if "averageUtilization" in current else UNKNOWN
            found.append(f"{resource['name']}: {now_text}/{target['averageUtilization']}%")
        else:
            now_text = current.get("averageValue") or UNKNOWN
            found.append(f"{resource['name']}: {now_text}/{target.get('averageValue') or target.get('value', '')}")
    return _some(found)


def signing_request(obj: Object, now: float) -> list[Any]:
    """Age, signer, who asks, for how long, what became of it."""
    seconds = _at(obj, "spec.expirationSeconds", None)
    states = {item["type"] for item in _at(obj, "status.conditions", ())}
    words = [word for word in ("Approved", "Denied", "Failed") if word in states] or ["Pending"]
    if _at(obj, "status.certificate"):
        words.append("Issued")
    return [
        obj["metadata"]["name"],
        _age(obj, now),
        _at(obj, "spec.signerName", NONE),
        _at(obj, "spec.username"),
        NONE if seconds is None else human_duration(seconds),
        ",".join(words),
    ]


def pod_certificate(obj: Object, now: float) -> list[Any]:
    """Pod, account, node, signer, state of a pod's certificate request."""
    states = [item["type"] for item in _at(obj, "status.conditions", ())]
    return [
        obj["metadata"]["name"],
        _at(obj, "spec.podName"),
        _at(obj, "spec.serviceAccountName"),
        _at(obj, "spec.nodeName"),
        _at(obj, "spec.signerName"),
        states[-1] if states else "Pending",
        labels(_at(obj, "spec.unverifiedUserAnnotations", None)),
    ]


def endpoint_slice(obj: Object, now: float) -> list[Any]:
    """Address type, ports, addresses, age."""
    ports = [str(port["port"]) if port.get("port") else "*" for port in obj.get("ports") or ()]
    addresses = [address for item in obj.get("endpoints") or () for address in item.get("addresses") or ()]
    return [
        obj["metadata"]["name"],
        obj.get("addressType", ""),
        _some(ports) if ports else _UNSET,
        _some(addresses) if addresses else _UNSET,
        _age(obj, now),
    ]


def endpoints(obj: Object, now: float) -> list[Any]:
    """Ready addresses with their ports, age."""
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        ports = [port["port"] for port in subset.get("ports") or ()]
        for item in subset.get("addresses") or ():
            found += [f"{item['ip']}:{port}" for port in ports] or [item["ip"]]
    return [obj["metadata"]["name"], _some(found), _age(obj, now)]


def flow_schema(obj: Object, now: float) -> list[Any]:
    """Priority level, precedence, distinguisher, age, whether the level is missing."""
    dangling = next((c for c in _at(obj, "status.conditions", ()) if c.get("type") == "Dangling"), {})
    return [
        obj["metadata"]["name"],
        _at(obj, "spec.priorityLevelConfiguration.name", NONE),
        _at(obj, "spec.matchingPrecedence", 0),
        _at(obj, "spec.distinguisherMethod.type", NONE),
        _age(obj, now),
        dangling.get("status", "?"),
    ]


def priority_level(obj: Object, now: float) -> list[Any]:
    """Type, shares, queuing, age."""
    kind = _at(obj, "spec.type")
    queuing = _at(obj, "spec.limited.limitResponse.queuing", {})
    shares = _at(obj, "spec.limited.nominalConcurrencyShares", _at(obj, "spec.exempt.nominalConcurrencyShares", NONE))
    sizes = [queuing.get(name, NONE) for name in ("queues", "handSize", "queueLengthLimit")]
    return [obj["metadata"]["name"], kind, shares, *sizes, _age(obj, now)]


def storage_version(obj: Object, now: float) -> list[Any]:
    """Common encoding, what each server encodes in, age."""
    versions = [
        f"{item.get('apiServerID', '')}={item.get('encodingVersion', '')}"
        for item in _at(obj, "status.storageVersions", ())
    ]
    common = _at(obj, "status.commonEncodingVersion", _UNSET)
    return [obj["metadata"]["name"], common, _some(versions) if versions else _UNSET, _age(obj, now)]


def ingress_class(obj: Object, now: float) -> list[Any]:
    """Controller, parameters, age."""
    param = _at(obj, "spec.parameters", None)
    reference = NONE
    if param:
        kind = param.get("kind", "") + (f".{param['apiGroup']}" if param.get("apiGroup") else "")
        reference = f"{kind}/{param.get('name', '')}"
    return [obj["metadata"]["name"], _at(obj, "spec.controller"), reference, _age(obj, now)]


def ingress(obj: Object, now: float) -> list[Any]:
    """Class, hosts, addresses, ports, age."""
    hosts = [rule["host"] for rule in _at(obj, "spec.rules", ()) if rule.get("host")]
    given = _at(obj, "status.loadBalancer.ingress", ())
    return [
        obj["metadata"]["name"],
        _at(obj, "spec.ingressClassName", NONE),
        _some(hosts) if hosts else "*",
        ",".join(item.get("ip") or item.get("hostname", "") for item in given),
        "80, 443" if _at(obj, "spec.tls") else "80",
        _age(obj, now),
    ]


def ip_address(obj: Object, now: float) -> list[Any]:
    """What the address belongs to."""
    parent = _at(obj, "spec.parentRef", {})
    group = parent.get("group", "")
    resource = parent.get("resource", "") + (f".{group}" if group else "")
    return [obj["metadata"]["name"], "/".join(filter(None, (resource, parent.get("namespace"), parent.get("name"))))]


def network_policy(obj: Object, now: float) -> list[Any]:
    """Which pods, age."""
    return [obj["metadata"]["name"], label_selector(_at(obj, "spec.podSelector", {})), _age(obj, now)]


def service_cidr(obj: Object, now: float) -> list[Any]:
    """Ranges, age."""
    return [obj["metadata"]["name"], ",".join(_at(obj, "spec.cidrs", ())), _age(obj, now)]


def csi_driver(obj: Object, now: float) -> list[Any]:
    """What a storage driver asks for, its modes, age."""
    spec = obj.get("spec", {})
    audiences = [item.get("audience", "") for item in spec.get("tokenRequests") or ()]
    return [
        obj["metadata"]["name"],
        spec.get("attachRequired", True),
        spec.get("podInfoOnMount", False),
        spec.get("storageCapacity", False),
        ",".join(audiences) or _UNSET,
        spec.get("requiresRepublish", False),
        ",".join(spec.get("volumeLifecycleModes") or ()) or NONE,
        _age(obj, now),
    ]


def attachment(obj: Object, now: float) -> list[Any]:
    """Attacher, volume, node, whether it is attached, age."""
    return [
        obj["metadata"]["name"],
        _at(obj, "spec.attacher"),
        _at(obj, "spec.source.persistentVolumeName"),
        _at(obj, "spec.nodeName"),
        bool(_at(obj, "status.attached", False)),
        _age(obj, now),
    ]


def migration(obj: Object, now: float) -> list[Any]:
    """Resource, state of a storage migration."""
    resource = _at(obj, "spec.resource", {})
    text = ".".join(filter(None, (resource.get("resource"), resource.get("version"), resource.get("group"))))
    true = [item["type"] for item in _at(obj, "status.conditions", ()) if item.get("status") == "True"]
    return [obj["metadata"]["name"], text, true[-1] if true else ""]


def component_status(obj: Object, now: float) -> list[Any]:
    """Health of a control plane component."""
    healthy = next((item for item in obj.get("conditions") or () if item["type"] == "Healthy"), {})
    state = {"True": "Healthy", "False": "Unhealthy"}.get(healthy.get("status", ""), "Unknown")
    return [obj["metadata"]["name"], state, healthy.get("message", ""), healthy.get("error", "")]


def pod_template(obj: Object, now: float) -> list[Any]:
    """Containers, images, labels of a stored pod template."""
    items = _at(obj, "template.spec.containers", ())
    return [
        obj["metadata"]["name"],
        joined(item["name"] for item in items),
        joined(item.get("image", "") for item in items),
        labels(_at(obj, "template.metadata.labels", None)),
    ]


def quota(obj: Object, now: float) -> list[Any]:
    """Used of allowed, requests and limits apart, age."""
    hard, used = _at(obj, "status.hard", {}), _at(obj, "status.used", {})
    requests: list[str] = []
    limits: list[str] = []
    for name in sorted(hard):
        text = f"{name}: {used.get(name, '0')}/{hard[name]}"
        (limits if name.startswith("limits") else requests).append(text)
    return [obj["metadata"]["name"], ", ".join(requests), ", ".join(limits), _age(obj, now)]
