"""Fleets: a file that describes nodes and their devices, instead of machines.

A Fleet names node groups with labels and capacity and says where devices come from: from a
driver profile, or from ResourceSlices as they were recorded. :func:`load_fleet` reads and
checks one; named fleets ship with this package. Nothing here talks to a server: node objects
go to the hollow nodes, recorded slices to whoever sets a cluster up.

Source: design.md section 5, "Formats and seams".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from drakkar.api.errors import UsageError
from drakkar.api.meta import Object

API_VERSION = "drakkar.dev/v1alpha1"
KIND = "Fleet"
HOSTNAME = "kubernetes.io/hostname"
FAULT = "drakkar.dev/hollow"
FAULTS = ("failed", "slow")

_FOLDER = Path(__file__).parent
_MAX_NODES = 200_000


@dataclass(frozen=True, slots=True)
class Grid:
    """Places of a group's nodes: row by row in blocks of ``width`` times ``height`` nodes."""

    width: int
    height: int

    def place(self, index: int) -> dict[str, str]:
        """Values of the placeholders ``{block}``, ``{x}`` and ``{y}`` for the node of that number."""
        block, rest = divmod(index, self.width * self.height)
        y, x = divmod(rest, self.width)
        return {"block": str(block), "x": str(x), "y": str(y)}


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike. Texts may hold ``{index}``, ``{block}``, ``{x}``, ``{y}``, ``{node}``."""

    name: str
    count: int
    labels: dict[str, str] = field(default_factory=dict[str, str])
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    capacity: dict[str, str] = field(default_factory=dict[str, str])
    grid: Grid | None = None
    fault: str = ""
    slices: tuple[Object, ...] = ()

    def values(self, index: int) -> dict[str, str]:
        """Placeholders of the node with that number, counted from 0."""
        values = {"index": str(index)}
        if self.grid is not None:
            values |= self.grid.place(index)
        values["node"] = _fill(self.name, values)
        return values


@dataclass(frozen=True, slots=True)
class DriverUse:
    """A driver profile that serves the fleet, with its parameters."""

    profile: str
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Fleet:
    """A whole fleet as read from its file."""

    name: str
    groups: tuple[NodeGroup, ...]
    drivers: tuple[DriverUse, ...] = ()
    slices: tuple[Object, ...] = ()

    def nodes(self) -> list[Object]:
        """Node objects with labels, annotations and capacity; the hollow nodes fill in the rest of the status."""
        return list(self._nodes())

    def node_names(self) -> list[str]:
        """Names of all nodes in the order of the file."""
        return [group.values(index)["node"] for group in self.groups for index in range(group.count)]

    def resource_slices(self) -> list[Object]:
        """Recorded ResourceSlices: those of the fleet, then those of each node of each group."""
        slices = [dict(recorded) for recorded in self.slices]
        for group in self.groups:
            for index in range(group.count) if group.slices else ():
                values = group.values(index)
                slices += [_fill_all(recorded, values) for recorded in group.slices]
        return slices

    def profiles(self) -> list[str]:
        """Names of the driver profiles, each once."""
        return list(dict.fromkeys(use.profile for use in self.drivers))

    def _nodes(self) -> Iterator[Object]:
        for group in self.groups:
            for index in range(group.count):
                values = group.values(index)
                labels = {HOSTNAME: values["node"]} | _fill_all(group.labels, values)
                annotations = _fill_all(group.annotations, values)
                if group.fault:
                    annotations[FAULT] = group.fault
                metadata: Object = {"name": values["node"], "labels": labels}
                if annotations:
                    metadata["annotations"] = annotations
                yield {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": metadata,
                    "status": {"capacity": dict(group.capacity), "allocatable": dict(group.capacity)},
                }


def fleet_names() -> list[str]:
    """Names of the fleets that ship with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def fleet_file(name_or_path: str | Path) -> Path:
    """The file behind a fleet's name or path, as :func:`load_fleet` takes it. Raises :class:`UsageError`."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or "\\" in text or text.endswith((".yaml", ".yml", ".json")):
        path = Path(name_or_path)
    else:
        path = _FOLDER / f"{text}.yaml"
        if not path.is_file():
            raise UsageError(
                f"no fleet is named {text!r}; choose one of {', '.join(fleet_names())}, or write ./{text} for a file"
            )
    return path


def load_fleet(name_or_path: str | Path) -> Fleet:
    """Read a fleet by its name or from a file.

    A text with a path separator or the ending ``.yaml``, ``.yml`` or ``.json`` is a path. Raises
    :class:`UsageError` naming the file, the field and the cure.
    """
    import yaml

    path = fleet_file(name_or_path)
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"fleet file {path} cannot be read ({error}); check the path and its permissions") from error
    try:
        documents = [document for document in yaml.safe_load_all(content) if document is not None]
    except yaml.YAMLError as error:
        raise UsageError(f"fleet file {path} is no YAML: {error}") from error
    if len(documents) != 1:
        raise UsageError(f"fleet file {path} holds {len(documents)} documents; it must hold one Fleet")
    return parse_fleet(documents[0], str(path))


def parse_fleet(document: object, source: str = "fleet") -> Fleet:
    """Check a decoded Fleet; ``source`` is the file's name for messages. Raises :class:`UsageError`."""
    reader = _Reader(source)
    root = reader.mapping(document, "", {"apiVersion", "kind", "metadata", "spec"})
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if root.get(key) != wanted:
            raise reader.fault(key, f"is {root.get(key)!r}; it must be {wanted!r}")
    metadata = reader.mapping(root.get("metadata"), "metadata", {"name", "labels", "annotations"})
    name = reader.text(metadata.get("name"), "metadata.name")
    spec = reader.mapping(root.get("spec"), "spec", {"nodeGroups", "drivers", "slices"})
    groups = tuple(
        _group(reader, raw, f"spec.nodeGroups[{i}]")
        for i, raw in enumerate(reader.items(spec.get("nodeGroups"), "spec.nodeGroups"))
    )
    if not groups:
        raise reader.fault("spec.nodeGroups", "is empty; name at least one group of nodes")
    fleet = Fleet(
        name=name,
        groups=groups,
        drivers=tuple(
            _driver(reader, raw, f"spec.drivers[{i}]")
            for i, raw in enumerate(reader.items(spec.get("drivers"), "spec.drivers"))
        ),
        slices=_slices(reader, spec.get("slices"), "spec.slices"),
    )
    if sum(group.count for group in groups) > _MAX_NODES:
        raise reader.fault("spec.nodeGroups", f"describes more than {_MAX_NODES} nodes; use several fleets")
    seen: set[str] = set()
    for node in fleet.node_names():
        if node in seen:
            raise reader.fault("spec.nodeGroups", f"names node {node!r} twice; put {{index}} into the group's name")
        seen.add(node)
    return fleet


def _group(reader: _Reader, raw: object, path: str) -> NodeGroup:
    known = {"name", "count", "labels", "annotations", "capacity", "grid", "fault", "slices"}
    data = reader.mapping(raw, path, known)
    count = reader.whole(data.get("count", 1), f"{path}.count", least=1)
    grid: Grid | None = None
    if data.get("grid") is not None:
        sides = reader.mapping(data["grid"], f"{path}.grid", {"width", "height"})
        grid = Grid(
            width=reader.whole(sides.get("width"), f"{path}.grid.width", least=1),
            height=reader.whole(sides.get("height"), f"{path}.grid.height", least=1),
        )
    name = reader.text(data.get("name"), f"{path}.name")
    if "{" not in name and count > 1:
        name += "-{index}"
    fault = data.get("fault") or ""
    if fault and fault not in FAULTS:
        raise reader.fault(f"{path}.fault", f"is {fault!r}; choose one of {', '.join(FAULTS)}")
    group = NodeGroup(
        name=name,
        count=count,
        labels=reader.texts(data.get("labels"), f"{path}.labels"),
        annotations=reader.texts(data.get("annotations"), f"{path}.annotations"),
        capacity=reader.texts(data.get("capacity"), f"{path}.capacity") or {"pods": "110"},
        grid=grid,
        fault=str(fault),
        slices=_slices(reader, data.get("slices"), f"{path}.slices"),
    )
    _check_placeholders(reader, group, path)
    return group


def _check_placeholders(reader: _Reader, group: NodeGroup, path: str) -> None:
    """A misspelt placeholder would end up in names of nodes, so find it while the path is known."""
    values = group.values(0)
    texts = [("name", group.name)]
    texts += [(f"labels[{key}]", value) for key, value in group.labels.items()]
    texts += [(f"annotations[{key}]", value) for key, value in group.annotations.items()]
    for where, text in texts:
        rest = _fill(text, values)
        if where != "name" and where.startswith("annotations"):
            continue  # annotations may hold JSON
        if "{" in rest or "}" in rest:
            cure = "use {index}" + ("" if group.grid else ", or set grid and use {block}, {x} and {y}")
            raise reader.fault(f"{path}.{where}", f"has a placeholder that nothing fills ({text!r}); {cure}")


def _driver(reader: _Reader, raw: object, path: str) -> DriverUse:
    data = reader.mapping(raw, path, {"profile", "parameters"})
    parameters = reader.mapping(data.get("parameters") or {}, f"{path}.parameters", None)
    return DriverUse(profile=reader.text(data.get("profile"), f"{path}.profile"), parameters=parameters)


def _slices(reader: _Reader, raw: object, path: str) -> tuple[Object, ...]:
    slices: list[Object] = []
    for i, item in enumerate(reader.items(raw, path)):
        data = reader.mapping(item, f"{path}[{i}]", None)
        if data.get("kind") != "ResourceSlice":
            raise reader.fault(f"{path}[{i}].kind", f"is {data.get('kind')!r}; it must be 'ResourceSlice'")
        slices.append(data)
    return tuple(slices)


class _Reader:
    """Checks decoded YAML and words what is wrong with it."""

    def __init__(self, source: str):
        self.source = source

    def fault(self, path: str, what: str) -> UsageError:
        return UsageError(f"{self.source}: {path or 'the document'} {what}")

    def mapping(self, value: object, path: str, known: set[str] | None) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fault(path, f"is {_kind(value)}; it must be a mapping")
        data = cast(dict[object, Any], value)
        for key in data:
            if not isinstance(key, str):
                raise self.fault(path, f"has the key {key!r}; keys must be texts, put it in quotes")
            if known is not None and key not in known:
                raise self.fault(f"{path}.{key}".lstrip("."), f"is unknown; known are {', '.join(sorted(known))}")
        return cast(dict[str, Any], data)

    def items(self, value: object, path: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.fault(path, f"is {_kind(value)}; it must be a list")
        return cast(list[Any], value)

    def text(self, value: object, path: str) -> str:
        if not isinstance(value, str) or not value:
            raise self.fault(path, f"is {_kind(value)}; it must be a text")
        return value

    def texts(self, value: object, path: str) -> dict[str, str]:
        data = self.mapping(value or {}, path, None)
        return {
            key: str(item)
            if isinstance(item, int | float) and not isinstance(item, bool)
            else self._plain(item, path, key)
            for key, item in data.items()
        }

    def _plain(self, value: object, path: str, key: str) -> str:
        if not isinstance(value, str):
            raise self.fault(f"{path}[{key}]", f"is {_kind(value)}; it must be a text, put it in quotes")
        return value

    def whole(self, value: object, path: str, *, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.fault(path, f"is {value!r}; it must be a whole number of at least {least}")
        return value


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    if value == "":
        return "empty"
    return f"a {type(value).__name__}"


def _fill(text: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


def _fill_all(value: Any, values: dict[str, str]) -> Any:
    fillers: dict[type, Callable[[Any], Any]] = {
        str: lambda text: _fill(text, values),
        list: lambda items: [_fill_all(item, values) for item in items],
        dict: lambda items: {_fill(key, values): _fill_all(item, values) for key, item in items.items()},
    }
    filler = fillers.get(type(value))
    return value if filler is None else filler(value)
