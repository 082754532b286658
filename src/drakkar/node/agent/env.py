"""Environment of a container: values, references to the pod, its claims of configuration, and ``$(NAME)`` expansion."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from drakkar.api.errors import ApiError
from drakkar.api.kinds import CONFIGMAP, SECRET
from drakkar.api.meta import Object
from drakkar.api.objects import namespace_of
from drakkar.api.quantity import Quantity
from drakkar.api.tree import at, child, children, text
from drakkar.client.client import Client
from drakkar.node.agent.runtime import ContainerProblem

_REFERENCE = re.compile(r"\$\$|\$\(([^()\s]*)\)")
_BAD_CONFIG = "CreateContainerConfigError"


class NodeFacts(Protocol):
    """What containers are told about where they run."""

    @property
    def allocatable(self) -> Mapping[str, str]: ...

    @property
    def api_host(self) -> tuple[str, int]: ...


def expand(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """``$(NAME)`` replaced by its value, ``$$`` by ``$``; an unknown name stays as it stands."""

    def value(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return env.get(match.group(1), match.group(0))

    return [_REFERENCE.sub(value, word) for word in words]


def split(entries: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` entries as a mapping; the last of a name counts."""
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


class Configs:
    """ConfigMaps and Secrets of one pod, each read once."""

    def __init__(self, client: Client, namespace: str):
        self._client = client
        self._namespace = namespace
        self._read: dict[tuple[str, str], dict[str, bytes] | None] = {}

    async def data(self, kind: str, name: str) -> dict[str, bytes] | None:
        """The content of a ConfigMap or Secret, None when there is none. Raises ContainerProblem."""
        key = (kind, name)
        if key not in self._read:
            try:
                obj = await self._client.get(SECRET if kind == "Secret" else CONFIGMAP, name, self._namespace)
            except ApiError as error:
                if error.code != 404:
                    raise ContainerProblem(_BAD_CONFIG, f"{kind} {self._namespace}/{name}: {error}") from None
                self._read[key] = None
            else:
                self._read[key] = _content(kind, obj)
        return self._read[key]


def _content(kind: str, obj: Object) -> dict[str, bytes]:
    if kind == "Secret":
        return {name: base64.b64decode(value or "") for name, value in child(obj, "data").items()}
    plain = {name: value.encode() for name, value in child(obj, "data").items()}
    return plain | {name: base64.b64decode(value or "") for name, value in child(obj, "binaryData").items()}


async def environment(
    pod: Object, container: Object, configs: Configs, facts: NodeFacts, image_env: Sequence[str] = ()
) -> dict[str, str]:
    """The variables, those of the image first. Raises ContainerProblem for a reference that leads nowhere."""
    env = split(image_env)
    env["HOSTNAME"] = text(pod, "spec", "hostname") or pod["metadata"]["name"]
    host, port = facts.api_host
    env |= {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
    }
    for source in children(container, "envFrom"):
        prefix = source.get("prefix") or ""
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            reference = source.get(field)
            if reference:
                data = await _all(configs, kind, reference)
                env |= {f"{prefix}{name}": value.decode("utf-8", "replace") for name, value in data.items()}
    for entry in children(container, "env"):
        source = entry.get("valueFrom")
        if source is None:
            env[entry["name"]] = expand([entry.get("value") or ""], env)[0]
        else:
            value = await _value(pod, container, source, configs, facts)
            if value is not None:
                env[entry["name"]] = value
    return env


async def _all(configs: Configs, kind: str, reference: Object) -> dict[str, bytes]:
    data = await configs.data(kind, reference["name"])
    if data is None and not reference.get("optional"):
        raise ContainerProblem(_BAD_CONFIG, f'{kind.lower()} "{reference["name"]}" not found')
    return data or {}


async def _value(pod: Object, container: Object, source: Object, configs: Configs, facts: NodeFacts) -> str | None:
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        reference = source.get(field)
        if reference:
            data = await configs.data(kind, reference["name"])
            if data is not None and reference["key"] in data:
                return data[reference["key"]].decode("utf-8", "replace")
            if reference.get("optional"):
                return None
            where = f"{kind} {namespace_of(pod)}/{reference['name']}"
            raise ContainerProblem(_BAD_CONFIG, f"couldn't find key {reference['key']} in {where}")
    if source.get("fieldRef"):
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if source.get("resourceFieldRef"):
        return resource_value(pod, container, source["resourceFieldRef"], facts)
    raise ContainerProblem(_BAD_CONFIG, f"a variable comes from {', '.join(source)}, which this agent cannot read")


_FIELDS = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "metadata.uid": ("metadata", "uid"),
    "spec.nodeName": ("spec", "nodeName"),
    "spec.serviceAccountName": ("spec", "serviceAccountName"),
    "status.hostIP": ("status", "hostIP"),
    "status.podIP": ("status", "podIP"),
}
_MAP_KEY = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


def field_value(pod: Object, path: str) -> str:
    """A field of the pod as variables and files show it. Raises ContainerProblem."""
    if path in _FIELDS:
        return text(pod, *_FIELDS[path])
    if path in ("status.hostIPs", "status.podIPs"):
        return ",".join(entry["ip"] for entry in children(pod, *path.split(".")))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = sorted(child(pod, *path.split(".")).items())
        return "\n".join(f'{key}="{_escaped(value)}"' for key, value in entries)
    match = _MAP_KEY.fullmatch(path)
    if match:
        return child(pod, "metadata", match.group(1)).get(match.group(2), "")
    raise ContainerProblem(_BAD_CONFIG, f"fieldPath {path!r} cannot be read")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(pod: Object, container: Object, reference: Object, facts: NodeFacts) -> str:
    """A request or limit of a container, in units of ``divisor`` (1 unless given), rounded up."""
    name = reference.get("containerName")
    if name:
        everyone = [*children(pod, "spec", "containers"), *children(pod, "spec", "initContainers")]
        container = next((each for each in everyone if each["name"] == name), {})
    which, _, resource = reference["resource"].partition(".")
    amount = at(container, "resources", which, resource)
    if amount is None and which == "limits":
        # Without a limit a container may use all that the node has.
        amount = facts.allocatable.get(resource)
    if amount is None:
        return "0"
    divisor = Quantity.parse(str(reference.get("divisor") or "1")) or Quantity.from_int(1)
    return str(-(-Quantity.parse(str(amount)).nanos // divisor.nanos))
