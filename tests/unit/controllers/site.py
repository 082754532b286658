"""A world with workload controllers and an agent that runs pods when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drakkar.api.kinds import POD, Kind
from drakkar.client.clock import timestamp
from drakkar.client.writes import Delete
from drakkar.controllers.daemonsets import target_node
from tests.unit.controllers.world import Harness, World


class Site:
    """Controllers over a world; ``build`` makes them."""

    def __init__(self, build: Callable[[World], list[Any]]) -> None:
        self.world = World()
        self.harness = Harness(self.world, build)

    def create(self, kind: Kind, obj: Any) -> Any:
        made = self.world.create(kind, obj)
        self.rest()
        return made

    def rest(self) -> None:
        self.harness.rest()

    def read(self, kind: Kind, name: str = "w") -> Any:
        return self.world.read(kind, name)

    def pods(self) -> list[Any]:
        return self.world.all(POD)

    def change(self, kind: Kind, name: str = "w", **spec: Any) -> None:
        """A client's change of the spec; what is given as None goes."""

        def edit(obj: Any) -> None:
            for key, value in spec.items():
                obj["spec"].pop(key, None)
                if value is not None:
                    obj["spec"][key] = value
            obj["metadata"]["generation"] += 1

        self.world.update(kind, name, "default", edit)
        self.rest()

    def image(self, kind: Kind, image: str, name: str = "w") -> None:
        template = {
            **self.read(kind, name)["spec"]["template"],
            "spec": {"containers": [{"name": "c", "image": image}]},
        }
        self.change(kind, name, template=template)

    def run(self, *names: str, node: str = "", ready: bool = True) -> None:
        """Pods (all, where none is named) run, ready or not."""
        for pod in self.pods():
            if (names and pod["metadata"]["name"] not in names) or pod["status"].get("phase") == "Running":
                continue
            self.set(pod["metadata"]["name"], phase="Running", node=node, ready=ready)
        self.rest()

    def set(self, name: str, *, phase: str, node: str = "", ready: bool = True) -> None:
        def edit(pod: Any) -> None:
            pod["spec"].setdefault("nodeName", node or target_node(pod) or "n")
            moment = timestamp(self.world.clock.now)
            condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": moment}
            pod["status"] = {"phase": phase, "conditions": [condition]}

        self.world.update(POD, name, "default", edit)

    def end(self, name: str) -> None:
        """A pod is deleted and gone."""
        self.world.delete(Delete(POD, "default", name, grace=0))
        self.rest()

    def live(self, rounds: int = 40) -> None:
        """Agents at work until nothing changes: pods asked to go end, all others become ready."""
        for _ in range(rounds):
            before = self.world.revision
            for pod in self.pods():
                name = pod["metadata"]["name"]
                if pod["metadata"].get("deletionTimestamp"):
                    self.world.delete(Delete(POD, "default", name, grace=0))
                elif pod["status"].get("phase") != "Running":
                    self.set(name, phase="Running")
            self.rest()
            if self.world.revision == before:
                return
        raise AssertionError("does not come to rest")
