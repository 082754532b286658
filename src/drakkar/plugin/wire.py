"""The messages between a kubelet and a DRA driver: registration, the DRA service, device health.

Field numbers are those of the kubelet's protocols; names follow its spelling. `dra` v1 and v1beta1 differ in
one field (`share_id`), so they share types and :func:`without_share_ids` makes the older answer.
"""

# Fields are declared by functions that return dataclass fields, which ruff cannot see.
# ruff: noqa: RUF009

from dataclasses import dataclass, replace
from enum import IntEnum

from drakkar.plugin import protobuf as p

#: `PluginInfo.type` of a DRA driver.
DRA_PLUGIN = "DRAPlugin"
#: What `PluginInfo.supported_versions` offers.
DRA_V1, DRA_V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"
HEALTH_V1, HEALTH_V1ALPHA1 = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"


@dataclass(frozen=True)
class InfoRequest:
    pass


@dataclass(frozen=True)
class PluginInfo:
    type: str = p.text(1)
    name: str = p.text(2)
    endpoint: str = p.text(3)
    supported_versions: list[str] = p.texts(4)


@dataclass(frozen=True)
class RegistrationStatus:
    plugin_registered: bool = p.flag(1)
    error: str = p.text(2)


@dataclass(frozen=True)
class RegistrationStatusResponse:
    pass


@dataclass(frozen=True)
class Claim:
    namespace: str = p.text(1)
    uid: str = p.text(2)
    name: str = p.text(3)


@dataclass(frozen=True)
class Device:
    """A prepared device; `share_id` is not known to v1beta1."""

    request_names: list[str] = p.texts(1)
    pool_name: str = p.text(2)
    device_name: str = p.text(3)
    cdi_device_ids: list[str] = p.texts(4)
    share_id: str | None = p.optional_text(5)


@dataclass(frozen=True)
class NodePrepareResourcesRequest:
    claims: list[Claim] = p.messages(1, Claim)


@dataclass(frozen=True)
class NodePrepareResourceResponse:
    devices: list[Device] = p.messages(1, Device)
    error: str = p.text(2)


@dataclass(frozen=True)
class NodePrepareResourcesResponse:
    """One entry per claim of the request, by UID."""

    claims: dict[str, NodePrepareResourceResponse] = p.message_map(1, NodePrepareResourceResponse)


@dataclass(frozen=True)
class NodeUnprepareResourcesRequest:
    claims: list[Claim] = p.messages(1, Claim)


@dataclass(frozen=True)
class NodeUnprepareResourceResponse:
    error: str = p.text(1)


@dataclass(frozen=True)
class NodeUnprepareResourcesResponse:
    """One entry per claim of the request, by UID."""

    claims: dict[str, NodeUnprepareResourceResponse] = p.message_map(1, NodeUnprepareResourceResponse)


class HealthStatus(IntEnum):
    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True)
class NodeWatchResourcesRequest:
    pass


@dataclass(frozen=True)
class DeviceIdentifier:
    pool_name: str = p.text(1)
    device_name: str = p.text(2)


@dataclass(frozen=True)
class DeviceHealth:
    """`health` is a HealthStatus, or a number that a newer protocol added; times are in Unix seconds."""

    device: DeviceIdentifier = p.message(1, DeviceIdentifier)
    health: int = p.number(2)
    last_updated_time: int = p.number(3)
    health_check_timeout_seconds: int = p.number(4)
    message: str = p.text(5)


@dataclass(frozen=True)
class NodeWatchResourcesResponse:
    """Always every device of the driver."""

    devices: list[DeviceHealth] = p.messages(1, DeviceHealth)


def without_share_ids(response: NodePrepareResourcesResponse) -> NodePrepareResourcesResponse:
    """The answer as v1beta1 can say it."""
    return NodePrepareResourcesResponse(
        claims={
            uid: replace(answer, devices=[replace(device, share_id=None) for device in answer.devices])
            for uid, answer in response.claims.items()
        }
    )
