"""The roles that a new cluster has, and who holds them: those of Kubernetes, so that charts and parts find theirs.

Each rule is written as groups (``core`` is the one without a name), resources and verbs; ``resources = names`` limits
it to objects of these names. Paths stand alone with the verb get.

Source: the default roles of kube-apiserver (page "Using RBAC Authorization" of its documentation) and what the
controllers of kube-controller-manager ask for with ``--use-service-account-credentials``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Object = dict[str, Any]

RBAC = "rbac.authorization.k8s.io"
#: Set to "false" it keeps a role or binding as its owner has it.
AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_LABEL = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_CONTROLLER = "system:controller:"

_READ = "get list watch"
_WRITE = "create delete deletecollection patch update"
_ALL = f"{_READ} {_WRITE}"
_CHANGE = "patch update"

#: Groups, resources (with names behind ``=``), verbs.
Line = tuple[str, str, str]

_EVENTS: Line = ("core events.k8s.io", "events", "create patch update")
_REVIEWS: tuple[Line, ...] = (
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("authorization.k8s.io", "subjectaccessreviews", "create"),
)
_HEALTH = "/healthz /livez /readyz /version /version/"

_PATHS: Mapping[str, str] = {
    "system:discovery": f"/api /api/* /apis /apis/* /openapi /openapi/* {_HEALTH}",
    "system:public-info-viewer": _HEALTH,
    "system:monitoring": "/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*",
    "system:service-account-issuer-discovery": (
        "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/"
    ),
}

_DRA = "resource.k8s.io"
_SCHEDULING = "scheduling.k8s.io"
_APPS = "daemonsets deployments deployments/scale replicasets replicasets/scale statefulsets statefulsets/scale"
_STREAMS = "pods/attach pods/exec pods/portforward pods/proxy"

#: What the roles for users are made of; charts put theirs beside it.
AGGREGATED: Mapping[str, tuple[Line, ...]] = {
    "admin": (
        ("authorization.k8s.io", "localsubjectaccessreviews", "create"),
        (RBAC, "rolebindings roles", _ALL),
    ),
    "edit": (
        ("core", f"{_STREAMS} secrets services/proxy", _READ),
        ("core", "serviceaccounts", "impersonate"),
        ("core", f"pods {_STREAMS}", _WRITE),
        ("core", "pods/eviction serviceaccounts/token", "create"),
        (
            "core",
            "configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets "
            "serviceaccounts services services/proxy podtemplates",
            _WRITE,
        ),
        ("apps", f"{_APPS} deployments/rollback", _WRITE),
        ("autoscaling", "horizontalpodautoscalers", _WRITE),
        ("batch", "cronjobs jobs", _WRITE),
        ("policy", "poddisruptionbudgets", _WRITE),
        ("networking.k8s.io", "ingresses networkpolicies", _WRITE),
        ("coordination.k8s.io", "leases", _ALL),
        (_DRA, "resourceclaims resourceclaimtemplates", _WRITE),
        (_SCHEDULING, "workloads podgroups compositepodgroups", _WRITE),
    ),
    "view": (
        (
            "core",
            "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers "
            "replicationcontrollers/scale serviceaccounts services services/status podtemplates",
            _READ,
        ),
        (
            "core",
            "bindings events limitranges namespaces namespaces/status pods/log pods/status "
            "replicationcontrollers/status resourcequotas resourcequotas/status",
            _READ,
        ),
        ("discovery.k8s.io", "endpointslices", _READ),
        (
            "apps",
            f"controllerrevisions {_APPS} daemonsets/status deployments/status replicasets/status statefulsets/status",
            _READ,
        ),
        ("autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status", _READ),
        ("batch", "cronjobs cronjobs/status jobs jobs/status", _READ),
        ("policy", "poddisruptionbudgets poddisruptionbudgets/status", _READ),
        ("networking.k8s.io", "ingresses ingresses/status networkpolicies", _READ),
        (_DRA, "resourceclaims resourceclaims/status resourceclaimtemplates", _READ),
        (_SCHEDULING, "workloads podgroups podgroups/status compositepodgroups compositepodgroups/status", _READ),
    ),
}

_SIGNERS = "certificates.k8s.io"

#: ClusterRoles of parts and of everybody.
_SYSTEM: Mapping[str, tuple[Line, ...]] = {
    "system:auth-delegator": _REVIEWS,
    "system:basic-user": (
        ("authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews", "create"),
        ("authentication.k8s.io", "selfsubjectreviews", "create"),
    ),
    "system:certificates.k8s.io:certificatesigningrequests:nodeclient": (
        (_SIGNERS, "certificatesigningrequests/nodeclient", "create"),
    ),
    "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": (
        (_SIGNERS, "certificatesigningrequests/selfnodeclient", "create"),
    ),
    **{
        f"system:certificates.k8s.io:{name}-approver": ((_SIGNERS, f"signers = kubernetes.io/{name}", "approve"),)
        for name in ("kube-apiserver-client", "kube-apiserver-client-kubelet", "kubelet-serving", "legacy-unknown")
    },
    "system:cluster-trust-bundle-discovery": ((_SIGNERS, "clustertrustbundles", _READ),),
    "system:heapster": (("core", "events namespaces nodes pods", _READ), ("extensions", "deployments", _READ)),
    "system:kube-aggregator": (("core", "endpoints services", _READ),),
    "system:kube-controller-manager": (
        _EVENTS,
        ("coordination.k8s.io", "leases", "create"),
        ("coordination.k8s.io", "leases = kube-controller-manager", "get update"),
        ("core", "secrets serviceaccounts", "create update"),
        ("core", "secrets", "delete"),
        ("core", "configmaps namespaces secrets serviceaccounts", "get"),
        *_REVIEWS,
        ("*", "*", "list watch"),
        ("core", "serviceaccounts/token", "create"),
    ),
    "system:kube-dns": (("core", "endpoints services", "list watch"), ("discovery.k8s.io", "endpointslices", _READ)),
    "system:kube-scheduler": (
        _EVENTS,
        ("coordination.k8s.io", "leases", "create"),
        ("coordination.k8s.io", "leases = kube-scheduler", f"{_READ} update"),
        ("coordination.k8s.io", "leasecandidates", _ALL),
        ("core", "nodes namespaces replicationcontrollers services", _READ),
        ("core", "pods", f"delete {_READ}"),
        ("core", "bindings pods/binding", "create"),
        ("core", "pods/status", _CHANGE),
        ("core", "pods/finalizers", f"{_READ} {_CHANGE}"),
        ("apps", "replicasets statefulsets", _READ),
        ("policy", "poddisruptionbudgets", _READ),
        ("core", "persistentvolumeclaims persistentvolumes", _READ),
        *_REVIEWS,
        ("storage.k8s.io", "csidrivers csinodes csistoragecapacities volumeattachments", _READ),
        (_DRA, "deviceclasses devicetaintrules resourceslices", _READ),
        (_DRA, "resourceclaims", f"{_READ} create delete {_CHANGE}"),
        (_DRA, "resourceclaims/status resourceclaims/binding", f"{_READ} {_CHANGE}"),
        (_SCHEDULING, "workloads podgroups compositepodgroups priorityclasses", _READ),
        (_SCHEDULING, "podgroups/status compositepodgroups/status", _CHANGE),
    ),
    "system:kubelet-api-admin": (
        ("core", "nodes", f"{_READ} proxy"),
        ("core", "nodes/configz nodes/healthz nodes/log nodes/metrics nodes/pods nodes/proxy nodes/stats", "*"),
    ),
    "system:node": (
        *_REVIEWS,
        ("authorization.k8s.io", "localsubjectaccessreviews", "create"),
        ("core", "services", _READ),
        ("core", "nodes", f"create {_READ} {_CHANGE}"),
        ("core", "nodes/status pods/status", _CHANGE),
        ("core", "events", "create patch update"),
        ("core", "pods", f"create delete {_READ}"),
        ("core", "pods/eviction serviceaccounts/token", "create"),
        ("core", "configmaps secrets", _READ),
        ("core", "endpoints persistentvolumeclaims persistentvolumes", "get"),
        ("core", "persistentvolumeclaims/status", f"get {_CHANGE}"),
        (_SIGNERS, "certificatesigningrequests", f"create {_READ}"),
        ("coordination.k8s.io", "leases", f"create delete get {_CHANGE}"),
        ("storage.k8s.io", "volumeattachments", "get"),
        ("storage.k8s.io", "csidrivers", _READ),
        ("storage.k8s.io", "csinodes", f"create delete get {_CHANGE}"),
        ("node.k8s.io", "runtimeclasses", _READ),
        (_DRA, "resourceclaims", "get"),
        (_DRA, "resourceslices", "deletecollection"),
    ),
    "system:node-bootstrapper": ((_SIGNERS, "certificatesigningrequests", f"create {_READ}"),),
    "system:node-problem-detector": (("core", "nodes", "get"), ("core", "nodes/status", "patch"), _EVENTS),
    "system:node-proxier": (
        ("core", "endpoints services", "list watch"),
        ("core", "nodes", _READ),
        _EVENTS,
        ("discovery.k8s.io", "endpointslices", "list watch"),
        ("networking.k8s.io", "servicecidrs", "list watch"),
    ),
    "system:persistent-volume-provisioner": (
        ("core", "persistentvolumes", f"create delete {_READ}"),
        ("core", "persistentvolumeclaims", f"{_READ} update"),
        ("storage.k8s.io", "storageclasses", _READ),
        ("core", "events", "watch"),
        _EVENTS,
    ),
    "system:volume-scheduler": (
        ("core", "persistentvolumeclaims persistentvolumes", f"{_READ} {_CHANGE}"),
        ("storage.k8s.io", "storageclasses", _READ),
    ),
}


def _workload(group: str, plural: str, verbs: str, pods: str) -> tuple[Line, ...]:
    """What a controller needs that keeps pods for objects of a resource."""
    return (
        (group, plural, verbs),
        (group, f"{plural}/status {plural}/finalizers", "update"),
        ("core", "pods", pods),
        _EVENTS,
    )


_PODS = "create delete list patch watch"

#: By the name of the service account in ``kube-system``; the role has the prefix ``system:controller:``.
_CONTROLLERS: Mapping[str, tuple[Line, ...]] = {
    "attachdetach-controller": (
        ("core", "persistentvolumeclaims persistentvolumes pods", "list watch"),
        ("core", "nodes", _READ),
        ("core", "nodes/status", _CHANGE),
        _EVENTS,
        ("storage.k8s.io", "volumeattachments", f"create delete {_READ}"),
        ("storage.k8s.io", "csidrivers csinodes", _READ),
    ),
    "certificate-controller": (
        (_SIGNERS, "certificatesigningrequests", f"delete {_READ}"),
        (_SIGNERS, "certificatesigningrequests/approval certificatesigningrequests/status", "update"),
        (_SIGNERS, "signers = kubernetes.io/kube-apiserver-client-kubelet", "approve"),
        (
            _SIGNERS,
            "signers = kubernetes.io/kube-apiserver-client kubernetes.io/kube-apiserver-client-kubelet "
            "kubernetes.io/kubelet-serving kubernetes.io/legacy-unknown",
            "sign",
        ),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
        _EVENTS,
    ),
    "clusterrole-aggregation-controller": ((RBAC, "clusterroles", f"escalate {_READ} {_CHANGE}"),),
    "cronjob-controller": (
        ("batch", "cronjobs", f"{_READ} update"),
        ("batch", "jobs", f"create delete {_READ} {_CHANGE}"),
        ("batch", "cronjobs/status cronjobs/finalizers", "update"),
        ("core", "pods", "delete list"),
        _EVENTS,
    ),
    "daemon-set-controller": (
        *_workload("apps extensions", "daemonsets", _READ, _PODS),
        ("core", "nodes", "list watch"),
        ("core", "pods/binding", "create"),
        ("apps", "controllerrevisions", f"create delete {_READ} {_CHANGE}"),
    ),
    "deployment-controller": (
        *_workload("apps extensions", "deployments", f"{_READ} update", f"{_READ} update"),
        ("apps extensions", "replicasets", f"create delete {_READ} {_CHANGE}"),
    ),
    "device-taint-eviction-controller": (
        ("core", "pods", f"delete {_READ}"),
        ("core", "pods/status", "patch"),
        (_DRA, "deviceclasses devicetaintrules resourceclaims resourceslices", _READ),
        (_DRA, "devicetaintrules/status", _CHANGE),
        _EVENTS,
    ),
    "disruption-controller": (
        ("apps extensions", "deployments replicasets", _READ),
        ("apps", "statefulsets", _READ),
        ("core", "replicationcontrollers", _READ),
        ("policy", "poddisruptionbudgets", _READ),
        ("policy", "poddisruptionbudgets/status", "update"),
        ("core", "pods/status", _CHANGE),
        ("*", "*/scale", "get"),
        _EVENTS,
    ),
    "endpoint-controller": (
        ("core", "pods services", _READ),
        ("core", "endpoints", "create delete get list update"),
        ("core", "endpoints/restricted", "create"),
        _EVENTS,
    ),
    "endpointslice-controller": (
        ("core", "nodes pods services", _READ),
        ("core", "services/finalizers", "update"),
        ("discovery.k8s.io", "endpointslices", "create delete get list update"),
        _EVENTS,
    ),
    "endpointslicemirroring-controller": (
        ("core", "endpoints services", _READ),
        ("core", "endpoints/finalizers services/finalizers", "update"),
        ("discovery.k8s.io", "endpointslices", "create delete get list update"),
        _EVENTS,
    ),
    "ephemeral-volume-controller": (
        ("core", "pods", _READ),
        ("core", "pods/finalizers", "update"),
        ("core", "persistentvolumeclaims", f"create {_READ}"),
        _EVENTS,
    ),
    "expand-controller": (
        ("core", "persistentvolumes", f"{_READ} {_CHANGE}"),
        ("core", "persistentvolumeclaims/status", _CHANGE),
        ("core", "persistentvolumeclaims", _READ),
        ("core", "services", "get"),
        _EVENTS,
    ),
    "generic-garbage-collector": (("*", "*", f"delete {_READ} {_CHANGE}"), _EVENTS),
    "horizontal-pod-autoscaler": (
        ("autoscaling", "horizontalpodautoscalers", _READ),
        ("autoscaling", "horizontalpodautoscalers/status", "update"),
        ("*", "*/scale", "get update"),
        ("core metrics.k8s.io", "pods", "list"),
        ("custom.metrics.k8s.io external.metrics.k8s.io", "*", "get list"),
        _EVENTS,
    ),
    "job-controller": (
        *_workload("batch", "jobs", f"{_READ} {_CHANGE}", _PODS),
        (_SCHEDULING, "workloads podgroups", f"create delete {_READ} {_CHANGE}"),
    ),
    "kube-apiserver-serving-clustertrustbundle-publisher": (
        (_SIGNERS, "signers = kubernetes.io/kube-apiserver-serving", "attest"),
        (_SIGNERS, "clustertrustbundles", "create delete list update watch"),
        _EVENTS,
    ),
    "legacy-service-account-token-cleaner": (
        ("core", "configmaps = kube-apiserver-legacy-service-account-token-tracking", "get"),
        ("core", "secrets", "delete patch"),
    ),
    "namespace-controller": (
        ("core", "namespaces", f"delete {_READ}"),
        ("core", "namespaces/finalize namespaces/status", "update"),
        ("*", "*", "delete deletecollection get list"),
    ),
    "node-controller": (
        ("core", "nodes", f"delete get list {_CHANGE}"),
        ("core", "nodes/status pods/status", _CHANGE),
        ("core", "pods", "delete get list"),
        _EVENTS,
    ),
    "persistent-volume-binder": (
        ("core", "persistentvolumes", f"create delete {_READ} update"),
        ("core", "persistentvolumeclaims", f"{_READ} update"),
        ("core", "persistentvolumeclaims/status persistentvolumes/status", "update"),
        ("core", "pods", f"create delete {_READ}"),
        ("storage.k8s.io", "storageclasses", _READ),
        ("core", "nodes", "list watch"),
        _EVENTS,
        ("core", "events", "watch"),
        ("core", "services", "get"),
    ),
    "pod-garbage-collector": (
        ("core", "pods", "delete list watch"),
        ("core", "nodes", "get list"),
        ("core", "pods/status", "patch"),
    ),
    "pv-protection-controller": (("core", "persistentvolumes", f"{_READ} update"), _EVENTS),
    "pvc-protection-controller": (
        ("core", "persistentvolumeclaims", f"{_READ} update"),
        ("core", "pods", _READ),
        _EVENTS,
    ),
    "replicaset-controller": _workload("apps extensions", "replicasets", f"{_READ} update", _PODS),
    "replication-controller": _workload("core", "replicationcontrollers", f"{_READ} update", _PODS),
    "resource-claim-controller": (
        ("core", "pods", _READ),
        ("core", "pods/finalizers", "update"),
        (_DRA, "resourceclaims", f"create delete {_READ}"),
        (_DRA, "resourceclaims resourceclaims/status resourceclaims/binding", _CHANGE),
        (_SCHEDULING, "podgroups", _READ),
        (_SCHEDULING, "podgroups/status", _CHANGE),
        ("core", "pods/status", _CHANGE),
        _EVENTS,
    ),
    "resourcequota-controller": (("*", "*", "list watch"), ("core", "resourcequotas/status", "update"), _EVENTS),
    "root-ca-cert-publisher": (("core", "configmaps", "create update"), _EVENTS),
    "route-controller": (("core", "nodes", "list watch"), ("core", "nodes/status", "patch"), _EVENTS),
    "selinux-warning-controller": (
        ("core", "persistentvolumeclaims persistentvolumes pods", _READ),
        ("storage.k8s.io", "csidrivers", _READ),
        _EVENTS,
    ),
    "service-account-controller": (("core", "serviceaccounts", "create"), _EVENTS),
    "service-cidrs-controller": (
        ("networking.k8s.io", "servicecidrs", f"{_READ} {_CHANGE}"),
        ("networking.k8s.io", "servicecidrs/finalizers servicecidrs/status", _CHANGE),
        ("networking.k8s.io", "ipaddresses", _READ),
        _EVENTS,
    ),
    "service-controller": (
        ("core", "services", _READ),
        ("core", "services/status", _CHANGE),
        ("core", "nodes", "list watch"),
        _EVENTS,
    ),
    "statefulset-controller": (
        *_workload("apps", "statefulsets", _READ, f"create delete {_READ} {_CHANGE}"),
        ("apps", "controllerrevisions", f"create delete {_READ} {_CHANGE}"),
        ("core", "persistentvolumeclaims", f"create delete {_READ} update"),
        ("core", "pods/finalizers", "update"),
    ),
    "ttl-after-finished-controller": (("batch", "jobs", f"delete {_READ}"), _EVENTS),
    "ttl-controller": (("core", "nodes", f"list watch {_CHANGE}"), _EVENTS),
    "validatingadmissionpolicy-status-controller": (
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", _READ),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies/status", f"get {_CHANGE}"),
        _EVENTS,
    ),
    "volumeattributesclass-protection-controller": (
        ("core", "persistentvolumeclaims persistentvolumes", _READ),
        ("storage.k8s.io", "volumeattributesclasses", f"{_READ} update"),
        _EVENTS,
    ),
}

#: ClusterRole → who holds it: ``Group name``, ``User name`` or the name of an account in ``kube-system``.
_HOLDERS: Mapping[str, tuple[str, ...]] = {
    "cluster-admin": ("Group system:masters",),
    "system:basic-user": ("Group system:authenticated",),
    "system:cluster-trust-bundle-discovery": ("Group system:serviceaccounts",),
    "system:discovery": ("Group system:authenticated",),
    "system:kube-controller-manager": ("User system:kube-controller-manager",),
    "system:kube-dns": ("kube-dns",),
    "system:kube-scheduler": ("User system:kube-scheduler",),
    "system:monitoring": ("Group system:monitoring",),
    "system:node": (),
    "system:node-proxier": ("User system:kube-proxy",),
    "system:public-info-viewer": ("Group system:authenticated", "Group system:unauthenticated"),
    "system:service-account-issuer-discovery": ("Group system:serviceaccounts",),
    "system:volume-scheduler": ("User system:kube-scheduler",),
    **{f"{_CONTROLLER}{name}": (name,) for name in _CONTROLLERS},
}


def _leader(part: str) -> tuple[Line, ...]:
    return (("core", "configmaps", "watch"), ("core", f"configmaps = {part}", "get update"))


#: Namespace, name of the role and of its binding, its rules, who holds it.
_ROLES: tuple[tuple[str, str, str, tuple[Line, ...], tuple[str, ...]], ...] = (
    (
        "kube-system",
        "extension-apiserver-authentication-reader",
        "system::extension-apiserver-authentication-reader",
        (("core", "configmaps = extension-apiserver-authentication", _READ),),
        ("User system:kube-controller-manager", "User system:kube-scheduler"),
    ),
    *(
        (
            "kube-system",
            f"system::leader-locking-{part}",
            f"system::leader-locking-{part}",
            _leader(part),
            (f"User system:{part}", part),
        )
        for part in ("kube-controller-manager", "kube-scheduler")
    ),
    *(
        (namespace, f"{_CONTROLLER}{name}", f"{_CONTROLLER}{name}", lines, (name,))
        for namespace, name, lines in (
            ("kube-system", "bootstrap-signer", (("core", "secrets", _READ),)),
            ("kube-system", "cloud-provider", (("core", "configmaps", f"create {_READ}"),)),
            ("kube-system", "token-cleaner", (("core", "secrets", f"delete {_READ}"), _EVENTS)),
            (
                "kube-public",
                "bootstrap-signer",
                (("core", "configmaps", _READ), ("core", "configmaps = cluster-info", "update"), _EVENTS),
            ),
        )
    ),
)


def _rule(line: Line) -> Object:
    groups, resources, verbs = line
    resources, _, names = resources.partition(" = ")
    rule: Object = {
        "apiGroups": ["" if group == "core" else group for group in groups.split()],
        "resources": sorted(resources.split()),
        "verbs": sorted(verbs.split()),
    }
    if names:
        rule["resourceNames"] = sorted(names.split())
    return rule


def _meta(name: str, namespace: str = "", **labels: str) -> Object:
    meta: Object = {"name": name, "labels": {**_LABEL, **labels}, "annotations": {AUTO_UPDATE: "true"}}
    return {**meta, "namespace": namespace} if namespace else meta


def _subject(holder: str) -> Object:
    kind, _, name = holder.partition(" ")
    if not name:
        return {"kind": "ServiceAccount", "name": kind, "namespace": "kube-system"}
    return {"apiGroup": RBAC, "kind": kind, "name": name}


def _binding(meta: Object, kind: str, role: str, holders: tuple[str, ...]) -> Object:
    binding: Object = {"metadata": meta, "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role}}
    if holders:
        binding["subjects"] = [_subject(holder) for holder in holders]
    return binding


def initial() -> Iterator[tuple[str, Object]]:
    """Plural and object (without kind) of every role and binding that a cluster begins with."""
    everything: list[Object] = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ]
    yield "clusterroles", {"metadata": _meta("cluster-admin"), "rules": everything}
    above = {"admin": "", "edit": "admin", "view": "edit"}
    for name, lines in AGGREGATED.items():
        label = f"{RBAC}/aggregate-to-{name}"
        own = _meta(f"system:aggregate-to-{name}", **{label: "true"})
        yield "clusterroles", {"metadata": own, "rules": [_rule(line) for line in lines]}
        into = {f"{RBAC}/aggregate-to-{above[name]}": "true"} if above[name] else {}
        selectors = {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}
        yield "clusterroles", {"metadata": _meta(name, **into), "aggregationRule": selectors, "rules": []}
    for name, paths in _PATHS.items():
        rules = [{"nonResourceURLs": sorted(paths.split()), "verbs": ["get"]}]
        yield "clusterroles", {"metadata": _meta(name), "rules": rules}
    for name, lines in _SYSTEM.items():
        yield "clusterroles", {"metadata": _meta(name), "rules": [_rule(line) for line in lines]}
    for name, lines in _CONTROLLERS.items():
        role = {"metadata": _meta(f"{_CONTROLLER}{name}"), "rules": [_rule(line) for line in lines]}
        yield "clusterroles", role
    for name, holders in _HOLDERS.items():
        yield "clusterrolebindings", _binding(_meta(name), "ClusterRole", name, holders)
    for namespace, name, binding, lines, holders in _ROLES:
        yield "roles", {"metadata": _meta(name, namespace), "rules": [_rule(line) for line in lines]}
        yield "rolebindings", _binding(_meta(binding, namespace), "Role", name, holders)
