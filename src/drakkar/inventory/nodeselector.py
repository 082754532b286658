"""Node selectors of slices and devices, compiled once and indexed by the labels they demand.

Upstream refuses a selector it cannot parse instead of letting it match nothing, and that is
visible (error class ``node-selector``), so parsing and matching are separate here. ``hooks``
names labels of which every matching node has at least one; it lets the inventory find the
nodes of a selector, and the selectors of a node, without trying every pair.

Source: spec/allocation.md section 4; the node affinity rules of the Kubernetes API.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from drakkar.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from drakkar.api.selectors import Requirement

#: The pseudo label under which a node's name is indexed.
NAME_KEY: Final = "metadata.name"
Hook = tuple[str, str]

_KEY: Final = re.compile(
    r"(?:(?=[^/]{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NUMBER: Final = re.compile(r"[0-9]+")

_Term = tuple[tuple[Requirement, ...], tuple[Requirement, ...]]


class CompiledSelector:
    """A node selector ready to be asked; ``fault`` says why it cannot be used, if so."""

    __slots__ = ("_one", "exact", "fault", "hooks", "selector", "terms")

    def __init__(self, selector: NodeSelector) -> None:
        self.selector = selector
        self.fault: str | None = None
        self.terms: list[_Term] = []
        for term in selector.nodeSelectorTerms:
            if not term.matchExpressions and not term.matchFields:
                continue
            fault = _term_fault(term)
            if fault:
                self.fault = fault
                break
            self.terms.append(
                (
                    tuple(_requirement(r) for r in term.matchFields or ()),
                    tuple(_requirement(r) for r in term.matchExpressions or ()),
                )
            )
        #: Labels of which a matching node has at least one, or None when no such list is known.
        self.hooks: tuple[Hook, ...] | None = self._find_hooks()
        #: Whether having one of the hooks is also enough.
        self._one = self._single()
        self.exact = self.hooks is not None and all(len(fields) + len(exprs) == 1 for fields, exprs in self.terms)

    def matches(self, labels: dict[str, str], name: str) -> bool:
        """Whether the node is selected (a faulty selector selects nothing)."""
        one = self._one
        if one is not None:
            return labels.get(one.key) in one.values
        if self.fault is not None:
            return False
        for fields, expressions in self.terms:
            if all(r.matches({NAME_KEY: name}) for r in fields) and all(r.matches(labels) for r in expressions):
                return True
        return False

    def _single(self) -> Requirement | None:
        """The only requirement, when it is a label In some values: the usual case, and quick to ask."""
        if self.fault is None and len(self.terms) == 1:
            fields, expressions = self.terms[0]
            if not fields and len(expressions) == 1 and expressions[0].operator == "In":
                return expressions[0]
        return None

    def _find_hooks(self) -> tuple[Hook, ...] | None:
        hooks: list[Hook] = []
        for fields, expressions in self.terms:
            best: list[Hook] | None = None
            for requirement in (*fields, *expressions):
                if requirement.operator == "In" and (best is None or len(requirement.values) < len(best)):
                    best = [(requirement.key, value) for value in requirement.values]
            if best is None:
                return None
            hooks += best
        return tuple(dict.fromkeys(hooks))


def _requirement(found: NodeSelectorRequirement) -> Requirement:
    return Requirement(found.key, found.operator, frozenset(found.values or ()))


def _term_fault(term: NodeSelectorTerm) -> str | None:
    for requirement in term.matchExpressions or ():
        fault = _expression_fault(requirement)
        if fault:
            return f"requirement on label {requirement.key!r}: {fault}"
    for requirement in term.matchFields or ():
        if requirement.operator not in ("In", "NotIn"):
            return f"requirement on field {requirement.key!r}: {requirement.operator!r} is not a valid operator"
        if len(requirement.values or ()) != 1:
            return f"requirement on field {requirement.key!r}: exactly one value is needed"
    return None


def _expression_fault(requirement: NodeSelectorRequirement) -> str | None:
    values = requirement.values or []
    match requirement.operator:
        case "In" | "NotIn":
            if not values:
                return "values must not be empty"
        case "Exists" | "DoesNotExist":
            if values:
                return "values must be empty"
        case "Gt" | "Lt":
            if len(values) != 1 or not _NUMBER.fullmatch(values[0]) or int(values[0]) >= 2**63:
                return "one integer value is needed"
        case _:
            return f"{requirement.operator!r} is not a valid operator"
    if not _KEY.fullmatch(requirement.key):
        return "the key is not a valid label name"
    wrong = next((value for value in values if not _VALUE.fullmatch(value)), None)
    return None if wrong is None else f"{wrong!r} is not a valid label value"


@lru_cache(maxsize=16384)
def _compiled(encoded: bytes) -> CompiledSelector:
    return CompiledSelector(msgspec.json.decode(encoded, type=NodeSelector))


def compile_node_selector(selector: NodeSelector) -> CompiledSelector:
    """The compiled form; equal selectors share one."""
    return _compiled(msgspec.json.encode(selector))
