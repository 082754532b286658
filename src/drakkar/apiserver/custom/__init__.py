"""Custom resources.

definitions   is a CustomResourceDefinition good, and what the server adds to it
structural    is its schema structural: what may stand where, defaults, rules and their costs
resources     what the stored definitions say; serving them
values        objects against the schema of their kind
rules         validation rules in CEL
"""

from drakkar.apiserver.custom.definitions import complete, definition_faults
from drakkar.apiserver.custom.resources import DEFINITIONS, CustomResources, stored_version

__all__ = ["DEFINITIONS", "CustomResources", "complete", "definition_faults", "stored_version"]
