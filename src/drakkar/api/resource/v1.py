"""Objects of ``resource.k8s.io/v1``, spelled as on the wire.

Every struct is frozen and holds plain data: attribute names are the JSON names of the
API, quantities and times stay text (see :mod:`drakkar.api.quantity`), absent fields are
``None``. Decoding drops unknown fields; the API server therefore checks for them against
the schemas before, and components change foreign objects by patches, never by writing a
decoded struct back.

Source: the schemas of Kubernetes 1.37 (spec/api.md sections 3-5).
"""

from __future__ import annotations

from typing import Any

import msgspec

from drakkar.api.meta import Condition, NodeSelector, ObjectMeta, Struct

Quantity = str
Time = str
JSONObject = dict[str, Any]

# Names for builtins that fields of the same name hide inside a class body.
_Bool = bool
_Int = int


def _zero() -> str:
    """Of quantities that are absent. As a plain default it would be left out on the wire, where ``min`` is required."""
    return "0"


GROUP = "resource.k8s.io"
API_VERSION = "resource.k8s.io/v1"


class NetworkDeviceData(Struct, frozen=True, kw_only=True):
    """``NetworkDeviceData`` of resource.k8s.io/v1."""

    hardwareAddress: str | None = None
    interfaceName: str | None = None
    ips: list[str] | None = None


class AllocatedDeviceStatus(Struct, frozen=True, kw_only=True):
    """``AllocatedDeviceStatus`` of resource.k8s.io/v1."""

    conditions: list[Condition] | None = None
    data: JSONObject | None = None
    device: str = ""
    driver: str = ""
    networkData: NetworkDeviceData | None = None
    pool: str = ""
    shareID: str | None = None


class OpaqueDeviceConfiguration(Struct, frozen=True, kw_only=True):
    """``OpaqueDeviceConfiguration`` of resource.k8s.io/v1."""

    driver: str = ""
    parameters: JSONObject = {}


class DeviceAllocationConfiguration(Struct, frozen=True, kw_only=True):
    """``DeviceAllocationConfiguration`` of resource.k8s.io/v1."""

    opaque: OpaqueDeviceConfiguration | None = None
    requests: list[str] | None = None
    source: str = ""


class DeviceToleration(Struct, frozen=True, kw_only=True):
    """``DeviceToleration`` of resource.k8s.io/v1."""

    effect: str | None = None
    key: str | None = None
    operator: str | None = None
    tolerationSeconds: int | None = None
    value: str | None = None


class DeviceRequestAllocationResult(Struct, frozen=True, kw_only=True):
    """``DeviceRequestAllocationResult`` of resource.k8s.io/v1."""

    adminAccess: bool | None = None
    bindingConditions: list[str] | None = None
    bindingFailureConditions: list[str] | None = None
    consumedCapacity: dict[str, Quantity] | None = None
    device: str = ""
    driver: str = ""
    pool: str = ""
    request: str = ""
    shareID: str | None = None
    skipNodeOperations: list[str] | None = None
    tolerations: list[DeviceToleration] | None = None


class DeviceAllocationResult(Struct, frozen=True, kw_only=True):
    """``DeviceAllocationResult`` of resource.k8s.io/v1."""

    config: list[DeviceAllocationConfiguration] | None = None
    results: list[DeviceRequestAllocationResult] | None = None


class AllocationResult(Struct, frozen=True, kw_only=True):
    """``AllocationResult`` of resource.k8s.io/v1."""

    allocationTimestamp: Time | None = None
    devices: DeviceAllocationResult = DeviceAllocationResult()
    nodeSelector: NodeSelector | None = None


class CELDeviceSelector(Struct, frozen=True, kw_only=True):
    """``CELDeviceSelector`` of resource.k8s.io/v1."""

    expression: str = ""


class CapacityRequestPolicyRange(Struct, frozen=True, kw_only=True):
    """``CapacityRequestPolicyRange`` of resource.k8s.io/v1."""

    max: Quantity | None = None
    min: Quantity = msgspec.field(default_factory=_zero)
    step: Quantity | None = None


class CapacityRequestPolicy(Struct, frozen=True, kw_only=True):
    """``CapacityRequestPolicy`` of resource.k8s.io/v1."""

    default: Quantity | None = None
    validRange: CapacityRequestPolicyRange | None = None
    validValues: list[Quantity] | None = None


class CapacityRequirements(Struct, frozen=True, kw_only=True):
    """``CapacityRequirements`` of resource.k8s.io/v1."""

    requests: dict[str, Quantity] | None = None


class Counter(Struct, frozen=True, kw_only=True):
    """``Counter`` of resource.k8s.io/v1."""

    value: Quantity = msgspec.field(default_factory=_zero)


class CounterSet(Struct, frozen=True, kw_only=True):
    """``CounterSet`` of resource.k8s.io/v1."""

    counters: dict[str, Counter] = {}
    name: str = ""


class DeviceAttribute(Struct, frozen=True, kw_only=True):
    """The value of an attribute; exactly one field is set (spec/api.md 3.3)."""

    bool: _Bool | None = None
    bools: list[_Bool] | None = None
    int: _Int | None = None
    ints: list[_Int] | None = None
    string: str | None = None
    strings: list[str] | None = None
    version: str | None = None
    versions: list[str] | None = None


class DeviceCapacity(Struct, frozen=True, kw_only=True):
    """``DeviceCapacity`` of resource.k8s.io/v1."""

    requestPolicy: CapacityRequestPolicy | None = None
    value: Quantity = msgspec.field(default_factory=_zero)


class DeviceCounterConsumption(Struct, frozen=True, kw_only=True):
    """``DeviceCounterConsumption`` of resource.k8s.io/v1."""

    compatibilityGroups: list[str] | None = None
    counterSet: str = ""
    counters: dict[str, Counter] = {}


class NodeAllocatableMapping(Struct, frozen=True, kw_only=True):
    """``NodeAllocatableMapping`` of resource.k8s.io/v1."""

    capacityKey: str | None = None
    capacityMultiplier: Quantity | None = None
    deviceMultiplier: Quantity | None = None


class NodeAllocatableOverhead(Struct, frozen=True, kw_only=True):
    """``NodeAllocatableOverhead`` of resource.k8s.io/v1."""

    perContainer: Quantity | None = None
    perPod: Quantity | None = None


class NodeAllocatableResource(Struct, frozen=True, kw_only=True):
    """``NodeAllocatableResource`` of resource.k8s.io/v1."""

    mapping: NodeAllocatableMapping | None = None
    overhead: NodeAllocatableOverhead | None = None


class DeviceTaint(Struct, frozen=True, kw_only=True):
    """``DeviceTaint`` of resource.k8s.io/v1."""

    effect: str = ""
    key: str = ""
    timeAdded: Time | None = None
    value: str | None = None


class Device(Struct, frozen=True, kw_only=True):
    """``Device`` of resource.k8s.io/v1."""

    allNodes: bool | None = None
    allowMultipleAllocations: bool | None = None
    attributes: dict[str, DeviceAttribute] | None = None
    bindingConditions: list[str] | None = None
    bindingFailureConditions: list[str] | None = None
    bindsToNode: bool | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumesCounters: list[DeviceCounterConsumption] | None = None
    name: str = ""
    nodeAllocatableResources: dict[str, NodeAllocatableResource] | None = None
    nodeName: str | None = None
    nodeSelector: NodeSelector | None = None
    taints: list[DeviceTaint] | None = None


class DeviceClaimConfiguration(Struct, frozen=True, kw_only=True):
    """``DeviceClaimConfiguration`` of resource.k8s.io/v1."""

    opaque: OpaqueDeviceConfiguration | None = None
    requests: list[str] | None = None


class DeviceConstraint(Struct, frozen=True, kw_only=True):
    """``DeviceConstraint`` of resource.k8s.io/v1."""

    distinctAttribute: str | None = None
    matchAttribute: str | None = None
    requests: list[str] | None = None


class DeviceDerivedAttribute(Struct, frozen=True, kw_only=True):
    """``DeviceDerivedAttribute`` of resource.k8s.io/v1."""

    expression: str = ""
    name: str = ""


class DeviceSelector(Struct, frozen=True, kw_only=True):
    """``DeviceSelector`` of resource.k8s.io/v1."""

    cel: CELDeviceSelector | None = None


class ExactDeviceRequest(Struct, frozen=True, kw_only=True):
    """``ExactDeviceRequest`` of resource.k8s.io/v1."""

    adminAccess: bool | None = None
    allocationMode: str | None = None
    capacity: CapacityRequirements | None = None
    count: int | None = None
    derivedAttributes: list[DeviceDerivedAttribute] | None = None
    deviceClassName: str = ""
    selectors: list[DeviceSelector] | None = None
    tolerations: list[DeviceToleration] | None = None


class DeviceSubRequest(Struct, frozen=True, kw_only=True):
    """``DeviceSubRequest`` of resource.k8s.io/v1."""

    allocationMode: str | None = None
    capacity: CapacityRequirements | None = None
    count: int | None = None
    derivedAttributes: list[DeviceDerivedAttribute] | None = None
    deviceClassName: str = ""
    name: str = ""
    selectors: list[DeviceSelector] | None = None
    tolerations: list[DeviceToleration] | None = None


class DeviceRequest(Struct, frozen=True, kw_only=True):
    """``DeviceRequest`` of resource.k8s.io/v1."""

    exactly: ExactDeviceRequest | None = None
    firstAvailable: list[DeviceSubRequest] | None = None
    name: str = ""


class DeviceClaim(Struct, frozen=True, kw_only=True):
    """``DeviceClaim`` of resource.k8s.io/v1."""

    config: list[DeviceClaimConfiguration] | None = None
    constraints: list[DeviceConstraint] | None = None
    requests: list[DeviceRequest] | None = None


class DeviceClassConfiguration(Struct, frozen=True, kw_only=True):
    """``DeviceClassConfiguration`` of resource.k8s.io/v1."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(Struct, frozen=True, kw_only=True):
    """``DeviceClassSpec`` of resource.k8s.io/v1."""

    config: list[DeviceClassConfiguration] | None = None
    extendedResourceName: str | None = None
    selectors: list[DeviceSelector] | None = None


class DeviceClass(Struct, frozen=True, kw_only=True):
    """A named kind of device: selectors and configuration (cluster scoped)."""

    apiVersion: str = "resource.k8s.io/v1"
    kind: str = "DeviceClass"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintSelector(Struct, frozen=True, kw_only=True):
    """``DeviceTaintSelector`` of resource.k8s.io/v1."""

    device: str | None = None
    driver: str | None = None
    pool: str | None = None


class DeviceTaintRuleSpec(Struct, frozen=True, kw_only=True):
    """``DeviceTaintRuleSpec`` of resource.k8s.io/v1."""

    deviceSelector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRuleStatus(Struct, frozen=True, kw_only=True):
    """``DeviceTaintRuleStatus`` of resource.k8s.io/v1."""

    conditions: list[Condition] | None = None


class DeviceTaintRule(Struct, frozen=True, kw_only=True):
    """A taint put on devices from outside their driver (cluster scoped)."""

    apiVersion: str = "resource.k8s.io/v1"
    kind: str = "DeviceTaintRule"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()
    status: DeviceTaintRuleStatus = DeviceTaintRuleStatus()


class ResourceClaimSpec(Struct, frozen=True, kw_only=True):
    """``ResourceClaimSpec`` of resource.k8s.io/v1."""

    devices: DeviceClaim = DeviceClaim()


class ResourceClaimConsumerReference(Struct, frozen=True, kw_only=True):
    """``ResourceClaimConsumerReference`` of resource.k8s.io/v1."""

    apiGroup: str | None = None
    name: str = ""
    resource: str = ""
    uid: str = ""


class ResourceClaimStatus(Struct, frozen=True, kw_only=True):
    """``ResourceClaimStatus`` of resource.k8s.io/v1."""

    allocation: AllocationResult | None = None
    devices: list[AllocatedDeviceStatus] | None = None
    reservedFor: list[ResourceClaimConsumerReference] | None = None


class ResourceClaim(Struct, frozen=True, kw_only=True):
    """What a workload asks for, and what it got (namespaced)."""

    apiVersion: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(Struct, frozen=True, kw_only=True):
    """``ResourceClaimTemplateSpec`` of resource.k8s.io/v1."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Struct, frozen=True, kw_only=True):
    """The pattern of which one claim per pod is made."""

    apiVersion: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaimTemplate"
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class ResourcePool(Struct, frozen=True, kw_only=True):
    """``ResourcePool`` of resource.k8s.io/v1."""

    generation: int = 0
    name: str = ""
    resourceSliceCount: int = 0


class ResourceSliceSpec(Struct, frozen=True, kw_only=True):
    """``ResourceSliceSpec`` of resource.k8s.io/v1."""

    allNodes: bool | None = None
    devices: list[Device] | None = None
    driver: str = ""
    nodeName: str | None = None
    nodeSelector: NodeSelector | None = None
    partitionTypeAttribute: str | None = None
    perDeviceNodeSelection: bool | None = None
    pool: ResourcePool = ResourcePool()
    sharedCounters: list[CounterSet] | None = None
    skipNodeOperations: list[str] | None = None


class ResourceSlice(Struct, frozen=True, kw_only=True):
    """Devices of one pool as a driver publishes them (cluster scoped)."""

    apiVersion: str = "resource.k8s.io/v1"
    kind: str = "ResourceSlice"
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()
