"""A YAML loader that yields plain JSON values and remembers duplicate keys.

Imported only when a body really is YAML. Times stay text and keys become text, as they
do when YAML is converted to JSON.
"""

from __future__ import annotations

import math
from typing import Any

import yaml

_TIMESTAMP = "tag:yaml.org,2002:timestamp"

# The parser of libyaml is some ten times faster; PyYAML can be built without it.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DuplicateAwareLoader(_Base):
    """``duplicates`` names the paths of keys that occur more than once; the last value wins."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.duplicates: dict[str, None] = {}
        # Without aliases there are fewer values than bytes; a bomb has vastly more.
        self._budget = 2 * len(stream) + 10_000

    def get_single_data(self) -> Any:
        """The only document of the stream as JSON values, None when it is empty."""
        node = self.get_single_node()
        return None if node is None else self._value(node, "", frozenset())

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Resolves merge keys, each of which can double what the one below it made."""
        super().flatten_mapping(node)
        self._spend(node, len(node.value))

    def _spend(self, node: yaml.Node, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise yaml.constructor.ConstructorError(None, None, "document contains excessive aliasing", node.start_mark)

    def _value(self, node: yaml.Node, path: str, above: frozenset[int]) -> Any:
        self._spend(node, 1)
        if id(node) in above:
            raise yaml.constructor.ConstructorError(None, None, "anchor contains itself", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            result: dict[str, Any] = {}
            above = above | {id(node)}
            for key_node, value_node in node.value:
                key = self._key(key_node)
                below = f"{path}.{key}" if path else key
                if key in result:
                    self.duplicates[below] = None
                result[key] = self._value(value_node, below, above)
            return result
        if isinstance(node, yaml.SequenceNode):
            above = above | {id(node)}
            return [self._value(item, f"{path}[{i}]", above) for i, item in enumerate(node.value)]
        if node.tag == _TIMESTAMP:
            return node.value
        value = self.construct_object(node)
        if isinstance(value, float) and not math.isfinite(value):
            raise yaml.constructor.ConstructorError(None, None, f"json: unsupported value: {value}", node.start_mark)
        return value

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a scalar", node.start_mark)
        return str(node.value)
