"""Validation of pods and pod templates: the parts that decide where and with what a pod runs.

Security contexts and resize policies are checked by their schema alone; volumes, variables and
ports, probes and hooks, and what concerns the host have modules of their own.

Source: spec/api.md 9.1, the pod rules of the Kubernetes API.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, Final

import msgspec

from drakkar.api import formats
from drakkar.api.core.validation.environment import host_ports, ports, variables
from drakkar.api.core.validation.hosts import hosts
from drakkar.api.core.validation.probes import no_probes, probes
from drakkar.api.core.validation.volumes import PULL_POLICIES, Volumes, mounts, volumes
from drakkar.api.errors import ParseError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.metadata import check_labels
from drakkar.api.quantity import Quantity
from drakkar.api.resource.validation import shared
from drakkar.api.rules import same_meaning
from drakkar.api.tree import at, child, children, text, texts

INT32_MAX: Final = 2**31 - 1
RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
DNS_POLICIES: Final = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
NODE_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
CONTAINER_RESOURCES: Final = frozenset(("cpu", "memory", "ephemeral-storage", "storage"))
NODE_RESOURCES: Final = CONTAINER_RESOURCES | {"pods"}

_MUTABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def one_of(faults: Faults, path: str, value: str, known: Collection[str]) -> None:
    """A required word out of a few."""
    if not value:
        faults.required(path)
    elif value not in known:
        faults.not_supported(path, value, known)


def pod_spec(faults: Faults, path: str, spec: Object) -> None:
    """Faults of a pod spec, be it of a pod or of a template."""
    claims = _resource_claims(faults, f"{path}.resourceClaims", children(spec, "resourceClaims"))
    known = volumes(faults, f"{path}.volumes", children(spec, "volumes"))
    _containers(faults, path, spec, claims, known)
    one_of(faults, f"{path}.restartPolicy", text(spec, "restartPolicy"), RESTART_POLICIES)
    one_of(faults, f"{path}.dnsPolicy", text(spec, "dnsPolicy"), DNS_POLICIES)
    hosts(faults, path, spec)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        faults.invalid(
            f"{path}.terminationGracePeriodSeconds",
            spec["terminationGracePeriodSeconds"],
            "must be greater than or equal to 0",
        )
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= INT32_MAX:
        faults.invalid(f"{path}.activeDeadlineSeconds", deadline, f"must be between 1 and {INT32_MAX}, inclusive")
    if spec.get("nodeName"):
        faults.check(f"{path}.nodeName", text(spec, "nodeName"), formats.dns_subdomain)
    check_labels(faults, child(spec, "nodeSelector"), f"{path}.nodeSelector")
    _affinity(faults, f"{path}.affinity", child(spec, "affinity"))
    tolerations(faults, f"{path}.tolerations", children(spec, "tolerations"))
    _gates(faults, f"{path}.schedulingGates", children(spec, "schedulingGates"))
    _spread(faults, f"{path}.topologySpreadConstraints", children(spec, "topologySpreadConstraints"))
    for field in ("serviceAccountName", "priorityClassName", "runtimeClassName"):
        if spec.get(field):
            faults.check(f"{path}.{field}", text(spec, field), formats.dns_subdomain)
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            faults.check(f"{path}.{field}", text(spec, field), formats.dns_label)
    if spec.get("preemptionPolicy"):
        one_of(faults, f"{path}.preemptionPolicy", text(spec, "preemptionPolicy"), ("PreemptLowerPriority", "Never"))
    for index, gate in enumerate(children(spec, "readinessGates")):
        faults.check(
            f"{path}.readinessGates[{index}].conditionType", text(gate, "conditionType"), formats.qualified_name
        )
    if spec.get("schedulingGroup") is not None:
        _scheduling_group(faults, f"{path}.schedulingGroup", child(spec, "schedulingGroup"))
    amounts(faults, f"{path}.overhead", child(spec, "overhead"))
    resources = child(spec, "resources")
    if resources.get("claims"):
        faults.forbidden(f"{path}.resources.claims", "may not be set for pod-level resources")
    requirements(faults, f"{path}.resources", {**resources, "claims": None}, claims)


def _resource_claims(faults: Faults, path: str, items: list[Object]) -> frozenset[str]:
    names: set[str] = set()
    for index, item in enumerate(items):
        at_item, name = f"{path}[{index}]", text(item, "name")
        if shared.named(faults, f"{at_item}.name", name, formats.dns_label) and name in names:
            faults.duplicate(f"{at_item}.name", name)
        names.add(name)
        given = [field for field in ("resourceClaimName", "resourceClaimTemplateName") if item.get(field) is not None]
        if not given:
            faults.invalid(at_item, name, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
        elif len(given) > 1:
            faults.invalid(
                at_item, name, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            )
        for field in given:
            faults.check(f"{at_item}.{field}", text(item, field), formats.dns_subdomain)
    return frozenset(names)


def _containers(faults: Faults, path: str, spec: Object, claims: frozenset[str], known: Volumes) -> None:
    host_network = spec.get("hostNetwork") is True
    names: set[str] = set()
    if not children(spec, "containers"):
        faults.required(f"{path}.containers")
    for field in ("containers", "initContainers"):
        for index, container in enumerate(children(spec, field)):
            at_item, name = f"{path}.{field}[{index}]", text(container, "name")
            if shared.named(faults, f"{at_item}.name", name, formats.dns_label):
                if name in names:
                    faults.duplicate(f"{at_item}.name", name)
                names.add(name)
            if field == "initContainers":
                host_ports(faults, {at_item: container})
            if field == "initContainers" and container.get("restartPolicy") != "Always":
                no_probes(faults, at_item, container)
            else:
                probes(faults, at_item, container, spec.get("terminationGracePeriodSeconds") or 0)
            _container(faults, at_item, container, claims, known, host_network=host_network)
            policy = container.get("restartPolicy")
            if policy is not None:
                one_of(faults, f"{at_item}.restartPolicy", policy, RESTART_POLICIES)
    host_ports(faults, {f"{path}.containers[{i}]": item for i, item in enumerate(children(spec, "containers"))})


def _container(
    faults: Faults, path: str, container: Object, claims: frozenset[str], known: Volumes, *, host_network: bool
) -> None:
    image = text(container, "image")
    if not image:
        faults.required(f"{path}.image")
    elif image != image.strip():
        faults.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    one_of(faults, f"{path}.imagePullPolicy", text(container, "imagePullPolicy"), PULL_POLICIES)
    one_of(
        faults,
        f"{path}.terminationMessagePolicy",
        text(container, "terminationMessagePolicy"),
        ("FallbackToLogsOnError", "File"),
    )
    ports(faults, f"{path}.ports", children(container, "ports"), host_network=host_network)
    variables(faults, path, container, known)
    mounts(faults, path, container, known)
    requirements(faults, f"{path}.resources", child(container, "resources"), claims)


def amounts(
    faults: Faults, path: str, found: Object, plain: frozenset[str] = CONTAINER_RESOURCES
) -> dict[str, Quantity]:
    """A map of resource names to amounts that are not negative; returns those that could be read.

    ``plain`` are the names without a domain that may stand there, besides huge pages.
    """
    read: dict[str, Quantity] = {}
    for name, spelled in sorted(found.items()):
        faults.check(f"{path}[{name}]", name, formats.qualified_name)
        if "/" not in name and name not in plain and not name.startswith("hugepages-"):
            faults.invalid(f"{path}[{name}]", name, "must be a standard resource type or fully qualified")
        try:
            amount = Quantity.parse(str(spelled))
        except ParseError as error:
            faults.invalid(f"{path}[{name}]", spelled, str(error))
            continue
        read[name] = amount
        if amount.sign() < 0:
            faults.invalid(f"{path}[{name}]", str(spelled), "must be greater than or equal to 0")
        elif "/" in name and not amount.is_whole:
            faults.invalid(f"{path}[{name}]", str(spelled), "must be an integer")
    return read


def requirements(faults: Faults, path: str, resources: Object, claims: frozenset[str]) -> None:
    """Limits, requests and claims of a container."""
    limits = amounts(faults, f"{path}.limits", child(resources, "limits"))
    requests = amounts(faults, f"{path}.requests", child(resources, "requests"))
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is None:
            if "/" in name and "kubernetes.io/" not in name.partition("/")[0] + "/":
                faults.required(f"{path}.limits", f"Limit must be set for non overcommitable resources: {name}")
            continue
        exact = "/" in name or name.startswith("hugepages-")
        if exact and amount != limit:
            faults.invalid(f"{path}.requests", amount.canonical(), f"must be equal to {name} limit of {limit}")
        elif amount > limit:
            faults.invalid(
                f"{path}.requests", amount.canonical(), f"must be less than or equal to {name} limit of {limit}"
            )
    _used_claims(faults, f"{path}.claims", children(resources, "claims"), claims)


def _used_claims(faults: Faults, path: str, items: list[Object], claims: frozenset[str]) -> None:
    seen: dict[str, set[str]] = {}
    for index, item in enumerate(items):
        at_item, name, request = f"{path}[{index}]", text(item, "name"), text(item, "request")
        if not name:
            faults.required(f"{at_item}.name")
            continue
        if request:
            faults.check(f"{at_item}.request", request, formats.dns_label)
        # Naming a whole claim and one of its requests is the same as naming the claim twice.
        before = seen.setdefault(name, set())
        if before and (not request or "" in before or request in before):
            faults.duplicate(at_item, f"{name}/{request}" if request else name)
        elif name not in claims:
            faults.not_found(at_item, name)
        before.add(request)


def _affinity(faults: Faults, path: str, affinity: Object) -> None:
    node = child(affinity, "nodeAffinity")
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    path = f"{path}.nodeAffinity"
    if required is not None:
        shared.node_selector(faults, f"{path}.requiredDuringSchedulingIgnoredDuringExecution", required)
    for index, item in enumerate(children(node, "preferredDuringSchedulingIgnoredDuringExecution")):
        at_item = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        weight = item.get("weight") or 0
        if not 1 <= weight <= 100:
            faults.invalid(f"{at_item}.weight", weight, "must be in the range 1-100")
        shared.node_selector_term(faults, f"{at_item}.preference", child(item, "preference"))


def tolerations(faults: Faults, path: str, items: list[Object]) -> None:
    """Tolerations of node taints."""
    for index, item in enumerate(items):
        at_item = f"{path}[{index}]"
        key, operator, effect = text(item, "key"), text(item, "operator"), text(item, "effect")
        if key:
            faults.check(f"{at_item}.key", key, formats.qualified_name)
        elif operator != "Exists":
            faults.invalid(
                f"{at_item}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        if item.get("tolerationSeconds") is not None and effect != "NoExecute":
            faults.invalid(f"{at_item}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        match operator:
            case "" | "Equal":
                faults.check(f"{at_item}.operator", text(item, "value"), formats.label_value)
            case "Exists":
                if item.get("value"):
                    faults.invalid(f"{at_item}.operator", item, "value must be empty when `operator` is 'Exists'")
            case "Gt" | "Lt":
                if not text(item, "value").removeprefix("-").isdigit():
                    faults.invalid(f"{at_item}.value", text(item, "value"), "must be an integer")
            case _:
                faults.not_supported(f"{at_item}.operator", operator, ("Equal", "Exists"))
        if effect and effect not in NODE_EFFECTS:
            faults.not_supported(f"{at_item}.effect", effect, NODE_EFFECTS)


def _gates(faults: Faults, path: str, items: list[Object]) -> None:
    for index, item in enumerate(items):
        faults.check(f"{path}[{index}].name", text(item, "name"), formats.qualified_name)
    faults.unique(path, [text(item, "name") for item in items], ".name")


def _spread(faults: Faults, path: str, items: list[Object]) -> None:
    for index, item in enumerate(items):
        at_item = f"{path}[{index}]"
        if (item.get("maxSkew") or 0) <= 0:
            faults.invalid(f"{at_item}.maxSkew", item.get("maxSkew", 0), "must be greater than zero")
        if not item.get("topologyKey"):
            faults.required(f"{at_item}.topologyKey", "can not be empty")
        else:
            faults.check(f"{at_item}.topologyKey", text(item, "topologyKey"), formats.qualified_name)
        action = text(item, "whenUnsatisfiable")
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            faults.not_supported(f"{at_item}.whenUnsatisfiable", action, ("DoNotSchedule", "ScheduleAnyway"))


def _scheduling_group(faults: Faults, path: str, group: Object) -> None:
    if not group.get("podGroupName"):
        faults.required(path, "exactly one of `podGroupName` is required")
    else:
        faults.check(f"{path}.podGroupName", text(group, "podGroupName"), formats.dns_subdomain)


# Updates.


def pod_update(faults: Faults, new: Object, old: Object) -> None:
    """What of a pod's spec may change once it exists."""
    spec, before = child(new, "spec"), child(old, "spec")
    if spec == before:
        return
    for field in ("containers", "initContainers"):
        if len(children(spec, field)) != len(children(before, field)):
            faults.forbidden(f"spec.{field}", "pod updates may not add or remove containers")
            return
    _gates_update(faults, spec, before)
    deadline, deadline_before = spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
    if deadline_before is not None and (deadline is None or deadline > deadline_before):
        faults.invalid("spec.activeDeadlineSeconds", deadline, "must be less than or equal to previous value")
    # Apply what is allowed to the stored spec; whatever differs then was not allowed.
    allowed = copy.deepcopy(before)
    for field in ("containers", "initContainers"):
        for container, changed in zip(children(allowed, field), children(spec, field), strict=True):
            container["image"] = changed.get("image")
            if not changed.get("image"):
                faults.required(f"spec.{field}[{children(spec, field).index(changed)}].image")
    _take(allowed, spec, "activeDeadlineSeconds", "schedulingGates")
    kept = {msgspec.json.encode(item, order="sorted") for item in children(spec, "tolerations")}
    if all(msgspec.json.encode(item, order="sorted") in kept for item in children(before, "tolerations")):
        _take(allowed, spec, "tolerations")
    grace = before.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        _take(allowed, spec, "terminationGracePeriodSeconds")
    if children(before, "schedulingGates"):
        _narrowing(faults, allowed, spec, before)
    if not same_meaning(allowed, spec):
        faults.forbidden("spec", _MUTABLE)


def _take(target: Object, source: Object, *fields: str) -> None:
    for field in fields:
        if source.get(field) is None:
            target.pop(field, None)
        else:
            target[field] = source[field]


def _gates_update(faults: Faults, spec: Object, before: Object) -> None:
    known = [text(gate, "name") for gate in children(before, "schedulingGates")]
    added = [name for name in (text(gate, "name") for gate in children(spec, "schedulingGates")) if name not in known]
    if added:
        faults.forbidden("spec.schedulingGates", f"only deletion is allowed, but found new scheduling gates {added}")


def _narrowing(faults: Faults, allowed: Object, spec: Object, before: Object) -> None:
    """While a pod is gated, the set of nodes it may use can get smaller."""
    selector, selector_before = child(spec, "nodeSelector"), child(before, "nodeSelector")
    if all(selector.get(key) == value for key, value in selector_before.items()):
        _take(allowed, spec, "nodeSelector")
    required = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = children(spec, *required, "nodeSelectorTerms")
    terms_before = children(before, *required, "nodeSelectorTerms")
    kept = len(terms) == len(terms_before) and all(map(_narrower, terms, terms_before))
    if at(before, *required) is not None and not kept:
        faults.invalid(
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
            None,
            "only additions are allowed (no mutations or deletions)",
        )
        return
    others: dict[str, Any] = {k: v for k, v in child(spec, "affinity").items() if k != "nodeAffinity"}
    others_before = {k: v for k, v in child(before, "affinity").items() if k != "nodeAffinity"}
    if same_meaning(others, others_before):
        _take(allowed, spec, "affinity")


def _narrower(term: Object, before: Object) -> bool:
    return all(
        item in children(term, field)
        for field in ("matchExpressions", "matchFields")
        for item in children(before, field)
    )


def template_metadata(faults: Faults, path: str, template: Object) -> None:
    """Labels of a pod template."""
    check_labels(faults, child(template, "metadata", "labels"), f"{path}.metadata.labels")
    for finalizer in texts(template, "metadata", "finalizers"):
        faults.check(f"{path}.metadata.finalizers", finalizer, formats.qualified_name)
