"""Metrics of a driver in the text form of Prometheus, under names that all drivers share."""

from __future__ import annotations

from collections.abc import Iterator

from drakkar.api.exposition import family
from drakkar.driver.service import DriverService

_HELP = {
    "drakkar_driver_claims_total": ("counter", "Claims that the kubelet asked to prepare or unprepare, by outcome."),
    "drakkar_driver_seconds_total": ("counter", "Seconds spent on them."),
    "drakkar_driver_prepared_claims": ("gauge", "Claims that stand prepared on this node."),
    "drakkar_driver_devices": ("gauge", "Devices by state of health."),
    "drakkar_driver_problems_total": ("counter", "What went wrong: discovery, publication, health, registration."),
    "drakkar_driver_registered": ("gauge", "Whether a kubelet has taken the driver."),
    "drakkar_driver_published": ("gauge", "Whether the slices stand in the API."),
}


def render(service: DriverService) -> str:
    """All metrics of a running driver."""
    lines: list[str] = []
    for name, (kind, text) in _HELP.items():
        lines += family(name, kind, text)
        lines += [f"{name}{{{labels}}} {value}" for labels, value in _values(name, service)]
    return "\n".join(lines) + "\n"


def missing(service: DriverService) -> str:
    """What a driver that has started is not done with; empty when it is ready."""
    if not service.registered.is_set():
        return "the kubelet has not registered the driver"
    return "" if service.publication.published.is_set() else "the slices are not published"


def _values(name: str, service: DriverService) -> Iterator[tuple[str, float]]:
    driver = f'driver="{service.driver.name}"'
    preparer = service.preparer
    match name:
        case "drakkar_driver_claims_total":
            for operation in ("prepare", "unprepare"):
                total = preparer.calls[operation, "all"] if preparer else 0
                failed = preparer.calls[operation, "error"] if preparer else 0
                yield f'{driver},operation="{operation}",outcome="ok"', total - failed
                yield f'{driver},operation="{operation}",outcome="error"', failed
        case "drakkar_driver_seconds_total":
            for operation in ("prepare", "unprepare"):
                yield f'{driver},operation="{operation}"', round(preparer.seconds[operation], 6) if preparer else 0.0
        case "drakkar_driver_prepared_claims":
            yield driver, len(preparer.prepared()) if preparer else 0
        case "drakkar_driver_devices":
            for state, count in service.publication.states().items():
                yield f'{driver},state="{state}"', count
        case "drakkar_driver_problems_total":
            for problem in ("discovery_failures", "publication_problems", "health_failures", "registration_failures"):
                yield f'{driver},problem="{problem}"', service.counts[problem]
        case "drakkar_driver_registered":
            yield driver, int(service.registered.is_set())
        case _:
            yield driver, int(service.publication.published.is_set())
