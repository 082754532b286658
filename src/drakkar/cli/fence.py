"""``drakkar fence``: make, list and take away the taint rules that keep other schedulers off a driver's devices."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import msgspec

from drakkar.api.errors import ApiError, EnvironmentProblem, UsageError
from drakkar.api.formats import dns_subdomain
from drakkar.api.kinds import DEVICETAINTRULE, RESOURCESLICE
from drakkar.api.objects import name_of
from drakkar.cli.target import targeted
from drakkar.client import Client
from drakkar.scheduler.fence import fence_name, fence_rule, is_fence


def run(args: argparse.Namespace) -> int:
    """Make the fences of some drivers, take them away, or list all."""
    wrong = [driver for driver in args.drivers if dns_subdomain(driver) or len(driver) > 63]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is no name of a driver; kubectl get resourceslices shows them")
    if args.remove and not args.drivers:
        raise UsageError("--remove: say of which drivers")

    async def addressed() -> list[str]:
        async with targeted(args) as client:
            return await fence(client, args.drivers, remove=args.remove)

    for line in asyncio.run(addressed()):
        print(line)
    return 0


async def fence(client: Client, drivers: Sequence[str], *, remove: bool = False) -> list[str]:
    """Makes or removes the fences of these drivers, or lists all without any; a line on each."""
    try:
        if remove:
            return [await _remove(client, driver) for driver in drivers]
        if drivers:
            published = {item.spec.driver for item in (await client.list(RESOURCESLICE)).items}
            return [await _make(client, driver, driver in published) for driver in drivers]
        return await _listed(client)
    except ApiError as error:
        if error.code == 404:
            text = "the server has no DeviceTaintRules in resource.k8s.io/v1: Kubernetes 1.37 has them"
            raise EnvironmentProblem(text) from error
        raise


async def _make(client: Client, driver: str, published: bool) -> str:
    try:
        await client.create(DEVICETAINTRULE, msgspec.to_builtins(fence_rule(driver)))
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        rule = await client.get(DEVICETAINTRULE, fence_name(driver))
        if not is_fence(rule) or rule.spec.deviceSelector != fence_rule(driver).spec.deviceSelector:
            text = f"the rule {fence_name(driver)} is there and says something else; delete it first"
            raise EnvironmentProblem(text) from error
        return f"{driver}: fenced already"
    return f"{driver}: fenced" + ("" if published else "; no ResourceSlice names this driver yet")


async def _remove(client: Client, driver: str) -> str:
    try:
        await client.delete(DEVICETAINTRULE, fence_name(driver))
    except ApiError as error:
        if error.code != 404:
            raise
        return f"{driver}: there was no fence"
    return f"{driver}: open"


async def _listed(client: Client) -> list[str]:
    rules = [rule for rule in (await client.list(DEVICETAINTRULE)).items if is_fence(rule)]
    lines: list[str] = []
    for rule in sorted(rules, key=name_of):
        selector = rule.spec.deviceSelector
        parts = (selector.driver, selector.pool, selector.device) if selector is not None else ()
        chosen = "/".join(part or "*" for part in parts) if parts else "nothing: it selects no device"
        lines.append(f"{name_of(rule)}: {chosen.removesuffix('/*').removesuffix('/*')}")
    return lines or ["no fences"]
