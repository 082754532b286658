"""Bootstrap tokens: who holds one, what it is good for, and when it is not."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from drakkar.apiserver.noderights import secrets_of
from tests.unit.apiserver.core.serving import Api
from tests.unit.apiserver.core.test_writes import play, refused

SECRETS = "/api/v1/namespaces/kube-system/secrets"
GOOD = {
    "token-id": "abcdef",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-authentication": "true",
    "auth-extra-groups": "system:bootstrappers:lab,system:masters",
}
TOKEN = "abcdef.0123456789abcdef"


def secret(**changes: str) -> dict[str, Any]:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in (GOOD | changes).items()}
    metadata = {"name": "bootstrap-token-abcdef"}
    return {"metadata": metadata, "type": "bootstrap.kubernetes.io/token", "data": data}


async def _who(api: Api, token: str) -> dict[str, Any]:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    return (await api.post("/apis/authentication.k8s.io/v1/tokenreviews", review))["status"]


def test_the_holder_is_a_bootstrapper_and_nothing_else() -> None:
    async def scene(api: Api) -> None:
        await api.post(SECRETS, secret())
        status = await _who(api, TOKEN)
        assert status["user"]["username"] == "system:bootstrap:abcdef"
        groups = set(status["user"]["groups"])
        assert groups == {"system:bootstrappers", "system:bootstrappers:lab", "system:authenticated"}
        holder = api.as_user("system:bootstrap:abcdef", "system:bootstrappers")
        assert (await holder.get("/apis/certificates.k8s.io/v1/certificatesigningrequests"))["items"] == []
        assert (await refused(holder.get("/api/v1/nodes"))).code == 403
        assert (await refused(holder.get(SECRETS))).code == 403
        assert not (await _who(api, "abcdef.ffffffffffffffff")).get("authenticated")
        await api.delete(f"{SECRETS}/bootstrap-token-abcdef")
        assert not (await _who(api, TOKEN)).get("authenticated")

    play(scene)


@pytest.mark.parametrize(
    "changes",
    [
        {"expiration": "2001-01-01T00:00:00Z"},
        {"expiration": "tomorrow"},
        {"usage-bootstrap-authentication": "false"},
        {"token-id": "ghijkl"},
        {"token-secret": ""},
    ],
)
def test_a_token_that_is_not_good(changes: dict[str, str]) -> None:
    async def scene(api: Api) -> None:
        await api.post(SECRETS, secret(**changes))
        assert not (await _who(api, TOKEN)).get("authenticated")

    play(scene)


def test_secrets_that_a_pod_names() -> None:
    pod = {
        "spec": {
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "volume"}},
                {
                    "name": "b",
                    "projected": {"sources": [{"secret": {"name": "projected"}}, {"configMap": {"name": "x"}}]},
                },
                {"name": "c", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
                {"name": "d", "configMap": {"name": "y"}},
            ],
            "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "all"}}]}],
            "containers": [
                {"name": "c", "env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": "one", "key": "k"}}}]}
            ],
        }
    }
    assert secrets_of(pod) == {"pull", "volume", "projected", "csi", "all", "one"}
