"""Validation of a container's probes and life-cycle hooks.

Source: API reference of Probe and Lifecycle; answers of kube-apiserver 1.37.
"""

from __future__ import annotations

import re
from typing import Any, Final

from drakkar.api import formats
from drakkar.api.core.validation.environment import PORT_MAX
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.tree import child, children, text

#: In which order handlers are looked at: all after the first are too many.
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_SCHEMES: Final = ("HTTP", "HTTPS")
_HEADER: Final = "[-A-Za-z0-9]+"
_HEADER_TEXT: Final = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
    f"validation is '{_HEADER}')"
)
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_NUMBERS: Final = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")


def probes(faults: Faults, path: str, container: Object, grace: int) -> None:
    """Faults of probes and hooks of a container that keeps running; ``grace`` of its pod is in seconds."""
    for hook in ("postStart", "preStop"):
        if child(container, "lifecycle").get(hook) is not None:
            _handler(faults, f"{path}.lifecycle.{hook}", child(container, "lifecycle", hook), grace)
    for field in _PROBES:
        if container.get(field) is not None:
            _probe(faults, f"{path}.{field}", child(container, field), may_end=field != "readinessProbe")


def no_probes(faults: Faults, path: str, container: Object) -> None:
    """A container that only has to end has neither probes nor hooks."""
    for field in ("lifecycle", *_PROBES):
        if container.get(field) is not None:
            faults.forbidden(f"{path}.{field}", "may not be set for init containers without restartPolicy=Always")


def _probe(faults: Faults, path: str, probe: Object, *, may_end: bool) -> None:
    """``may_end``: a probe that ends the container when it fails."""
    _handler(faults, path, probe, 0)
    for field in _NUMBERS:
        if (probe.get(field) or 0) < 0:
            faults.invalid(f"{path}.{field}", probe[field], "must be greater than or equal to 0")
    grace, successes = probe.get("terminationGracePeriodSeconds"), probe.get("successThreshold")
    if may_end and successes is not None and successes != 1:
        faults.invalid(f"{path}.successThreshold", successes, "must be 1")
    if may_end and grace is not None and grace <= 0:
        faults.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")
    if not may_end and grace is not None:
        faults.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")


def _handler(faults: Faults, path: str, holder: Object, grace: int) -> None:
    given = [field for field in _HANDLERS if holder.get(field) is not None]
    if not given:
        faults.required(path, "must specify a handler type")
        return
    for extra in given[1:]:
        faults.forbidden(f"{path}.{extra}", "may not specify more than 1 handler type")
    kind, action = given[0], child(holder, given[0])
    at_action = f"{path}.{kind}"
    match kind:
        case "exec":
            if not action.get("command"):
                faults.required(f"{at_action}.command")
        case "sleep":
            seconds = action.get("seconds") or 0
            if not 0 <= seconds <= grace:
                detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
                faults.invalid(at_action, seconds, detail)
        case "httpGet":
            _http_get(faults, at_action, action)
        case _:
            _port(faults, f"{at_action}.port", action.get("port") or 0)


def _http_get(faults: Faults, path: str, action: Object) -> None:
    _port(faults, f"{path}.port", action.get("port", 0))
    scheme = text(action, "scheme")
    if scheme not in _SCHEMES:
        faults.not_supported(f"{path}.scheme", scheme, _SCHEMES)
    for header in children(action, "httpHeaders"):
        if not re.fullmatch(_HEADER, text(header, "name")):
            faults.invalid(f"{path}.httpHeaders", text(header, "name"), _HEADER_TEXT)


def _port(faults: Faults, path: str, port: Any) -> None:
    """A number, or the name of a port of the container."""
    if isinstance(port, str):
        faults.check(path, port, formats.port_name)
    elif not 1 <= port <= PORT_MAX:
        faults.invalid(path, port, f"must be between 1 and {PORT_MAX}, inclusive")
