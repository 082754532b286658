"""Validation of a container's variables and ports.

Source: API reference of EnvVar, EnvFromSource and ContainerPort; answers of kube-apiserver 1.37.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from drakkar.api import formats
from drakkar.api.core.validation.references import field_ref, resource_ref
from drakkar.api.core.validation.volumes import Volumes, file_path
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.resource.validation import shared
from drakkar.api.tree import child, children, text

PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
PORT_MAX: Final = 65535
#: Fields whose value is known when a container starts and that a variable can hold.
_VARIABLE_FIELDS: Final = frozenset((
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP",
    "status.hostIPs", "status.podIP", "status.podIPs",
))  # fmt: skip


def variables(faults: Faults, path: str, container: Object, known: Volumes) -> None:
    """Faults of a container's ``env`` and ``envFrom``."""
    for index, variable in enumerate(children(container, "env")):
        at_item = f"{path}.env[{index}]"
        shared.named(faults, f"{at_item}.name", text(variable, "name"), formats.variable_name)
        if variable.get("valueFrom") is not None:
            _value_from(faults, f"{at_item}.valueFrom", child(variable, "valueFrom"), bool(variable.get("value")))
            file = child(variable, "valueFrom", "fileKeyRef")
            if file and text(file, "volumeName") not in known:
                faults.not_found(f"{at_item}.valueFrom.fileKeyRef.volumeName", text(file, "volumeName"))
    for index, source in enumerate(children(container, "envFrom")):
        at_item = f"{path}.envFrom[{index}]"
        if source.get("prefix"):
            faults.check(f"{at_item}.prefix", text(source, "prefix"), formats.variable_name)
        given = [field for field in ("configMapRef", "secretRef") if source.get(field) is not None]
        for field in given:
            shared.named(faults, f"{at_item}.{field}.name", text(source, field, "name"), formats.dns_subdomain)
        if not given:
            faults.invalid(f"{path}.envFrom", "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(given) > 1:
            faults.invalid(f"{path}.envFrom", "", "may not have more than one field specified at a time")


def _value_from(faults: Faults, path: str, source: Object, has_value: bool) -> None:
    given = [field for field in _VALUE_SOURCES if source.get(field) is not None]
    for field in given:
        _VALUE_SOURCES[field](faults, f"{path}.{field}", child(source, field))
    if not given:
        known = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        faults.invalid(path, "", f"must specify one of: {known}")
    elif has_value:
        faults.invalid(path, "", "may not be specified when `value` is not empty")
    elif len(given) > 1:
        faults.invalid(path, "", "may not have more than one field specified at a time")


def _field(faults: Faults, path: str, reference: Object) -> None:
    field_ref(faults, path, reference, _VARIABLE_FIELDS)


def _resource(faults: Faults, path: str, reference: Object) -> None:
    resource_ref(faults, path, reference, needs_container=False)


def _key(faults: Faults, path: str, reference: Object) -> None:
    faults.check(f"{path}.name", text(reference, "name"), formats.dns_subdomain)
    shared.named(faults, f"{path}.key", text(reference, "key"), formats.config_key)


def _file(faults: Faults, path: str, reference: Object) -> None:
    shared.named(faults, f"{path}.key", text(reference, "key"), formats.variable_name)
    shared.named(faults, f"{path}.volumeName", text(reference, "volumeName"), formats.dns_label)
    file_path(faults, f"{path}.path", text(reference, "path"))


_VALUE_SOURCES: Final[Mapping[str, Callable[[Faults, str, Object], None]]] = {
    "fieldRef": _field,
    "resourceFieldRef": _resource,
    "configMapKeyRef": _key,
    "secretKeyRef": _key,
    "fileKeyRef": _file,
}


def ports(faults: Faults, path: str, items: list[Object], *, host_network: bool) -> None:
    """Faults of a container's ports."""
    names: set[str] = set()
    for index, port in enumerate(items):
        at_item, name = f"{path}[{index}]", text(port, "name")
        if name and faults.check(f"{at_item}.name", name, formats.port_name):
            if name in names:
                faults.duplicate(f"{at_item}.name", name)
            names.add(name)
        inside, outside = port.get("containerPort") or 0, port.get("hostPort") or 0
        if not inside:
            faults.required(f"{at_item}.containerPort")
        for field, number in (("containerPort", inside), ("hostPort", outside)):
            if number and not 1 <= number <= PORT_MAX:
                faults.invalid(f"{at_item}.{field}", number, f"must be between 1 and {PORT_MAX}, inclusive")
        if host_network and outside != inside:
            faults.invalid(f"{at_item}.hostPort", outside, "must match `containerPort` when `hostNetwork` is true")
        protocol = text(port, "protocol")
        if not protocol:
            faults.required(f"{at_item}.protocol")
        elif protocol not in PROTOCOLS:
            faults.not_supported(f"{at_item}.protocol", protocol, PROTOCOLS)


def host_ports(faults: Faults, containers: Mapping[str, Object]) -> None:
    """Containers, by their path, that run at the same time must not ask for the same port of the host."""
    taken: set[str] = set()
    for path, container in containers.items():
        for index, port in enumerate(children(container, "ports")):
            if not port.get("hostPort"):
                continue
            key = f"{text(port, 'protocol')}/{text(port, 'hostIP')}/{port['hostPort']}"
            if key in taken:
                faults.duplicate(f"{path}.ports[{index}].hostPort", key)
            taken.add(key)
