"""Selectors over labels, fields and nodes, and the matching of taints with tolerations.

All of them read plain data: label maps, structs of `drakkar.api` or JSON dicts of the same
shape. A selector is parsed once into requirements and then asked often.

Source: the selector grammar of the Kubernetes API; spec/api.md 2, 3.7 and 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

from drakkar.api.errors import ParseError
from drakkar.api.meta import NodeSelector, NodeSelectorRequirement
from drakkar.api.names import LABEL_HOSTNAME
from drakkar.api.resource.v1 import DeviceTaint, DeviceToleration

Labels = Mapping[str, str]

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one key; ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels | None) -> bool:
        """Whether the label map fulfils the condition; NotIn and DoesNotExist hold for an absent key."""
        value = labels.get(self.key) if labels else None
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                bound = _int64(next(iter(self.values))) if len(self.values) == 1 else None
                number = _int64(value)
                if number is None or bound is None:
                    return False
                return number > bound if self.operator == "Gt" else number < bound
            case _:
                return False


def _int64(text: str | None) -> int | None:
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that hold together; no requirement at all matches every object."""

    requirements: tuple[Requirement, ...] = ()
    #: True for the selector that was absent where one was needed: it selects no object.
    nothing: bool = False

    def matches(self, labels: Labels | None) -> bool:
        """Whether an object with these labels is selected."""
        if self.nothing:
            return False
        return all(requirement.matches(labels) for requirement in self.requirements)

    @staticmethod
    def parse(text: str) -> LabelSelector:
        """The text form (``a=b,c in (d,e),!f``) of URLs and command lines; :class:`ParseError`. Cached."""
        return _parse_labels(text)

    @staticmethod
    def from_object(selector: Mapping[str, Any] | None) -> LabelSelector:
        """The object form (``matchLabels``, ``matchExpressions``); None selects nothing, ``{}`` everything."""
        if selector is None:
            return LabelSelector(nothing=True)
        labels: Labels = selector.get("matchLabels") or {}
        found = [Requirement(key, "In", frozenset((value,))) for key, value in sorted(labels.items())]
        for expression in selector.get("matchExpressions") or ():
            operator = expression["operator"]
            if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
                raise ParseError(f"{operator!r} is not a valid label selector operator")
            found.append(Requirement(expression["key"], operator, frozenset(expression.get("values") or ())))
        return LabelSelector(tuple(found))


_TOKEN: Final = re.compile(r"\s*(?:(==|!=|=|<|>|,|\(|\)|!)|([^\s=!<>,()]+)|$)")
_KEY: Final = re.compile(
    r"(?:(?=.{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


class _Tokens:
    """Operators and words of a label selector, read one at a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.operator = ""
        self.word = ""
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise self.error(f"unexpected character at {self.position}")
        self.position = match.end()
        self.operator, self.word = match[1] or "", match[2] or ""

    @property
    def done(self) -> bool:
        return not self.operator and not self.word

    def error(self, message: str) -> ParseError:
        return ParseError(f"unable to parse requirement: {message} in {self.text!r}")

    def take(self, operator: str) -> bool:
        """Step over ``operator`` if it comes next."""
        if self.operator != operator:
            return False
        self.advance()
        return True

    def take_word(self, pattern: re.Pattern[str], what: str) -> str:
        word = self.word
        if self.operator not in ("", ",", ")") or pattern.fullmatch(word) is None:
            raise self.error(f"{(word or self.operator)!r} is not a valid label {what}")
        if word:
            self.advance()
        return word


@lru_cache(maxsize=1024)
def _parse_labels(text: str) -> LabelSelector:
    tokens = _Tokens(text)
    found: list[Requirement] = []
    while not tokens.done:
        found.append(_requirement(tokens))
        if tokens.take(","):
            if tokens.done:
                raise tokens.error("nothing behind the last comma")
        elif not tokens.done:
            raise tokens.error(f"expected a comma before {(tokens.operator or tokens.word)!r}")
    return LabelSelector(tuple(found))


def _requirement(tokens: _Tokens) -> Requirement:
    if tokens.take("!"):
        return Requirement(tokens.take_word(_KEY, "key"), "DoesNotExist")
    key = tokens.take_word(_KEY, "key")
    if tokens.word in ("in", "notin"):
        operator = "In" if tokens.word == "in" else "NotIn"
        tokens.advance()
        return Requirement(key, operator, frozenset(_value_list(tokens)))
    match tokens.operator:
        case "=" | "==" | "!=" | ">" | "<" as sign:
            tokens.advance()
            value = tokens.take_word(_VALUE, "value")
            operator = {"!=": "NotIn", ">": "Gt", "<": "Lt"}.get(sign, "In")
            if operator in ("Gt", "Lt") and _int64(value) is None:
                raise tokens.error(f"{value!r} must be an integer")
            return Requirement(key, operator, frozenset((value,)))
        case _:
            return Requirement(key, "Exists")


def _value_list(tokens: _Tokens) -> Iterable[str]:
    if not tokens.take("("):
        raise tokens.error("expected '(' behind in or notin")
    values = [tokens.take_word(_VALUE, "value")]
    while tokens.take(","):
        values.append(tokens.take_word(_VALUE, "value"))
    if not tokens.take(")"):
        raise tokens.error("expected ')' at the end of the values")
    return values


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """``field`` has (or, with ``negated``, has not) the value ``value``."""

    field: str
    value: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Requirements on the few fields that a resource can be filtered by."""

    requirements: tuple[FieldRequirement, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The names used, for the caller to refuse those that the resource does not support."""
        return tuple(requirement.field for requirement in self.requirements)

    def matches(self, value_of: Callable[[str], str]) -> bool:
        """Whether all requirements hold; ``value_of`` reads a field, empty when unset."""
        return all((value_of(r.field) == r.value) != r.negated for r in self.requirements)

    def exact(self, field: str) -> str | None:
        """The value that ``field`` is demanded to have, if it is; lets a caller use an index."""
        return next((r.value for r in self.requirements if r.field == field and not r.negated), None)

    @staticmethod
    def parse(text: str) -> FieldSelector:
        r"""``a=b``, ``a==b`` and ``a!=b`` joined by commas; ``\`` escapes comma, equals sign and itself."""
        terms = (term for term in _split_escaped(text) if term)
        return FieldSelector(tuple(_field_requirement(term) for term in terms))


def _split_escaped(text: str) -> Iterable[str]:
    start = position = 0
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == ",":
            yield text[start:position]
            start = position + 1
        position += 1
    yield text[start:]


def _field_requirement(term: str) -> FieldRequirement:
    for position in range(len(term)):
        for sign in ("!=", "==", "="):
            if term.startswith(sign, position):
                return FieldRequirement(term[:position], _unescape(term, term[position + len(sign) :]), sign == "!=")
    raise ParseError(f"invalid selector: {term!r}; can't understand it: use field=value or field!=value")


def _unescape(term: str, text: str) -> str:
    result: list[str] = []
    characters = iter(text)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            if escaped not in ("\\", ",", "="):
                raise ParseError(f"invalid field selector {term!r}: \\ can escape only \\, comma and =")
            result.append(escaped)
        elif character in ",=":
            raise ParseError(f"invalid field selector {term!r}: unescaped {character!r} in the value")
        else:
            result.append(character)
    return "".join(result)


# Node selectors.

NodeSelectorLike = NodeSelector | Mapping[str, Any]


def node_selector_matches(selector: NodeSelectorLike | None, labels: Labels | None, node_name: str) -> bool:
    """Whether a node is selected: one term must hold, an empty term never does, no selector means any node.

    A requirement that cannot be understood (unknown operator, Gt without a number) makes
    its term fail.
    """
    if selector is None:
        return True
    return any(_term_matches(fields, labels_, labels, node_name) for fields, labels_ in _terms(selector))


def listed_nodes(selector: NodeSelector) -> tuple[list[str], list[str]] | None:
    """Names and hostnames of nodes beside which the selector can match none; None when it does not list its nodes."""
    names: dict[str, None] = {}
    hostnames: dict[str, None] = {}
    for term in selector.nodeSelectorTerms:
        by_name = _listed(term.matchFields, "metadata.name")
        by_hostname = _listed(term.matchExpressions, LABEL_HOSTNAME) if by_name is None else None
        if by_name is None and by_hostname is None:
            return None
        names.update(dict.fromkeys(by_name or ()))
        hostnames.update(dict.fromkeys(by_hostname or ()))
    return [*names], [*hostnames]


def _listed(requirements: Iterable[NodeSelectorRequirement] | None, key: str) -> Iterable[str] | None:
    return next((r.values or () for r in requirements or () if r.key == key and r.operator == "In"), None)


_Requirements = tuple[Requirement, ...]


def _terms(selector: NodeSelectorLike) -> Iterable[tuple[_Requirements, _Requirements]]:
    if isinstance(selector, NodeSelector):
        for term in selector.nodeSelectorTerms:
            yield _requirements(term.matchFields), _requirements(term.matchExpressions)
    else:
        for term in selector.get("nodeSelectorTerms") or ():
            yield node_term_requirements(term)


def node_term_requirements(term: Mapping[str, Any]) -> tuple[_Requirements, _Requirements]:
    """``matchFields`` and ``matchExpressions`` of a term in its JSON form, as requirements."""
    return _requirements(term.get("matchFields")), _requirements(term.get("matchExpressions"))


def _requirements(found: Iterable[NodeSelectorRequirement | Mapping[str, Any]] | None) -> _Requirements:
    return tuple(
        Requirement(r.key, r.operator, frozenset(r.values or ()))
        if isinstance(r, NodeSelectorRequirement)
        else Requirement(r.get("key", ""), r.get("operator", ""), frozenset(r.get("values") or ()))
        for r in found or ()
    )


def _term_matches(fields: _Requirements, expressions: _Requirements, labels: Labels | None, node_name: str) -> bool:
    if not fields and not expressions:
        return False
    name = {"metadata.name": node_name}
    return all(r.matches(name) for r in fields) and all(r.matches(labels) for r in expressions)


# Taints and tolerations.

#: Effects that keep new work away; other effects, unknown ones among them, are information only.
BLOCKING_EFFECTS: Final = frozenset(("NoSchedule", "NoExecute"))


def _field(value: Any, name: str) -> str:
    found: Any = cast(Mapping[str, Any], value).get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return found or ""


def tolerates(toleration: DeviceToleration | Mapping[str, Any], taint: DeviceTaint | Mapping[str, Any]) -> bool:
    """Whether a device toleration covers a device taint (spec/api.md 4.3); an unknown operator never does."""
    effect = _field(toleration, "effect")
    if effect and effect != _field(taint, "effect"):
        return False
    key = _field(toleration, "key")
    if key and key != _field(taint, "key"):
        return False
    match _field(toleration, "operator"):
        case "Exists":
            return True
        case "" | "Equal":
            return _field(toleration, "value") == _field(taint, "value")
        case _:
            return False


def node_toleration_matches(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a pod's toleration covers a node's taint; Gt and Lt compare the taint's value as an integer."""
    if toleration.get("effect") and toleration.get("effect") != taint.get("effect"):
        return False
    if toleration.get("key") and toleration.get("key") != taint.get("key"):
        return False
    wanted, value = toleration.get("value") or "", taint.get("value") or ""
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return wanted == value
        case "Gt" | "Lt" as operator:
            bound, number = _int64(wanted), _int64(value)
            if bound is None or number is None:
                return False
            return number > bound if operator == "Gt" else number < bound
        case _:
            return False


def untolerated_node_taint(
    taints: Iterable[Mapping[str, Any]] | None,
    tolerations: Iterable[Mapping[str, Any]] | None,
    effects: frozenset[str] = BLOCKING_EFFECTS,
) -> Mapping[str, Any] | None:
    """The first taint with one of ``effects`` that no toleration covers, or None."""
    known = tuple(tolerations or ())
    for taint in taints or ():
        if taint.get("effect") in effects and not any(node_toleration_matches(t, taint) for t in known):
            return taint
    return None
