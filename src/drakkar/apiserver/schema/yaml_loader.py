"""A YAML loader that yields plain JSON values and remembers duplicate keys.

Imported only when a body really is YAML. Times stay text and keys become text, as they
do when YAML is converted to JSON.
"""

from __future__ import annotations

from typing import Any

import yaml

_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class DuplicateAwareLoader(yaml.SafeLoader):
    """``duplicates`` lists the paths of keys that occur more than once; the last value wins."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []
        # Without aliases there are fewer values than bytes; a bomb has vastly more.
        self._budget = 2 * len(stream) + 10_000

    def get_single_data(self) -> Any:
        """The only document of the stream as JSON values, None when it is empty."""
        node = self.get_single_node()
        return None if node is None else self._value(node, "", ())

    def _value(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> Any:
        self._budget -= 1
        if self._budget < 0:
            raise yaml.constructor.ConstructorError(None, None, "document contains excessive aliasing", node.start_mark)
        if id(node) in above:
            raise yaml.constructor.ConstructorError(None, None, "anchor contains itself", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = self._key(key_node)
                below = f"{path}.{key}" if path else key
                if key in result and below not in self.duplicates:
                    self.duplicates.append(below)
                result[key] = self._value(value_node, below, (*above, id(node)))
            return result
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, f"{path}[{i}]", (*above, id(node))) for i, item in enumerate(node.value)]
        if node.tag == _TIMESTAMP:
            return node.value
        return self.construct_object(node)

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a scalar", node.start_mark)
        return str(node.value)
