"""``drakkar fence`` at our API server."""

from __future__ import annotations

import asyncio

import pytest

from drakkar.api.errors import EnvironmentProblem
from drakkar.api.kinds import DEVICETAINTRULE, RESOURCESLICE
from drakkar.cli import main
from drakkar.cli.fence import fence
from tests.support.eventually import memory_plane
from tests.unit.scheduler.build import DRIVER, node_slice
from tests.unit.scheduler.test_plane import fresh


def test_made_listed_and_removed() -> None:
    async def story() -> None:
        async with memory_plane() as client:
            await client.create(RESOURCESLICE, fresh(node_slice("n", 1)))
            assert await fence(client, []) == ["no fences"]
            assert await fence(client, [DRIVER, "other.example.com"]) == [
                f"{DRIVER}: fenced",
                "other.example.com: fenced; no ResourceSlice names this driver yet",
            ]
            assert await fence(client, [DRIVER]) == [f"{DRIVER}: fenced already"]
            rule = await client.get(DEVICETAINTRULE, f"drakkar-fence-{DRIVER}")
            assert (rule.spec.taint.key, rule.spec.taint.effect) == ("drakkar.dev/managed", "NoSchedule")
            # One made by hand for a single pool counts too.
            spec = {"deviceSelector": {"driver": DRIVER, "pool": "n"}, "taint": {"key": rule.spec.taint.key}}
            spec["taint"]["effect"] = "NoSchedule"
            metadata = {"name": "mine"}
            body = {"apiVersion": rule.apiVersion, "kind": rule.kind, "metadata": metadata, "spec": spec}
            await client.create(DEVICETAINTRULE, body)
            assert await fence(client, []) == [
                f"drakkar-fence-{DRIVER}: {DRIVER}",
                "drakkar-fence-other.example.com: other.example.com",
                f"mine: {DRIVER}/n",
            ]
            assert await fence(client, [DRIVER, "third.example.com"], remove=True) == [
                f"{DRIVER}: open",
                "third.example.com: there was no fence",
            ]
            assert len(await fence(client, [])) == 2

    asyncio.run(story())


def test_a_rule_of_that_name_that_says_something_else_is_left_alone() -> None:
    async def story() -> None:
        async with memory_plane() as client:
            spec = {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "a.example.com/b", "effect": "NoExecute"}}
            metadata = {"name": f"drakkar-fence-{DRIVER}"}
            body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": metadata, "spec": spec}
            await client.create(DEVICETAINTRULE, body)
            with pytest.raises(EnvironmentProblem, match="says something else"):
                await fence(client, [DRIVER])

    asyncio.run(story())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--remove"], "say of which drivers"),
        (["Not_A_Driver"], "is no name of a driver"),
        (["a" * 64], "is no name of a driver"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fence", *arguments]) == 2
    assert said in capsys.readouterr().err
