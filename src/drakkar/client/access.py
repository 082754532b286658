"""Rights that a server says are missing: named, with the rule to add, until they are there; and credentials, too.

API servers refuse what no role allows in one form (403; 422 for the rights that only the status of claims asks for):
``User "x" cannot list resource "pods" in API group "" at the cluster scope``. Where the admission plugin
OwnerReferencesPermissionEnforcement is on, it asks who makes an object for its owner for a right of the owner's, and
names neither. Other refusals, of quotas or admission, are nobody's missing right.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.exposition import family
from drakkar.api.names import NODE_LEASE_NAMESPACE
from drakkar.api.wire import Request
from drakkar.client.transport import wants_stream

logger = logging.getLogger(__name__)

#: Seconds after which a right that is still missing is named again.
REMIND = 300.0
#: Seconds after which a right counts as missing no longer, unless it is refused again: back-offs are shorter.
FORGET = 120.0

_FORM = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
#: Of OwnerReferencesPermissionEnforcement: who lets an owner wait for what it owns needs a right to its finalizers.
_OWNER = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on"
_NAME = re.compile(r'\S+ "(?P<name>[^"]+)" is forbidden: User')


@dataclass(frozen=True, slots=True)
class Access:
    """One right that ``user`` lacks; ``resource`` with its subresource, ``namespace`` empty for a right in all."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    user: str = ""
    #: Of the object that was asked for, where the server says it.
    name: str = ""

    @property
    def rule(self) -> str:
        """The rule of a Role or ClusterRole that gives it, as YAML in one line."""
        return f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"], verbs: ["{self.verb}"]}}'

    def __str__(self) -> str:
        group = f" of {self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}" + (f" in namespace {self.namespace}" if self.namespace else "")


def missing_right(error: ApiError) -> Access | None:
    """The right that a refused request lacks; None when it was refused for another reason."""
    found = _FORM.search(str(error)) if error.code in (403, 422) else None
    if found is None:
        return None
    named = _NAME.match(str(error))
    return Access(
        *(found["verb"], found["group"], found["resource"], found["namespace"] or "", found["user"]),
        name=named["name"] if named is not None else "",
    )


def _right_of_owner(request: Request, error: ApiError) -> Access | None:
    """The right to the owner's finalizers that an object lacks which was to be made or changed."""
    if error.code != 403 or _OWNER not in str(error):
        return None
    try:
        references = msgspec.json.decode(request.body)["metadata"]["ownerReferences"]
        owner = next(reference for reference in references if reference.get("blockOwnerDeletion"))
        # The plural of every kind that owns anything here.
        return Access("update", owner["apiVersion"].rpartition("/")[0], f"{owner['kind'].lower()}s/finalizers")
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError, StopIteration):
        return None


@dataclass(slots=True)
class _Missing:
    right: Access
    #: The kind of request that was refused.
    asked: tuple[str, ...]
    last: float
    named: float


class Rights:
    """What one client has been refused; ``role`` is the name of the component's roles in the chart and ``deploy/``.

    There a role has the name of its service account, which therefore goes before ``role``: releases have names.
    ``lasting``: whether the client's owner tries again, or is a command that ends with the refusal.
    """

    def __init__(self, clock: Clock, role: str = "", *, lasting: bool = True):
        self._lasting = lasting
        self._clock = clock
        self._role = role
        #: By verb, group and resource: one role gives a right in all namespaces.
        self._missing: dict[tuple[str, str, str], _Missing] = {}
        #: What the server said about our credentials, and when that was told; empty: they are good.
        self._stranger = ""
        self._told = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._missing) or bool(self._stranger)

    def refused(self, request: Request, error: ApiError) -> None:
        """Takes note of a refusal, and says what it lacks if that is new or long ago."""
        now = self._clock.monotonic()
        if error.code == 401:
            if now - self._told >= REMIND or not self._stranger:
                self._told = now
                logger.warning("%s", error)
            self._stranger = str(error)
            return
        right = missing_right(error) or _right_of_owner(request, error)
        if right is None:
            return
        key = right.verb, right.group, right.resource
        known = self._missing.get(key)
        if known is None:
            known = self._missing[key] = _Missing(right, _asked(request), now, now - REMIND)
        known.right, known.last = right, now
        if now - known.named >= REMIND:
            known.named = now
            logger.warning("%s", self.describe(right))

    def answered(self, request: Request) -> None:
        """Takes note that a request was allowed."""
        if self._stranger:
            self._stranger = ""
            logger.warning("the server accepts our credentials again")
        asked, namespace = _asked(request), _namespace(request)
        for key, known in [*self._missing.items()]:
            if known.asked == asked and known.right.namespace in ("", namespace):
                del self._missing[key]
                logger.warning("allowed now: %s", known.right)

    def missing(self) -> list[Access]:
        """The rights that are missing as far as is known."""
        now = self._clock.monotonic()
        for key in [key for key, known in self._missing.items() if now - known.last > FORGET]:
            del self._missing[key]
        return [known.right for known in self._missing.values()]

    def describe(self, right: Access) -> str:
        """One sentence: what is not allowed, and what has to be added where."""
        # The lease that replicas elect by and where the guard's Service leads are all that parts have a right to in
        # one namespace only.
        guard = right.resource == "endpointslices" or (right.resource == "services" and right.verb == "get")
        kind = (
            "Role"
            if guard or (right.resource == "leases" and right.namespace not in ("", NODE_LEASE_NAMESPACE))
            else "ClusterRole"
        )
        where = f" in namespace {right.namespace}" if kind == "Role" and right.namespace else ""
        name = right.user.rpartition(":")[2] if right.user.startswith("system:serviceaccount:") else self._role
        if guard and right.name:
            # That role has the name of the Service.
            name = right.name
        role = f"the {kind} {name}{where}" if name else f"a {kind}{where}"
        whom = f"user {right.user}" if right.user else "the user of this component"
        again = "; tried again until it is there" if self._lasting else ""
        return f"not allowed to {right}: {role} needs the rule {right.rule} for {whom}{again}"

    def text(self) -> str:
        """All that is missing, a sentence each; empty when nothing is."""
        rights = [self.describe(right) for right in self.missing()]
        return "\n".join([*([self._stranger] if self._stranger else []), *rights])

    def metrics_text(self) -> str:
        """Prometheus' text form."""
        name = "drakkar_missing_rights"
        lines = family(name, "gauge", "Rights that the API server says this component lacks.")
        for right in self.missing():
            lines.append(f'{name}{{verb="{right.verb}",group="{right.group}",resource="{right.resource}"}} 1')
        return "\n".join(lines) + "\n"


def _parts(request: Request) -> list[str]:
    return request.path.strip("/").split("/")


def _namespace(request: Request) -> str:
    parts = _parts(request)
    return parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-2] else ""


def _asked(request: Request) -> tuple[str, ...]:
    """The kind of a request, without names: equal for requests that need the same rights."""
    parts = _parts(request)
    head = 2 if parts[0] == "api" else 3
    rest = parts[head:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    named = "one" if len(rest) > 1 else "all"
    return (request.method, str(wants_stream(request)), *parts[:head], *rest[:1], named, *rest[2:])
