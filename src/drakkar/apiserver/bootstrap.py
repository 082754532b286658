"""What a new cluster has before anybody asks: the namespaces."""

from __future__ import annotations

from drakkar.apiserver.options import WriteOptions
from drakkar.apiserver.registry import Registry

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


async def create_missing(registry: Registry) -> None:
    """Creates those of the initial objects that are not there."""
    served = registry.catalog.find("", "v1", "namespaces")
    if served is None:
        return
    view = registry.view(served)
    for name in NAMESPACES:
        if name not in view.table.entries:
            await registry.create(view, "", {"metadata": {"name": name}}, WriteOptions(), [])
