"""Well-known strings: finalizers, annotations, labels, taint keys, condition types and reasons.

Strings of Kubernetes stand first, ours (``drakkar.dev/...``) last. Components take them
from here, so that a misspelling is an import error.

Source: spec/api.md section 11, spec/controllers.md, spec/scheduling.md, spec/groups.md.
"""

from __future__ import annotations

from typing import Final

# resource.k8s.io

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
"""Finalizer of a claim while it is allocated."""
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a generated claim: name of the entry of the pod or pod group it was made for."""
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation (``"true"``) of the claim that the scheduler makes for extended resources."""
ADMIN_ACCESS_LABEL: Final = "resource.kubernetes.io/admin-access"
"""Namespace label; ``"true"`` permits claims with administrator access."""
IMPLICIT_EXTENDED_RESOURCE_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource name that every device class has without asking."""

ATTRIBUTE_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ATTRIBUTE_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
ATTRIBUTE_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

QUOTA_CLASS_SUFFIX: Final = ".deviceclass.resource.k8s.io/devices"

EVICTION_IN_PROGRESS: Final = "EvictionInProgress"
"""Condition of a DeviceTaintRule."""

# Nodes

LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
LABEL_ARCH: Final = "kubernetes.io/arch"
LABEL_OS: Final = "kubernetes.io/os"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"
LABEL_REGION: Final = "topology.kubernetes.io/region"
TAINT_NOT_READY: Final = "node.kubernetes.io/not-ready"
TAINT_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
TAINT_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
TAINT_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
NODE_READY: Final = "Ready"
NODE_LEASE_NAMESPACE: Final = "kube-node-lease"

# Pods

POD_SCHEDULED: Final = "PodScheduled"
POD_INITIALIZED: Final = "Initialized"
POD_READY: Final = "Ready"
CONTAINERS_READY: Final = "ContainersReady"
POD_READY_TO_START_CONTAINERS: Final = "PodReadyToStartContainers"
DISRUPTION_TARGET: Final = "DisruptionTarget"
REASON_UNSCHEDULABLE: Final = "Unschedulable"
REASON_SCHEDULER_ERROR: Final = "SchedulerError"
REASON_SCHEDULED: Final = "Scheduled"
REASON_SCHEDULING_GATED: Final = "SchedulingGated"
REASON_DEVICE_TAINT: Final = "DeletionByDeviceTaintManager"
REASON_NODE_TAINT: Final = "DeletionByTaintManager"
REASON_POD_GC: Final = "DeletionByPodGC"
DEFAULT_SCHEDULER: Final = "default-scheduler"

# Jobs

JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
JOB_NAME_LABEL_OLD: Final = "job-name"
CONTROLLER_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
CONTROLLER_UID_LABEL_OLD: Final = "controller-uid"
JOB_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Label and annotation of the pods of an indexed Job."""
JOB_TRACKING: Final = "batch.kubernetes.io/job-tracking"
"""Finalizer of a Job's pods until they have been counted."""
JOB_COMPLETE: Final = "Complete"
JOB_FAILED: Final = "Failed"
JOB_SUSPENDED: Final = "Suspended"
JOB_SUCCESS_CRITERIA_MET: Final = "SuccessCriteriaMet"
JOB_FAILURE_TARGET: Final = "FailureTarget"

# Scheduling and garbage collection

POD_GROUP_SCHEDULED: Final = "PodGroupInitiallyScheduled"
POD_GROUP_PROTECTION: Final = "scheduling.k8s.io/podgroup-protection"
FOREGROUND_DELETION: Final = "foregroundDeletion"
ORPHAN_DEPENDENTS: Final = "orphan"
NAMESPACE_FINALIZER: Final = "kubernetes"
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""PriorityClasses that every cluster has, and their values."""

# Ours

DOMAIN: Final = "drakkar.dev"
SCHEDULING_GATE: Final = "drakkar.dev/allocation"
"""Scheduling gate of pods whose claims we allocate beside the cluster's own scheduler."""
ALLOCATED_NODE: Final = "drakkar.dev/allocated-node"
"""Annotation of a pod whose scheduling gate we lifted: the node that its devices were chosen for."""
ALLOCATION_LOST: Final = "drakkar.dev/AllocationLost"
"""Condition of a pod without owner that cannot run on that node any more; its message names the cure."""
PODS_PER_NODE: Final = "drakkar.dev/pods-per-node"
"""Annotation: how many pods of one group may share a node."""
TAINT_HOST_LOST: Final = "drakkar.dev/host-lost"
"""Taint key of devices that have lost one of their hosts, and label of the DeviceTaintRules that say so."""
LOST_HOST: Final = "drakkar.dev/lost-host"
"""Annotation of such a rule: the name of the host."""
HOLLOW: Final = "drakkar.dev/hollow"
#: Label of what a case creates on a cluster (`drakkar test --kubeconfig`); its value names the run.
CASE: Final = "drakkar.dev/case"
"""Annotation of a hollow Node that names its fault (``failed``, ``slow``)."""
DRAWN_FROM: Final = "drawn-from.drakkar.dev"
"""Domain of device attributes that tie a capacity to a counter; see :mod:`drakkar.api.resource.drawn`."""
PREFERRED_CONSTRAINTS: Final = "drakkar.dev/preferred-constraints"
"""Annotation of a claim: constraints that are kept where that is possible (:mod:`drakkar.allocator.wishes`)."""
DRAWN_KIND: Final = "DrawnCounters"
"""Kind of a configuration entry (driver ``drakkar.dev``) of an allocation: what its devices draw from counters."""
TPU_DRIVER: Final = "tpu.drakkar.dev"
TPU_HOST_UNREACHABLE: Final = "tpu.drakkar.dev/host-unreachable"
"""Taint key of logical devices with a chip on a host that is not reachable."""
