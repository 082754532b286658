"""Warnings reach clients with every answer, refusals and watches included."""

from __future__ import annotations

import asyncio
import json

import pytest

from drakkar.api.wire import Request
from tests.unit.apiserver.core.serving import Api

CLAIM = {
    "metadata": {"name": "c"},
    "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "x"}]}},
}


@pytest.mark.parametrize(
    ("path", "warning"),
    [
        (
            "v1beta1/namespaces/default/resourceclaims",
            "v1beta1 ResourceClaim is deprecated in v1.35+, unavailable in v1.38+",
        ),
        ("v1beta2/deviceclasses", "v1beta2 DeviceClass is deprecated in v1.36+, unavailable in v1.39+"),
        ("v1alpha3/devicetaintrules", "v1alpha3 DeviceTaintRule is deprecated in v1.36+, unavailable in v1.39+"),
        ("v1beta2/devicetaintrules", None),
        ("v1/resourceclaims", None),
    ],
)
def test_versions_on_their_way_out(path: str, warning: str | None) -> None:
    async def run() -> str | None:
        api = await Api.start()
        response = await api.ask(Request("GET", f"/apis/resource.k8s.io/{path}", (), {}, b""))
        assert response.status == 200
        await api.close()
        return response.headers.get("warning")

    assert asyncio.run(run()) == (f'299 - "resource.k8s.io/{warning}"' if warning else None)


def test_a_refusal_carries_the_warnings_found_before_it() -> None:
    async def run() -> tuple[int, str]:
        api = await Api.start()
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        query = (("fieldValidation", "Warn"),)
        response = await api.ask(Request("POST", path, query, {}, json.dumps(CLAIM).encode()))
        await api.close()
        return response.status, response.headers["warning"]

    code, warning = asyncio.run(run())
    assert code == 422
    assert warning == '299 - "unknown field \\"spec.devices.requests[0].deviceClassName\\""'
