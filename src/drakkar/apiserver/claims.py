"""Who may write which part of a claim's status.

Beyond the right to ``resourceclaims/status``: an allocation or its consumers need the right to
``resourceclaims/binding``, and what a driver says about a device needs the right to
``resourceclaims/driver`` under that driver's name.

Source: spec/api.md 6.2 and 6.3.
"""

from __future__ import annotations

from typing import Any

from drakkar.api.errors import FieldError
from drakkar.api.tree import at, children, text, texts
from drakkar.apiserver import status
from drakkar.apiserver.auth import User
from drakkar.apiserver.rbac import Authorizer
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]

_GROUP, _RESOURCE = "resource.k8s.io", "resourceclaims"
#: In ``User.extra``: the node a service account's token is bound to.
NODE_KEY = "authentication.kubernetes.io/node-name"


def check_status_write(authorizer: Authorizer, user: User, verb: str, old: Object, new: Object) -> None:
    """StatusError 422 when the user may not change this part of the status; ``verb`` is update or patch."""
    errors: list[FieldError] = []
    before, after = old.get("status") or {}, new.get("status") or {}
    rebound = any((before.get(field) or None) != (after.get(field) or None) for field in ("allocation", "reservedFor"))
    if rebound and not authorizer.allows(user, verb, _GROUP, _RESOURCE, "binding", "", ""):
        errors.append(_refused(user, verb, "binding", ""))
    namespace = text(new, "metadata", "namespace")
    # Entries that go with their allocation are not the driver's to keep.
    released = bool(before.get("allocation")) and not after.get("allocation")
    if not released:
        for driver in sorted(_changed_drivers(before, after)):
            verbs = [f"arbitrary-node:{verb}"]
            if _on_own_node(user, after):
                verbs.insert(0, f"associated-node:{verb}")
            if not any(authorizer.allows(user, v, _GROUP, _RESOURCE, "driver", namespace, driver) for v in verbs):
                errors.append(_refused(user, verbs[0], "driver", driver))
    if errors:
        raise StatusError(status.invalid(_GROUP, "ResourceClaim", text(new, "metadata", "name"), errors))


def _refused(user: User, verb: str, subresource: str, name: str) -> FieldError:
    what = f'"{name}" of resource "{_RESOURCE}/{subresource}"' if name else f'resource "{_RESOURCE}/{subresource}"'
    detail = f'changing this requires permission: User "{user.name}" cannot {verb} {what} in API group "{_GROUP}"'
    return FieldError(type="FieldValueForbidden", field="status", detail=detail)


def _changed_drivers(before: Object, after: Object) -> set[str]:
    def keyed(status_: Object) -> dict[tuple[Any, ...], Object]:
        devices: list[Object] = status_.get("devices") or []
        return {tuple(device.get(key) for key in ("driver", "pool", "device", "shareID")): device for device in devices}

    old, new = keyed(before), keyed(after)
    return {str(key[0]) for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def _on_own_node(user: User, status_: Object) -> bool:
    """Whether the user acts from the one node that the allocation is for."""
    nodes = dict(user.extra).get(NODE_KEY, ())
    terms = children(at(status_, "allocation", "nodeSelector"), "nodeSelectorTerms")
    if len(nodes) != 1 or len(terms) != 1 or children(terms[0], "matchExpressions"):
        return False
    fields = children(terms[0], "matchFields")
    return (
        len(fields) == 1
        and fields[0].get("key") == "metadata.name"
        and fields[0].get("operator") == "In"
        and texts(fields[0], "values") == list(nodes)
    )
