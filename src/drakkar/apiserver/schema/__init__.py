"""What objects of each kind look like: strict decoding, pruning, defaults.

The table of built-in types ships as package data and is read on first use; a type is
compiled when somebody first asks for it, so that a server that serves pods never pays for
the other eight hundred types.
"""

from drakkar.apiserver.schema.decode import decode_json, decode_yaml
from drakkar.apiserver.schema.nodes import SchemaNode, Schemas, custom_schema, schemas
from drakkar.apiserver.schema.walk import apply_schema_defaults, check, is_settled, prune, write_zeros

__all__ = [
    "SchemaNode",
    "Schemas",
    "apply_schema_defaults",
    "check",
    "custom_schema",
    "decode_json",
    "decode_yaml",
    "is_settled",
    "prune",
    "schemas",
    "write_zeros",
]
