"""From a request for a pod's streams to the path at its node's agent: pure, with upstream's refusals."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from drakkar.api.errors import FieldError
from drakkar.api.formats import dns_subdomain
from drakkar.api.tree import at, child, children, text
from drakkar.apiserver import status
from drakkar.apiserver.status import StatusError
from drakkar.streaming import channels

Object = dict[str, Any]
Query = Sequence[tuple[str, str]]

#: Types of a node's addresses in the order of preference. Host names come last, since few networks know them.
_ADDRESSES = ("InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP", "Hostname")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a conversation goes: the agent's URL, and the subprotocols it may be held in."""

    url: str
    protocols: tuple[str, ...] = ()
    #: Streams that the client asked for: stdin, stdout, stderr, and whether it has a terminal.
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


def endpoint(node: Object) -> str:
    """The agent's URL without a path. StatusError 500 when the node does not say, or says something else.

    The node wrote this itself, and what follows a host in a URL would be a request to somebody else.
    """
    name = node["metadata"]["name"]
    port = at(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port")
    if not port:
        why = f"node {name} has no agent that serves streams (status.daemonEndpoints.kubeletEndpoint is not set)"
        raise StatusError(status.internal(why))
    known = {entry.get("type"): entry.get("address") for entry in children(node, "status", "addresses")}
    host = next((known[kind] for kind in _ADDRESSES if known.get(kind)), None)
    if host is None:
        raise StatusError(status.internal(f"node {name} has no address (status.addresses)"))
    if not _is_host(host) or type(port) is not int or not 0 < port < 65536:
        raise StatusError(status.internal(f"node {name}: {host!r} with port {port!r} is not the address of an agent"))
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _is_host(text: object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        return ipaddress.ip_address(text) is not None and "%" not in text
    except ValueError:
        return not dns_subdomain(text.lower())


def container_of(pod: Object, asked: str) -> str:
    """The container that is meant. StatusError 400 when it cannot be told or there is none of that name."""
    name = pod["metadata"]["name"]
    groups = {
        key: [entry["name"] for entry in children(pod, "spec", key)]
        for key in ("containers", "initContainers", "ephemeralContainers")
    }
    if not asked:
        if len(groups["containers"]) == 1:
            return groups["containers"][0]
        message = (
            f"a container name must be specified for pod {name}, choose one of: [{' '.join(groups['containers'])}]"
        )
        if groups["initContainers"]:
            message += f" or one of the init containers: [{' '.join(groups['initContainers'])}]"
        raise StatusError(status.bad_request(message))
    if not any(asked in names for names in groups.values()):
        raise StatusError(status.bad_request(f"container {asked} is not valid for pod {name}"))
    return asked


def log_path(pod: Object, query: Query) -> str:
    """Path and query for ``pods/log``. StatusError 400 or 422."""
    given = dict(query)
    faults: list[FieldError] = []
    passed: dict[str, str] = {}
    for field, least, words in (
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
        ("limitBytes", 1, "must be greater than 0"),
    ):
        if given.get(field):
            value = _number(field, given[field])
            if value < least:
                faults.append(FieldError(type="FieldValueInvalid", field=field, value=value, detail=words))
            passed[field] = str(value)
    if given.get("sinceTime"):
        passed["sinceTime"] = given["sinceTime"]
        if "sinceSeconds" in passed:
            detail = "at most one of `sinceTime` or `sinceSeconds` may be specified"
            faults.append(FieldError(type="FieldValueForbidden", field="", detail=detail))
    stream = given.get("stream") or "All"
    if stream not in ("All", "Stdout", "Stderr"):
        detail = 'supported values: "All", "Stderr", "Stdout"'
        faults.append(FieldError(type="FieldValueNotSupported", field="stream", value=stream, detail=detail))
    elif stream != "All":
        passed["stream"] = stream
        if "tailLines" in passed:
            detail = "`tailLines` and specific `stream` are mutually exclusive for now"
            faults.append(FieldError(type="FieldValueForbidden", field="", detail=detail))
    if faults:
        raise StatusError(status.invalid("", "PodLogOptions", pod["metadata"]["name"], faults))
    for field in ("follow", "previous", "timestamps"):
        if _true(given.get(field, "")):
            passed[field] = "true"
    container = container_of(pod, given.get("container", ""))
    return _path("containerLogs", pod, container, list(passed.items()))


def exec_target(pod: Object, query: Query, base: str, *, attach: bool) -> Target:
    """For ``pods/exec`` and ``pods/attach``. StatusError 400."""
    given = dict(query)
    container = container_of(pod, given.get("container", ""))
    command = [] if attach else [value for key, value in query if key == "command"]
    if not attach and not command:
        raise StatusError(status.bad_request("a command must be specified"))
    stdin, stdout, tty = (_true(given.get(key, "")) for key in ("stdin", "stdout", "tty"))
    # A terminal has one output.
    stderr = _true(given.get("stderr", "")) and not tty
    if not (stdin or stdout or stderr):
        raise StatusError(status.bad_request("you must specify at least 1 of stdin, stdout, stderr"))
    flags = (("input", stdin), ("output", stdout), ("error", stderr), ("tty", tty))
    pairs = [*((key, "1") for key, wanted in flags if wanted), *(("command", word) for word in command)]
    path = _path("attach" if attach else "exec", pod, container, pairs)
    return Target(base + path, channels.SUBPROTOCOLS, stdin, stdout, stderr, tty)


def forward_target(pod: Object, base: str) -> Target:
    """For ``pods/portforward``; the ports are named by the streams."""
    return Target(base + _path("portForward", pod, "", []), (channels.TUNNEL,))


def node_of(pod: Object) -> str:
    """The pod's node. StatusError 400 before it has one."""
    node = text(pod, "spec", "nodeName")
    if not node:
        raise StatusError(status.bad_request(f"pod {pod['metadata']['name']} does not have a host assigned"))
    return node


def _path(word: str, pod: Object, container: str, pairs: Query) -> str:
    meta = child(pod, "metadata")
    parts = [word, meta["namespace"], meta["name"], *([container] if container else [])]
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(list(pairs))}" if pairs else path


def _number(field: str, given: str) -> int:
    digits = given[1:] if given[:1] in ("-", "+") else given
    if len(digits) > 18 or not digits.isascii() or not digits.isdigit():
        raise StatusError(status.bad_request(f"{field}: {given!r} is not a whole number"))
    return int(given)


def _true(given: str) -> bool:
    return given.lower() in ("1", "true", "t")
