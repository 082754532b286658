"""Who may do what: fixed rules for the parts of a plane, RBAC objects for everybody else.

``system:masters`` may everything. The parts (scheduler, controllers, nodes, drivers) have rules
in this module, because a plane has to run before anybody could have written roles. All other
subjects get what Role, ClusterRole and their bindings grant; rules are compiled per subject
and thrown away when one of those objects changes. A node may only write what is its own.

Nobody hands out more than is his own: rights that a role gets, or a binding gives, have to be held by
the user who writes it, unless he has the verb ``escalate`` or ``bind``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drakkar.api.selectors import FieldSelector, LabelSelector
from drakkar.api.tree import child, children
from drakkar.apiserver import noderights, status
from drakkar.apiserver.auth import MASTERS, User
from drakkar.apiserver.cache import State
from drakkar.apiserver.routes import RequestInfo
from drakkar.apiserver.status import StatusError

RBAC = "rbac.authorization.k8s.io"
CERTIFICATES = "certificates.k8s.io"
_TABLES = tuple(f"/{RBAC}/{plural}/" for plural in ("roles", "rolebindings", "clusterroles", "clusterrolebindings"))

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
CHANGE = ("update", "patch")


@dataclass(frozen=True, slots=True)
class Rule:
    """``policyrule`` of RBAC: any of the groups, resources and verbs; no names means all."""

    groups: frozenset[str]
    resources: frozenset[str]
    verbs: frozenset[str]
    names: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()

    def allows(self, verb: str, group: str, resource: str, subresource: str, name: str) -> bool:
        """Whether the rule grants this."""
        if verb not in self.verbs and "*" not in self.verbs:
            return False
        if group not in self.groups and "*" not in self.groups:
            return False
        if self.names and name not in self.names:
            return False
        wanted = f"{resource}/{subresource}" if subresource else resource
        return (
            wanted in self.resources
            or "*" in self.resources
            or (subresource != "" and f"*/{subresource}" in self.resources)
        )

    def allows_path(self, verb: str, path: str) -> bool:
        """The same for a path that is no resource."""
        if verb not in self.verbs and "*" not in self.verbs:
            return False
        return any(path == known or (known.endswith("*") and path.startswith(known[:-1])) for known in self.paths)


def _rule(group: str, resources: str, verbs: Iterable[str]) -> Rule:
    return Rule(frozenset(group.split("|")), frozenset(resources.split()), frozenset(verbs))


_EVENTS = _rule("|events.k8s.io", "events", ("create", "patch", "update"))
_LEASES = _rule("coordination.k8s.io", "leases", ("get", "list", "watch", "create", "update", "patch"))
#: All that a decision may depend on; no secrets.
_READ_CLUSTER = (
    _rule("", "nodes pods namespaces services persistentvolumes persistentvolumeclaims", READ),
    _rule("", "replicationcontrollers configmaps events resourcequotas limitranges", READ),
    _rule("apps|batch|policy|storage.k8s.io|resource.k8s.io|scheduling.k8s.io|coordination.k8s.io", "*", READ),
    _rule("node.k8s.io|discovery.k8s.io|lifecycle.k8s.io", "*", READ),
)
_DRA = "resource.k8s.io"

_SCHEDULER = (
    *_READ_CLUSTER,
    _EVENTS,
    _LEASES,
    _rule("", "pods", ("delete", *CHANGE)),
    _rule("", "pods/status", CHANGE),
    _rule("", "pods/binding bindings", ("create",)),
    _rule("", "pods/eviction", ("create",)),
    _rule(_DRA, "resourceclaims", ("create", "delete", *CHANGE)),
    _rule(_DRA, "resourceclaims/status resourceclaims/binding", CHANGE),
    _rule("scheduling.k8s.io", "podgroups podgroups/status compositepodgroups compositepodgroups/status", CHANGE),
    _rule("", "persistentvolumes persistentvolumeclaims", CHANGE),
)

#: The right to what any driver says about devices, on whatever node they are.
_ARBITRARY_NODE = tuple(f"arbitrary-node:{verb}" for verb in CHANGE)
#: Everything but handing out rights.
_CONTROLLERS = (
    _rule("*", "*", (*READ, *WRITE, *_ARBITRARY_NODE)),
    _rule(CERTIFICATES, "signers", ("approve", "sign")),
)

#: What upstream's node authorizer and its role ``system:node`` give; of many kinds a node reads and writes only what is
#: its own or what its pods refer to (`drakkar.apiserver.noderights`). What a driver says about devices is not a
#: node's to say: drivers have accounts of their own.
_NODE = (
    _EVENTS,
    _rule("", "nodes pods services configmaps secrets", READ),
    _rule("", "endpoints persistentvolumes persistentvolumeclaims serviceaccounts", ("get",)),
    _rule(_DRA, "resourceclaims", ("get",)),
    _rule(_DRA, "resourceslices", (*READ, *WRITE)),
    _rule("storage.k8s.io", "csidrivers", READ),
    _rule("storage.k8s.io", "csinodes", ("get", "create", "update", "patch", "delete")),
    _rule("storage.k8s.io", "volumeattachments", ("get",)),
    _rule("node.k8s.io", "runtimeclasses", READ),
    _rule(CERTIFICATES, "certificatesigningrequests", (*READ, "create")),
    _rule(CERTIFICATES, "clustertrustbundles", READ),
    _rule("authentication.k8s.io", "tokenreviews", ("create",)),
    _rule("authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews", ("create",)),
    _rule("", "nodes", ("create", *CHANGE)),
    _rule("", "nodes/status pods/status", CHANGE),
    _rule("", "pods", ("create", "delete")),
    _rule("", "pods/eviction serviceaccounts/token", ("create",)),
    _rule("coordination.k8s.io", "leases", ("get", "create", "update", "patch", "delete")),
)

#: As examples/tpu/on-a-cluster/hollow-nodes.yaml: one part that is many nodes.
_HOLLOW_NODES = (
    _EVENTS,
    _rule("", "nodes pods", READ),
    _rule(_DRA, "resourceclaims", READ),
    _rule("", "nodes", ("create", "patch")),
    _rule("", "nodes/status pods/status", ("patch",)),
    _rule("", "pods", ("delete",)),
    _rule("coordination.k8s.io", "leases", ("create", "patch")),
)

#: Drivers within the process of the plane, which serve many nodes.
_DRIVERS = (
    _EVENTS,
    _LEASES,
    _rule("", "nodes", (*READ, "patch")),
    _rule(_DRA, "resourceclaims deviceclasses", READ),
    _rule(_DRA, "resourceslices", (*READ, *WRITE)),
    _rule(_DRA, "resourceclaims/status", CHANGE),
    _rule(_DRA, "resourceclaims/driver", _ARBITRARY_NODE),
)

_NODES = "system:nodes"
_BY_USER: Mapping[str, tuple[Rule, ...]] = {
    "system:kube-scheduler": _SCHEDULER,
    "system:kube-controller-manager": _CONTROLLERS,
}
_BY_GROUP: Mapping[str, tuple[Rule, ...]] = {
    "drakkar:hollow-nodes": _HOLLOW_NODES,
    "drakkar:drivers": _DRIVERS,
    _NODES: _NODE,
    "system:bootstrappers": (_rule("certificates.k8s.io", "certificatesigningrequests", ("create", *READ)),),
}

NODE_PREFIX = "system:node:"


def _node_of(user: User) -> str:
    """The node that the user is; empty for others, and for who may everything."""
    return user.name.removeprefix(NODE_PREFIX) if user.name.startswith(NODE_PREFIX) and not _unlimited(user) else ""


def _unlimited(user: User) -> bool:
    return MASTERS in user.groups


@dataclass(slots=True)
class _Grants:
    """What one subject may: everywhere, and in single namespaces."""

    everywhere: tuple[Rule, ...]
    within: dict[str, tuple[Rule, ...]]


class Authorizer:
    """Judges requests."""

    def __init__(self, state: State):
        self._state = state
        self._stamp = -1
        self._grants: dict[tuple[str, tuple[str, ...]], _Grants] = {}

    def check(self, user: User, info: RequestInfo) -> None:
        """StatusError 403 when the user may not do that."""
        if MASTERS in user.groups:
            return
        if not info.is_resource:
            if not self.allows_path(user, info.verb, info.path):
                text = f'User "{user.name}" cannot {info.verb} path "{info.path}"'
                raise StatusError(status.forbidden("", "", "", _because(text, self._unknown_roles(user, ""))))
            return
        allowed = self.allows(user, info.verb, info.group, info.resource, info.subresource, info.namespace, info.name)
        why = ""
        if allowed:
            why = self._foreign(user, info)
        if not allowed or why:
            why = why or _because(_denial(user, info), self._unknown_roles(user, info.namespace))
            raise StatusError(status.forbidden(info.group, info.resource, info.name, why))

    def verdict(self, user: User, info: RequestInfo) -> tuple[bool, str]:
        """Whether the user may do that, and why, in the words of upstream's reviews; empty where it says nothing."""
        try:
            self.check(user, info)
        except StatusError:
            namespace = info.namespace if info.is_resource else ""
            why = self._unknown_roles(user, namespace)
            if info.is_resource:
                why = self._foreign(user, info) or why
            return False, why
        if self.unlimited(user):
            return True, ""
        binding = self._granting(user, info)
        if binding is not None:
            return True, f"RBAC: allowed by {_described(binding, user)}"
        return True, "a fixed right of this part of the plane"

    def _granting(self, user: User, info: RequestInfo) -> dict[str, Any] | None:
        """The first binding by which the user may do that."""
        for binding, rules in self._bound(user, info.namespace if info.is_resource else ""):
            for rule in rules:
                if (
                    rule.allows(info.verb, info.group, info.resource, info.subresource, info.name)
                    if info.is_resource
                    else rule.allows_path(info.verb, info.path)
                ):
                    return binding
        return None

    def _bound(self, user: User, namespace: str) -> Iterable[tuple[dict[str, Any], list[Rule]]]:
        """The bindings of a user that count in a namespace, with their rules."""
        for binding in self._objects("clusterrolebindings"):
            if _binds(binding, user):
                yield binding, self._role(binding.get("roleRef") or {}, "")
        for binding in self._objects("rolebindings") if namespace else ():
            if binding["metadata"]["namespace"] == namespace and _binds(binding, user):
                yield binding, self._role(binding.get("roleRef") or {}, namespace)

    def _unknown_roles(self, user: User, namespace: str) -> str:
        """Roles that bindings of the user name and nobody has written: a refusal's usual cause."""
        missing: list[str] = []
        for binding, _ in self._bound(user, namespace):
            ref = binding.get("roleRef") or {}
            kind = "clusterroles" if ref.get("kind") == "ClusterRole" else "roles"
            name = ref.get("name", "")
            key = name if kind == "clusterroles" else f"{namespace}/{name}"
            if key not in self._state.tables[f"/{RBAC}/{kind}/"].entries:
                missing.append(f'{kind[:-1]}.{RBAC} "{name}" not found')
        if not missing:
            return ""
        return "RBAC: " + (missing[0] if len(missing) == 1 else f"[{', '.join(dict.fromkeys(missing))}]")

    def allows(
        self, user: User, verb: str, group: str, resource: str, subresource: str, namespace: str, name: str
    ) -> bool:
        """Whether rules grant it; ``namespace`` empty asks for all of them."""
        if MASTERS in user.groups:
            return True
        rules = self.rules(user, namespace)
        return any(rule.allows(verb, group, resource, subresource, name) for rule in rules)

    def allows_path(self, user: User, verb: str, path: str) -> bool:
        """Whether rules grant access to a path that is no resource."""
        return self.unlimited(user) or any(rule.allows_path(verb, path) for rule in self.rules(user, ""))

    @staticmethod
    def unlimited(user: User) -> bool:
        """Whether the user may everything."""
        return _unlimited(user)

    def rules(self, user: User, namespace: str) -> Sequence[Rule]:
        """All rules of a subject in a namespace, those for everywhere included."""
        stamp = sum(table.revision for prefix in _TABLES if (table := self._state.tables.get(prefix)))
        if stamp != self._stamp:
            self._stamp = stamp
            self._grants.clear()
        key = (user.name, user.groups)
        grants = self._grants.get(key)
        if grants is None:
            if len(self._grants) > 10_000:
                self._grants.clear()
            grants = self._grants[key] = self._compile(user)
        within = grants.within.get(namespace)
        return grants.everywhere if within is None else (*grants.everywhere, *within)

    def _compile(self, user: User) -> _Grants:
        everywhere = [*_BY_USER.get(user.name, ())]
        for group in user.groups:
            # Nobody is a node who is not a certain one: the rest of a node's rights hang on its name.
            if group != _NODES or _node_of(user):
                everywhere += _BY_GROUP.get(group, ())
        within: dict[str, list[Rule]] = {}
        for binding in self._objects("clusterrolebindings"):
            if _binds(binding, user):
                everywhere += self._role(binding.get("roleRef") or {}, "")
        for binding in self._objects("rolebindings"):
            if _binds(binding, user):
                namespace = binding["metadata"]["namespace"]
                within.setdefault(namespace, []).extend(self._role(binding.get("roleRef") or {}, namespace))
        return _Grants(tuple(everywhere), {namespace: tuple(rules) for namespace, rules in within.items()})

    def _objects(self, plural: str) -> Iterable[dict[str, Any]]:
        table = self._state.tables[f"/{RBAC}/{plural}/"]
        return (table.decode(entry) for entry in table.entries.values())

    def _role(self, reference: dict[str, Any], namespace: str) -> list[Rule]:
        clusterwide = reference.get("kind") == "ClusterRole"
        table = self._state.tables[f"/{RBAC}/{'clusterroles' if clusterwide else 'roles'}/"]
        name = reference.get("name", "")
        entry = table.entries.get(name if clusterwide else f"{namespace}/{name}")
        if entry is None:
            return []
        return self._rules_of(table.decode(entry))

    def _rules_of(self, role: Mapping[str, Any], seen: set[str] | None = None) -> list[Rule]:
        """What a role grants; an aggregated one what the roles that it selects grant, each (``seen``) once."""
        selectors = children(role, "aggregationRule", "clusterRoleSelectors")
        if not selectors:
            return [_compiled(rule) for rule in role.get("rules") or ()]
        chosen = [LabelSelector.from_object(selector) for selector in selectors]
        table = self._state.tables[f"/{RBAC}/clusterroles/"]
        found: list[Rule] = []
        seen = {(role.get("metadata") or {}).get("name") or ""} if seen is None else seen
        for entry in list(table.entries.values()):
            if entry.name not in seen and any(selector.matches(entry.labels or {}) for selector in chosen):
                seen.add(entry.name)
                found += self._rules_of(table.decode(entry), seen)
        return found

    def check_grant(self, user: User, plural: str, new: Mapping[str, Any], old: Mapping[str, Any] | None) -> None:
        """StatusError 403 when a role or binding gives rights that its writer does not have himself."""
        if MASTERS in user.groups:
            return
        meta = new.get("metadata") or {}
        namespace, name = meta.get("namespace") or "", meta.get("name") or ""
        if plural in ("roles", "clusterroles"):
            same = old is not None and (new.get("rules") or []) == (old.get("rules") or [])
            if same and (old or {}).get("aggregationRule") == new.get("aggregationRule"):
                return
            if self.allows(user, "escalate", RBAC, plural, "", namespace, name):
                return
            granted = self._rules_of(new)
        elif plural in ("rolebindings", "clusterrolebindings"):
            ref = new.get("roleRef") or {}
            if old is not None and ref == old.get("roleRef") and new.get("subjects") == old.get("subjects"):
                return
            target = "clusterroles" if ref.get("kind") == "ClusterRole" else "roles"
            if self.allows(user, "bind", RBAC, target, "", namespace, ref.get("name") or ""):
                return
            granted = self._role(ref, namespace)
        else:
            return
        held = self.rules(user, namespace)
        missing = [text for rule in granted for text in _not_covered(rule, held)]
        if missing:
            groups = ", ".join(f'"{group}"' for group in user.groups)
            said = (
                f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n'
                + "\n".join(dict.fromkeys(missing))
            )
            raise StatusError(status.forbidden(RBAC, plural, name, said))

    def check_new(self, user: User, info: RequestInfo, obj: Mapping[str, Any]) -> None:
        """StatusError 403 when a node makes something that is not its own; for other users nothing."""
        node = _node_of(user)
        name = info.name or (obj.get("metadata") or {}).get("name") or ""
        why = noderights.not_to_make(self._state, node, info, name, obj) if node else ""
        if why:
            raise StatusError(status.forbidden(info.group, info.resource, name, why))

    def check_token(self, user: User, namespace: str, account: str, body: Mapping[str, Any]) -> None:
        """StatusError 403 when a node asks for a token that none of its pods with this account has a use for."""
        node = _node_of(user)
        why = noderights.no_token(self._state, node, namespace, account, child(body, "spec")) if node else ""
        if why:
            raise StatusError(status.forbidden("", "serviceaccounts", account, why))

    def check_signer(self, user: User, subresource: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """StatusError 403 when the user may not approve or sign for the signer of a request for a certificate."""
        if MASTERS in user.groups:
            return
        signer = child(new, "spec").get("signerName") or ""
        if subresource == "approval":
            verb, said = "approve", "approve requests"
        elif child(old, "status").get("certificate") != child(new, "status").get("certificate"):
            verb, said = "sign", "sign requests"
        else:
            return
        names = (signer, f"{signer.partition('/')[0]}/*")
        if any(self.allows(user, verb, CERTIFICATES, "signers", "", "", name) for name in names):
            return
        text = f'user not permitted to {said} with signerName "{signer}"'
        name = child(new, "metadata").get("name") or ""
        raise StatusError(status.forbidden(CERTIFICATES, "certificatesigningrequests", name, text))

    def check_node(self, user: User, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """StatusError 403 when a node changes of its Node what is not for nodes to change."""
        node = _node_of(user)
        why = noderights.node_changed(node, old, new) if node else ""
        if why:
            raise StatusError(status.forbidden("", "nodes", child(new, "metadata").get("name") or "", why))

    def check_pod(self, user: User, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """StatusError 403 when a node changes of a pod what decides who uses it, or what its node may read."""
        node = _node_of(user)
        why = noderights.pod_changed(node, old, new) if node else ""
        if why:
            raise StatusError(status.forbidden("", "pods", child(new, "metadata").get("name") or "", why))

    def check_selected(self, user: User, info: RequestInfo, fields: FieldSelector) -> None:
        """StatusError 403 when a node deletes a collection without narrowing it to what is its own."""
        node = _node_of(user)
        if node and fields.exact("spec.nodeName") != node:
            text = f'node "{node}" has to select by spec.nodeName={node}'
            raise StatusError(status.forbidden(info.group, info.resource, "", text))

    def _foreign(self, user: User, info: RequestInfo) -> str:
        """Why a node may not read or write this; empty when it is its own, or a role lets the node read it."""
        node = _node_of(user)
        if not node:
            return ""
        if info.verb in READ:
            why = noderights.unreadable(self._state, node, info)
            return why if why and self._granting(user, info) is None else ""
        return noderights.unwritable(self._state, node, info)


def _compiled(rule: Mapping[str, Any]) -> Rule:
    return Rule(
        frozenset(rule.get("apiGroups") or ()),
        frozenset(rule.get("resources") or ()),
        frozenset(rule.get("verbs") or ()),
        frozenset(rule.get("resourceNames") or ()),
        tuple(rule.get("nonResourceURLs") or ()),
    )


def _not_covered(rule: Rule, held: Sequence[Rule]) -> list[str]:
    """What of a rule nobody's rules hold, in upstream's notation."""
    found: list[str] = []
    for verb in sorted(rule.verbs):
        for path in rule.paths:
            if not any(own.allows_path(verb, path) for own in held):
                found.append(f'{{NonResourceURLs:["{path}"], Verbs:["{verb}"]}}')
        for group in sorted(rule.groups):
            for resource in sorted(rule.resources):
                plural, _, sub = resource.partition("/")
                for name in sorted(rule.names) or [""]:
                    if any(own.allows(verb, group, plural, sub, name) for own in held):
                        continue
                    names = f', ResourceNames:["{name}"]' if name else ""
                    found.append(f'{{APIGroups:["{group}"], Resources:["{resource}"]{names}, Verbs:["{verb}"]}}')
    return found


def _because(text: str, why: str) -> str:
    return f"{text}: {why}" if why else text


def _described(binding: dict[str, Any], user: User) -> str:
    """A binding as upstream's reasons name it."""
    meta, ref = binding["metadata"], binding.get("roleRef") or {}
    namespace = meta.get("namespace") or ""
    subject = _subject_of(binding, user) or {}
    who = subject.get("name", "")
    if subject.get("kind") == "ServiceAccount":
        who = f"{who}/{subject.get('namespace') or namespace}"
    kind, name = ("RoleBinding", f"{meta['name']}/{namespace}") if namespace else ("ClusterRoleBinding", meta["name"])
    return f'{kind} "{name}" of {ref.get("kind", "")} "{ref.get("name", "")}" to {subject.get("kind", "")} "{who}"'


def _binds(binding: dict[str, Any], user: User) -> bool:
    return _subject_of(binding, user) is not None


def _subject_of(binding: dict[str, Any], user: User) -> dict[str, Any] | None:
    """As what a binding knows the user; None: not at all."""
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "User" and name == user.name:
            return subject
        if kind == "Group" and name in user.groups:
            return subject
        if kind == "ServiceAccount":
            namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
            if user.name == f"system:serviceaccount:{namespace}:{name}":
                return subject
    return None


def _denial(user: User, info: RequestInfo) -> str:
    resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    text = f'User "{user.name}" cannot {info.verb} resource "{resource}" in API group "{info.group}"'
    if info.namespace and info.resource != "namespaces":
        return f'{text} in the namespace "{info.namespace}"'
    return f"{text} at the cluster scope"
