"""Why a pod waits, or where it could run; what a claim has, or why it has nothing.

The answer is the scheduler's own decision, made again over a set of objects: a live API, a dump, a
``List`` from kubectl. For each claim and request it says how many devices were left after each
stage, over all nodes; with ``full`` for every node.

Claims that a template would give a pod, and that nobody has made yet, are made up for the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

import msgspec

from drakkar import allocator
from drakkar.allocator import Fits, Problem, Reason, wishes
from drakkar.api import objects
from drakkar.api.errors import UsageError
from drakkar.api.kinds import POD
from drakkar.api.meta import Object, Struct
from drakkar.api.names import DEFAULT_SCHEDULER, SCHEDULING_GATE
from drakkar.api.resource import v1 as resource
from drakkar.api.tree import child, children, text
from drakkar.insight import hints
from drakkar.insight.holders import Holder, holders, told
from drakkar.insight.reasons import as_served, cluster_of, decoded
from drakkar.scheduler.binding import Binding, binding_state
from drakkar.scheduler.claims import Obstacle, claims_of, taint_on
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.decide import Decision, Pending, Placement, decide
from drakkar.scheduler.extended import make_extended
from drakkar.scheduler.gangs import decide_gang, gang_of
from drakkar.scheduler.gates import is_due, without_special_claim
from drakkar.scheduler.groups import group_obstacle
from drakkar.scheduler.pods import PodView

#: Nodes that the funnels are taken over, unless all are asked for.
SAMPLE = 256
#: Lines of the default text, at most.
LINES = 12
_LISTED = 4


class Funnel(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far one request comes by itself: stage → devices left after it, summed over ``nodes`` nodes."""

    claim: str
    request: str
    #: The word at which the most promising node ended; empty where the request could be served by itself.
    reason: str
    message: str
    funnel: dict[str, int]
    nodes: int
    #: On how many of the nodes the request could be served by itself.
    served: int
    #: Node → stage → devices left; only in full.
    by_node: dict[str, dict[str, int]] = {}


class Explanation(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer. ``reason`` to ``cure`` are those of the engine's reason where devices are the matter."""

    kind: str
    namespace: str
    name: str
    #: ``pending``, ``starting`` (bound, nothing runs yet), ``running``, ``done``, ``gated``, ``fits`` (would be placed
    #: now), ``allocated``, ``unallocated``.
    state: str
    message: str
    node: str = ""
    reason: str = ""
    claim: str = ""
    request: str = ""
    funnel: dict[str, int] = {}
    nodes: int = 0
    nearest: str = ""
    cure: str = ""
    requests: list[Funnel] = []
    #: Node → what was in the way there.
    by_node: dict[str, str] = {}
    #: Claims that hold what is waited for, most devices first.
    held_by: list[Holder] = []
    #: Devices, one ``claim/request: driver/pool/device`` each.
    devices: list[str] = []
    #: Things worth knowing besides.
    notes: list[str] = []


def explain(
    found: Iterable[Object],
    name: str,
    namespace: str = "default",
    *,
    kind: str = "",
    policy: str = "drakkar",
    now: float = 0.0,
    full: bool = False,
) -> Explanation:
    """Explains the pod or claim ``name``; ``kind`` (``Pod``, ``ResourceClaim``) where both exist.

    Raises UsageError when there is no such object, or one that cannot be read.
    """
    listed = [as_served(obj) for obj in found]
    for wanted in (kind,) if kind else ("Pod", "ResourceClaim"):
        for obj in listed:
            if obj.get("kind") == wanted and objects.key_of(obj) == f"{namespace}/{name}":
                if wanted == "Pod":
                    return _pod(listed, obj, policy, now, full)
                return _claim(listed, obj, policy, now, full)
    owned = [
        objects.name_of(obj)
        for obj in listed
        if obj.get("kind") == "Pod"
        and objects.namespace_of(obj) == namespace
        and any(owner.get("name") == name for owner in children(obj, "metadata", "ownerReferences"))
    ]
    if owned and kind in ("", "Pod"):
        raise UsageError(f"{name} in namespace {namespace} owns pods; name one of them: {_some(sorted(owned))}")
    there = sorted(
        {objects.namespace_of(obj) for obj in listed if obj.get("kind") in ("Pod", "ResourceClaim")} - {namespace}
    )
    hint = f"; other namespaces: {', '.join(there[:_LISTED])}" if there else ""
    raise UsageError(f"no {kind or 'pod or claim'} {name} in namespace {namespace}{hint}")


# pods


def _pod(listed: list[Object], obj: Object, policy: str, now: float, full: bool) -> Explanation:
    base: dict[str, Any] = {
        "kind": "Pod",
        "namespace": objects.namespace_of(obj),
        "name": objects.name_of(obj),
    }
    if objects.pod_is_done(obj):
        return Explanation(**base, state="done", message=f"the pod has ended ({text(obj, 'status', 'phase')})")
    node = objects.pod_node(obj)
    if node:
        cluster = cluster_of(listed)
        found = claims_of(cluster, PodView.of(obj))
        held = found if isinstance(found, list) else []
        special = cluster.special_claim(objects.uid_of(obj))
        held = [*held, special] if special is not None else held
        notes = [broken.message for claim in held if (broken := taint_on(cluster, claim)) is not None]
        for claim in held:
            if claim.status.allocation is not None:
                notes += wishes.told(cluster.inventory.snapshot(), claim, claim.status.allocation)
        return Explanation(
            **base,
            state="starting" if text(obj, "status", "phase") == "Pending" else "running",
            message=f"the pod is bound to node {node}",
            node=node,
            devices=[line for claim in held for line in _devices(claim)],
            notes=[*_waiting(obj), *notes],
        )
    obj, notes = _with_made_up_claims(listed, obj)
    cluster = cluster_of(listed)
    pod = PodView.of(obj)
    gates = [gate["name"] for gate in children(obj, "spec", "schedulingGates")]
    if gates == [SCHEDULING_GATE]:
        # The scheduler decides about such a pod as about one without gates; what keeps it is what keeps the gate.
        notes.append(f"the pod is held by the scheduling gate {SCHEDULING_GATE} until Drakkar has devices for it")
    elif gates:
        message = f"scheduling gates hold the pod: {', '.join(gates)}"
        notes += [f"Drakkar decides when {SCHEDULING_GATE} is the last of them"] if SCHEDULING_GATE in gates else []
        return Explanation(**base, state="gated", message=message, notes=notes)
    notes += hints.lifted(obj)
    claims = _without_devices(cluster, pod)
    problem = allocator.prepare(cluster.inventory.snapshot(), claims, policy=policy) if claims else None
    if not gates and (text(obj, "spec", "schedulerName") or DEFAULT_SCHEDULER) == DEFAULT_SCHEDULER:
        notes += _fences(cluster, problem)
    looked = _looked_at(cluster, full)
    requests = _funnels(problem, looked, full) if problem is not None else []
    decision = _decision(cluster, pod, policy, now)
    if gates:
        decision = without_special_claim(cluster, pod, decision)
    if isinstance(decision, Placement):
        notes += hints.unseen(obj)
        devices = [
            f"{_label(claim)}/{result.request}: {result.driver}/{result.pool}/{result.device}"
            for claim, allocation in decision.allocations
            for result in allocation.devices.results or ()
        ]
        snapshot = cluster.inventory.snapshot()
        notes += [line for found in decision.allocations for line in wishes.told(snapshot, *found)]
        message = f"nothing is in the way: the pod fits on node {decision.node}"
        return Explanation(
            **base,
            state="fits",
            message=message,
            node=decision.node,
            requests=requests,
            devices=devices,
            notes=notes,
        )
    notes += [*hints.missing_templates(listed, obj), *hints.unknown_resources(cluster, pod)]
    holding = holders(listed, problem, looked, decision.reason) if problem is not None else []
    return _pending(base, decision, requests, holding, notes)


def _waiting(pod: Object) -> list[str]:
    """Containers that wait on the pod's node, and why as the node tells it."""
    told: list[str] = []
    for field in ("initContainerStatuses", "containerStatuses"):
        for status in children(pod, "status", field):
            waiting = child(child(status, "state"), "waiting")
            if waiting:
                why = waiting.get("message") or f"kubectl describe pod {objects.name_of(pod)} shows its events"
                told.append(f"container {status.get('name')} waits ({waiting.get('reason') or 'no reason'}): {why}")
    return told


def _fences(cluster: Cluster, problem: Problem | None) -> list[str]:
    """What keeps another scheduler from giving these claims devices that we would give them."""
    if not cluster.fences or problem is None:
        return []
    drivers = problem.drivers()
    found: list[str] = []
    for name, rule in cluster.fences.items():
        selector = rule.spec.deviceSelector
        if selector is not None and (drivers is None or selector.driver is None or selector.driver in drivers):
            which = f"driver {selector.driver}" if selector.driver else "all drivers"
            found.append(
                f"devicetaintrule {name} leaves devices of {which} to Drakkar: where kube-scheduler is to place the "
                f"pod it gets none of them; give it the gate {SCHEDULING_GATE}, or Drakkar's schedulerName"
            )
    return found


def _decision(cluster: Cluster, pod: PodView, policy: str, now: float) -> Decision:
    """What the scheduler would decide; for a pod of a gang together with the others."""
    waiting = [obj for obj in cluster.pods_of_group(pod.group_key) if is_due(obj)]
    gang = gang_of(cluster, pod, waiting)
    if gang is None or group_obstacle(cluster, pod) is not None:
        return decide(cluster, pod, policy=policy, now=now)
    found = decide_gang(cluster, gang, policy=policy, now=now)
    return next(decision for member, decision in found.decisions if member.uid == pod.uid)


def _pending(
    base: dict[str, Any], decision: Pending, requests: list[Funnel], holding: list[Holder], notes: list[str]
) -> Explanation:
    details = decision.details
    engine: dict[str, Any] = {}
    if details is not None:
        engine = {
            "claim": details.claim,
            "request": details.request,
            "funnel": details.funnel,
            "nodes": details.nodes,
            "nearest": details.nearest,
            "cure": details.cure,
        }
    return Explanation(
        **base,
        **engine,
        state="pending",
        reason=decision.reason,
        message=decision.message,
        requests=requests,
        by_node=dict(decision.nodes),
        held_by=holding,
        notes=notes,
    )


def _with_made_up_claims(listed: list[Object], pod: Object) -> tuple[Object, list[str]]:
    """The pod with the claims that the claim controller has yet to make; they are added to ``listed``."""
    templates = {objects.key_of(obj): obj for obj in listed if obj.get("kind") == "ResourceClaimTemplate"}
    namespace, name = objects.namespace_of(pod), objects.name_of(pod)
    known = {entry["name"] for entry in children(pod, "status", "resourceClaimStatuses")}
    made: list[Object] = []
    for entry in children(pod, "spec", "resourceClaims"):
        template = templates.get(f"{namespace}/{entry.get('resourceClaimTemplateName')}")
        if template is None or entry["name"] in known:
            continue
        pattern = template["spec"]
        metadata = {
            **(pattern.get("metadata") or {}),
            "name": f"{name}-{entry['name']}",
            "namespace": namespace,
            "ownerReferences": [objects.owner_reference(POD, pod)],
        }
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
        listed.append(as_served({**claim, "spec": deepcopy(pattern["spec"])}))
        made.append({"name": entry["name"], "resourceClaimName": metadata["name"]})
    if not made:
        return pod, []
    status = pod.get("status") or {}
    changed = {
        **pod,
        "status": {**status, "resourceClaimStatuses": [*(status.get("resourceClaimStatuses") or ()), *made]},
    }
    listed[listed.index(pod)] = changed
    names = ", ".join(entry["resourceClaimName"] for entry in made)
    return changed, [f"not made yet, so taken from their templates: {names}"]


def _without_devices(cluster: Cluster, pod: PodView) -> list[resource.ResourceClaim]:
    """The pod's claims that have nothing yet, that of its extended resources with them."""
    found = claims_of(cluster, pod)
    claims = [] if isinstance(found, Obstacle) else [claim for claim in found if claim.status.allocation is None]
    classes = cluster.extended.serving(pod.requests)
    if classes:
        made = make_extended(pod, classes).claim
        metadata = msgspec.structs.replace(made.metadata, name=f"{pod.name}-extended-resources")
        claims = [*claims, msgspec.structs.replace(made, metadata=metadata)]
    return claims


def _looked_at(cluster: Cluster, full: bool) -> Sequence[str]:
    """The nodes that funnels and holders are told of."""
    names = cluster.node_names()
    return names if full else names[:SAMPLE]


def _funnels(problem: Problem, nodes: Iterable[str], full: bool) -> list[Funnel]:
    """How far each request of the problem's claims comes by itself, over these nodes."""
    by_request: dict[tuple[str, str], dict[str, Reason]] = {}
    for node, reason in problem.funnels(nodes):
        by_request.setdefault((reason.claim, reason.request), {})[node] = reason
    return [_funnel(claim, request, reasons, full) for (claim, request), reasons in by_request.items()]


def _funnel(claim: str, request: str, reasons: dict[str, Reason], full: bool) -> Funnel:
    total: dict[str, int] = {}
    for reason in reasons.values():
        for stage, count in reason.funnel.items():
            total[stage] = total.get(stage, 0) + count
    served = [reason for reason in reasons.values() if not reason.reason]
    # The node that came furthest tells; the funnel gets longer with every stage that is passed.
    best = max(reasons.values(), key=lambda reason: (len(reason.funnel), sum(reason.funnel.values())))
    best = served[0] if served else best
    return Funnel(
        claim=claim,
        request=request,
        reason=best.reason,
        message=best.message,
        funnel=total,
        nodes=len(reasons),
        served=len(served),
        by_node={node: reason.funnel for node, reason in reasons.items()} if full else {},
    )


# claims


def _claim(listed: list[Object], obj: Object, policy: str, now: float, full: bool) -> Explanation:
    claim: resource.ResourceClaim = decoded(obj)
    namespace, name = objects.namespace_of(obj), objects.name_of(obj)
    base: dict[str, Any] = {"kind": "ResourceClaim", "namespace": namespace, "name": name}
    cluster = cluster_of(listed)
    users = [
        objects.name_of(pod)
        for pod in listed
        if pod.get("kind") == "Pod"
        and objects.namespace_of(pod) == namespace
        and name in objects.pod_claim_names(pod).values()
    ]
    notes = [f"pods that use it: {_some(users)}" if users else "no pod uses it"]
    if claim.status.allocation is not None:
        reserved = [entry.name for entry in claim.status.reservedFor or ()]
        notes.append(f"reserved for: {_some(reserved)}" if reserved else "reserved for nobody")
        broken = taint_on(cluster, claim)
        state, missing = binding_state(claim, now)
        notes += [broken.message] if broken is not None else []
        notes += [missing] if state is not Binding.READY else []
        notes += wishes.told(cluster.inventory.snapshot(), claim, claim.status.allocation)
        nodes = cluster.named_by(claim.status.allocation.nodeSelector)
        where = "any node" if claim.status.allocation.nodeSelector is None else "nodes with the labels that it names"
        message = f"the claim has its devices; they can be used on {_some(nodes) if nodes is not None else where}"
        return Explanation(**base, state="allocated", message=message, devices=_devices(claim), notes=notes)
    problem = allocator.prepare(cluster.inventory.snapshot(), [claim], policy=policy)
    looked = _looked_at(cluster, full)
    requests = _funnels(problem, looked, full)
    feasible = problem.feasible()
    for node in islice(feasible.nodes, SAMPLE):
        if isinstance(problem.solve(node), Fits):
            message = (
                f"the claim has no devices yet, and they can be had on node {node}; it gets them with its first pod"
            )
            return Explanation(**base, state="unallocated", message=message, node=node, requests=requests, notes=notes)
    reason = feasible.refusal or allocator.explain(problem, feasible.nodes or cluster.node_names())
    return Explanation(
        **base,
        state="unallocated",
        reason=reason.reason,
        message=f"the claim fits on no node: {reason.message}",
        claim=reason.claim,
        request=reason.request,
        funnel=reason.funnel,
        nodes=reason.nodes,
        nearest=reason.nearest,
        cure=reason.cure,
        requests=requests,
        held_by=holders(listed, problem, looked, reason.reason),
        notes=notes,
    )


def _label(claim: resource.ResourceClaim) -> str:
    """Name of a claim, or what there is of the name of one that has yet to be made."""
    return claim.metadata.name or (claim.metadata.generateName or "").rstrip("-")


def _devices(claim: resource.ResourceClaim) -> list[str]:
    allocation = claim.status.allocation
    return [
        f"{claim.metadata.name}/{result.request}: {result.driver}/{result.pool}/{result.device}"
        for result in (allocation.devices.results or () if allocation is not None else ())
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more if names else "none"


# text


def lines(found: Explanation, *, full: bool = False) -> list[str]:
    """The explanation for people; :data:`LINES` lines at most unless ``full``."""
    word = f" ({found.reason})" if found.reason else ""
    head = f"{found.kind} {found.namespace}/{found.name}: {found.state}{word}"
    body = [f"  {found.message}"]
    body += [f"  to fix it: {found.cure}"] if found.cure else []
    body += [f"  {told(found.held_by, full=full)}"] if found.held_by else []
    body += [f"  nearest: {found.nearest}"] if found.nearest and found.nearest not in found.message else []
    details = [_funnel_line(request) for request in found.requests]
    details += [f"  device {device}" for device in found.devices]
    details += [f"  node {node}: {why}" for node, why in found.by_node.items() if full or len(found.by_node) > 1]
    notes = [f"  {note}" for note in found.notes]
    if not full:
        room = LINES - 1 - len(body) - len(notes)
        if len(details) > room:
            hidden = len(details) - room + 1
            details = [*details[: room - 1], f"  … {hidden} more lines with --full"]
        return [head, *body, *details, *notes][:LINES]
    for request in found.requests:
        for node, stages in request.by_node.items():
            details.append(f"  {request.claim} {request.request} on {node}: {_stages(stages)}")
    return [head, *body, *details, *notes]


def _funnel_line(request: Funnel) -> str:
    outcome = f"served on {request.served} of {request.nodes} nodes" if request.served else request.reason
    place = f"claim {request.claim}, request {request.request}" if request.request else f"claim {request.claim}"
    if request.nodes > 1:
        place += f", over {request.nodes} nodes"
    return f"  {place}: {_stages(request.funnel) or 'no devices'}: {outcome}"


def _stages(stages: dict[str, int]) -> str:
    return " > ".join(f"{count} {stage}" for stage, count in stages.items())
