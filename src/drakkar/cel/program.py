"""Compile expressions and evaluate them on devices.

Source: spec/cel.md, spec/cel-choice.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from drakkar.api.features import Features
from drakkar.api.semver import Semver
from drakkar.cel import closures, types
from drakkar.cel.access import reads
from drakkar.cel.checker import Environment, check
from drakkar.cel.cost import bound, estimate
from drakkar.cel.device import DeviceInput
from drakkar.cel.errors import CompileError, EvaluationError, Issue
from drakkar.cel.folding import Constants, FoldError, fold
from drakkar.cel.limits import LimitExceeded
from drakkar.cel.parser import Source, parse
from drakkar.cel.syntax import Call, Comprehension, Node, children
from drakkar.cel.texttests import TextTest, text_test
from drakkar.cel.tracked import Meter, run
from drakkar.cel.types import Type
from drakkar.cel.validators import validate
from drakkar.cel.values import kind_of, type_name

#: Highest estimate that is accepted on create, and highest actual cost of one evaluation.
COST_LIMIT: Final = 1_000_000
#: Longest expression in bytes.
MAX_LENGTH: Final = 10 * 1024
#: Estimates are upper bounds but for one unit; this much below the limit nothing is counted at run time.
_HEADROOM: Final = 100


ALL: Final = Features.drakkar()


class Program:
    """A compiled expression. Immutable but for what it remembers; may be used from several threads.

    ``output_type`` is the name of the static type, ``reads`` what it looks at (None: the whole device).
    """

    __slots__ = (
        "_blank",
        "_closure",
        "_constants",
        "_max_cost",
        "_node",
        "_parts",
        "_source",
        "_tracked",
        "output_type",
        "reads",
    )

    def __init__(
        self, source: Source, node: Node, constants: Constants, cost_limit: int = COST_LIMIT, counted: bool = True
    ) -> None:
        self._source = source
        self._node = node
        self._constants = constants
        self.output_type = node.type.output_name
        self._max_cost: int | None = None
        self._parts: tuple[Program, ...] | None = None
        self.reads = reads(node)
        self._closure, slots = closures.build(node, constants)
        self._blank = (None,) * (slots - 1)
        ceiling = cost_limit - _HEADROOM
        # Parts of an expression that needs no counting (``counted`` is False) need none either.
        expensive = counted and (self.max_cost > ceiling or _has_loop(node)) and bound(node) > ceiling
        self._tracked = cost_limit if expensive else None

    @property
    def max_cost(self) -> int:
        """Estimated worst cost of one evaluation, as an API server computes it."""
        if self._max_cost is None:
            self._max_cost = estimate(self._node)
        return self._max_cost

    @property
    def text(self) -> str:
        """The expression."""
        return self._source.text

    @property
    def too_expensive(self) -> bool:
        """Whether an API server refuses it on create because of its estimate."""
        return self.max_cost > COST_LIMIT

    def __repr__(self) -> str:
        return f"Program({self.text!r})"

    def evaluate(self, device: DeviceInput) -> bool:
        """Whether the device matches; raises :class:`EvaluationError`."""
        if self._tracked is None and device.error is None:
            env: list[Any] = [device, *self._blank]
            try:
                result = self._closure(env)
            except EvaluationError as error:
                raise self._placed(error) from None
            except RecursionError:
                raise _too_deep() from None
            except LimitExceeded:
                raise _too_large() from None
        else:
            result = self.value(device)
        return result if result is True or result is False else self.as_bool(result)

    @staticmethod
    def as_bool(result: Any) -> bool:
        """The result as a match; raises :class:`EvaluationError` when it is no bool."""
        if result is True or result is False:
            return result
        raise EvaluationError(
            "not-bool", f"the selector yields a value of type {type_name(result)}; compare it with something"
        )

    def value(self, device: DeviceInput) -> Any:
        """The result of the expression as a run-time value."""
        if device.error is not None:
            raise EvaluationError("device-data", device.error)
        try:
            if self._tracked is not None:
                return run(self._node, self._constants, {"device": device}, Meter(self._tracked))
            return self._closure([device, *self._blank])
        except EvaluationError as error:
            raise self._placed(error) from None
        except RecursionError:
            raise _too_deep() from None
        except LimitExceeded:
            raise _too_large() from None

    def _placed(self, error: EvaluationError) -> EvaluationError:
        if error.offset is not None:
            error.position = self._source.place(error.offset)
        return error

    def measure(self, device: DeviceInput, limit: int = COST_LIMIT) -> tuple[Any, EvaluationError | None, int]:
        """Evaluate while counting: (value, error, actual cost)."""
        meter = Meter(limit)
        try:
            return run(self._node, self._constants, {"device": device}, meter), None, meter.cost
        except EvaluationError as error:
            return None, self._placed(error), meter.cost
        except RecursionError:
            return None, _too_deep(), meter.cost

    def operands(self, *operators: str) -> tuple[str, tuple[Program, ...]]:
        """The outermost operator, if it is one of ``_&&_``, ``_||_`` and ``!_``, and the programs it joins.

        Chains of one operator come as one. An empty operator means that there is nothing to split: also for
        expressions whose cost has to be counted as a whole.
        """
        node = self._node
        if self._tracked is not None or not isinstance(node, Call) or node.function not in (operators or _LOGIC):
            return "", ()
        if self._parts is None:
            parts: list[Node] = []
            _split(node, node.function, parts)
            self._parts = tuple(Program(self._source, part, self._constants, counted=False) for part in parts)
        return node.function, self._parts

    def text_test(self) -> TextTest | None:
        """What the program asks of a string, when it reads one thing and asks for no more than that."""
        return None if self._tracked is not None else text_test(self._node, self._constants)


def _has_loop(node: Node) -> bool:
    """Whether something may be computed or used many times; only then costs and what they do not show differ much."""
    return isinstance(node, Comprehension) or any(map(_has_loop, children(node)))


def _too_deep() -> EvaluationError:
    return EvaluationError("too-deep", "the expression is nested too deeply to be evaluated")


def _too_large() -> EvaluationError:
    return EvaluationError("cost-limit", "operation cancelled: actual cost limit exceeded")


_LOGIC: Final = ("_&&_", "_||_", "!_")


def _split(node: Node, operator: str, parts: list[Node]) -> None:
    if isinstance(node, Call) and node.function == operator and operator != "!_":
        for arg in node.args:
            _split(arg, operator, parts)
    elif isinstance(node, Call) and node.function == operator and not parts:
        parts.append(node.args[0])
    else:
        parts.append(node)


class _Cache:
    """Compiled programs, least recently used first out. Failures are not kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._programs: OrderedDict[tuple[str, Environment, bool, int], Program] = OrderedDict()

    def get(self, key: tuple[str, Environment, bool, int]) -> Program | None:
        program = self._programs.get(key)
        if program is not None:
            try:
                self._programs.move_to_end(key)
            except KeyError:
                # Another thread dropped it in between; the program itself stays valid.
                return program
        return program

    def put(self, key: tuple[str, Environment, bool, int], program: Program) -> None:
        self._programs[key] = program
        while len(self._programs) > self._size:
            self._programs.popitem(last=False)

    def clear(self) -> None:
        self._programs.clear()


_cache: Final = _Cache(1024)


def compile_selector(
    text: str, *, environment: str = "stored", features: Features = ALL, cost_limit: int = COST_LIMIT
) -> Program:
    """Compile a device selector; raises :class:`CompileError`.

    ``environment`` is ``stored`` (everything is declared; schedulers and unchanged objects) or ``new-expressions``
    (objects being created; ``features`` count).
    """
    return _compile(text, environment, features, False, cost_limit)


def compile_derived(
    text: str, *, environment: str = "stored", features: Features = ALL, cost_limit: int = COST_LIMIT
) -> Program:
    """Compile a derived attribute, which yields an attribute value instead of a bool."""
    return _compile(text, environment, features, True, cost_limit)


def build_program(text: str) -> Program:
    """Compile a selector in the environment of stored expressions, past the cache (for measuring)."""
    return _build(text, Environment.of("stored", True, True), False, COST_LIMIT)


def cache_clear() -> None:
    """Forget compiled programs (for measuring)."""
    _cache.clear()


def _compile(text: str, environment: str, features: Features, derived: bool, cost_limit: int) -> Program:
    declared = Environment.of(environment, "DRAListTypeAttributes" in features, "DRAConsumableCapacity" in features)
    key = (text, declared, derived, cost_limit)
    cached = _cache.get(key)
    if cached is not None:
        return cached
    try:
        program = _build(text, declared, derived, cost_limit)
    except RecursionError:
        raise CompileError(text, [Issue("syntax", "the expression is nested too deeply", 1, 1)]) from None
    _cache.put(key, program)
    return program


def _build(text: str, declared: Environment, derived: bool, cost_limit: int) -> Program:
    source = Source(text)
    node, constants = analyse(source, declared, lambda type_: _output_issue(type_, declared, derived))
    return Program(source, node, constants, cost_limit)


def analyse(
    source: Source, declared: Environment, output_issue: Callable[[Type], Issue | None]
) -> tuple[Node, Constants]:
    """The checked tree and its constants; raises :class:`CompileError`.

    ``output_issue`` says what is wrong with the type of the result.
    """
    node = parse(source, declared.dotted, declared.bind)
    issues = check(node, declared, source) or validate(node, source)
    if issues:
        raise CompileError(source.text, issues)
    wrong = output_issue(node.type)
    if wrong is not None:
        raise CompileError(source.text, [wrong])
    try:
        return node, fold(node)
    except FoldError as error:
        raise CompileError(source.text, [error.issue]) from None


#: Types of derived attributes, and of the elements of such lists.
_DERIVED: Final = frozenset((types.STRING, types.INT, types.BOOL, types.SEMVER, types.DYN, types.ANY))


def _output_issue(type_: Type, declared: Environment, derived: bool) -> Issue | None:
    if not derived:
        if type_ in (types.BOOL, declared.attribute):
            return None
        return Issue("output-type", f"must evaluate to bool or the unknown type, not {type_}")
    if type_ in _DERIVED or (declared.includes and type_.kind == "list" and type_.params[0] in _DERIVED):
        return None
    lists = " or a list of one of them" if declared.includes else ""
    return Issue("output-type", f"a derived attribute must evaluate to string, int, bool, semver{lists}, not {type_}")


def attribute_of(value: Any) -> Mapping[str, Any]:
    """A result as the fields of a device attribute; raises :class:`EvaluationError` where it is none."""
    kind = kind_of(value)
    if kind in _SCALAR_FIELDS:
        return {_SCALAR_FIELDS[kind]: value}
    if kind is Semver:
        return {"version": str(value)}
    if kind is list:
        items = cast("list[Any]", value)
        for each, field in _LIST_FIELDS.items():
            if all(type(item) is each for item in items):
                return {field: [str(item) for item in items] if each is Semver else items}
    raise EvaluationError("not-attribute", f"a value of type {type_name(value)} cannot be a device attribute")


_SCALAR_FIELDS: Final[dict[type[Any], str]] = {str: "string", bool: "bool", int: "int"}
#: An empty list counts as one of strings.
_LIST_FIELDS: Final[dict[type[Any], str]] = {str: "strings", bool: "bools", int: "ints", Semver: "versions"}
