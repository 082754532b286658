"""Tokens to syntax tree, by precedence climbing; macros are expanded on the way."""

from __future__ import annotations

from typing import Final

from drakkar.cel.errors import CompileError, Issue
from drakkar.cel.lexer import LexicalError, Number, Token, integer, tokenize
from drakkar.cel.macros import MacroError, expand
from drakkar.cel.syntax import Call, Entry, Ident, ListNode, Literal, MapNode, Node, Select, StructNode, qualified_name

#: Deepest nesting of brackets; as in the reference implementation.
MAX_DEPTH: Final = 250

RESERVED: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_PRECEDENCE: Final = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "in": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip
_OPERATORS: Final = {
    "==": "_==_", "!=": "_!=_", "<": "_<_", "<=": "_<=_", ">": "_>_", ">=": "_>=_", "in": "@in",
    "+": "_+_", "-": "_-_", "*": "_*_", "/": "_/_", "%": "_%_", "&&": "_&&_", "||": "_||_",
}  # fmt: skip


class Source:
    """An expression's text and the places in it."""

    __slots__ = ("_starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        starts = [0]
        at = text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = text.find("\n", at + 1)
        self._starts = starts

    def place(self, pos: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = len(self._starts)
        while line > 1 and self._starts[line - 1] > pos:
            line -= 1
        return line, pos - self._starts[line - 1] + 1

    def issue(self, error_class: str, message: str, pos: int) -> Issue:
        """An issue at an offset."""
        line, column = self.place(pos)
        return Issue(error_class, message, line, column)


class _Syntax(Exception):
    def __init__(self, message: str, pos: int) -> None:
        self.message = message
        self.pos = pos
        super().__init__(message)


def parse(source: Source, dotted: frozenset[str] = frozenset(), bind: bool = True) -> Node:
    """The tree of the expression; raises :class:`CompileError`.

    ``dotted`` are the variables with a dot in their name, ``bind`` says whether ``cel.bind`` is a macro.
    """
    text = source.text
    if not text:
        raise CompileError(text, [Issue("syntax", "the expression is empty", 1, 0)])
    parser: _Parser | None = None
    try:
        parser = _Parser(tokenize(text), source, dotted, bind)
        node = parser.whole()
    except (_Syntax, LexicalError) as error:
        error_class = error.error_class if isinstance(error, LexicalError) else "syntax"
        found = parser.issues if parser else []
        raise CompileError(text, [*found, source.issue(error_class, error.message, error.pos)]) from None
    except RecursionError:
        raise CompileError(text, [Issue("syntax", "the expression is nested too deeply", 1, 1)]) from None
    if parser.issues:
        raise CompileError(text, parser.issues)
    return node


class _Parser:
    def __init__(self, tokens: list[Token], source: Source, dotted: frozenset[str], bind: bool) -> None:
        self._tokens = tokens
        self._dotted = dotted
        self._bind = bind
        self._at = 0
        self._depth = 0
        self._source = source
        self.issues: list[Issue] = []

    def _report(self, error_class: str, message: str, pos: int) -> None:
        self.issues.append(self._source.issue(error_class, message, pos))

    def _accept(self, kind: str) -> Token | None:
        token = self._tokens[self._at]
        if token.kind != kind:
            return None
        self._at += 1
        return token

    def _expect(self, kind: str) -> Token:
        token = self._accept(kind)
        if token is None:
            raise self._unexpected(f"{kind!r}")
        return token

    def _unexpected(self, wanted: str) -> _Syntax:
        token = self._tokens[self._at]
        found = "the end of the expression" if token.kind == "end" else repr(self._source.text[token.pos :][:12])
        return _Syntax(f"expected {wanted}, found {found}", token.pos)

    def whole(self) -> Node:
        node = self.expression()
        if self._tokens[self._at].kind != "end":
            raise self._unexpected("an operator or the end of the expression")
        return node

    # Nesting costs few frames on purpose: 250 levels of brackets have to fit Python's recursion limit.

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Syntax(f"the expression is nested more than {MAX_DEPTH} levels deep", self._tokens[self._at].pos)
        node = self._binary()
        if question := self._accept("?"):
            yes = self._binary()
            self._expect(":")
            no = self.expression()
            node = Call(question.pos, "_?_:_", [node, yes, no])
        self._depth -= 1
        return node

    def _binary(self) -> Node:
        operands = [self._operand()]
        operators: list[Token] = []
        while precedence := _PRECEDENCE.get((token := self._tokens[self._at]).kind):
            self._at += 1
            while operators and _PRECEDENCE[operators[-1].kind] >= precedence and not _same_chain(operators[-1], token):
                _reduce(operands, operators)
            operators.append(token)
            operands.append(self._operand())
        while operators:
            _reduce(operands, operators)
        return operands[0]

    def _operand(self) -> Node:
        """Signs, a value, and what follows it: selections, calls, indexes."""
        token = self._tokens[self._at]
        count = 0
        if token.kind == "!" or (token.kind == "-" and not self._is_negative_number()):
            while self._accept(token.kind):
                count += 1
        if self._accept("("):
            node = self.expression()
            self._expect(")")
        else:
            node = self._primary()
        while True:
            after = self._tokens[self._at]
            if after.kind == ".":
                self._at += 1
                node = self._selection(node, after)
            elif after.kind == "[":
                self._at += 1
                function = "_[?_]" if self._accept("?") else "_[_]"
                index = self.expression()
                self._expect("]")
                node = Call(after.pos, function, [node, index])
            elif after.kind == "{" and (name := qualified_name(node)) is not None:
                self._at += 1
                node = StructNode(after.pos, name, self._fields())
            else:
                break
        return node if count % 2 == 0 else Call(token.pos, "!_" if token.kind == "!" else "-_", [node])

    def _is_negative_number(self) -> bool:
        after = self._tokens[self._at + 1]
        if isinstance(after.value, Number):
            # There are no negative uints: the sign is an operator, which uints do not take.
            return after.kind == "literal" and not after.value.unsigned
        return after.kind == "literal" and isinstance(after.value, float)

    def _selection(self, node: Node, dot: Token) -> Node:
        optional = self._accept("?")
        token = self._tokens[self._at]
        if token.kind not in ("ident", "quoted"):
            raise self._unexpected("a field name")
        self._at += 1
        name = str(token.value)
        if optional:
            return Call(dot.pos, "_?._", [node, Literal(token.pos, name)])
        bracket = self._accept("(") if token.kind == "ident" else None
        if bracket is None:
            if isinstance(node, Ident) and (whole := f"{node.name}.{name}") in self._dotted:
                return Ident(node.pos, whole)
            return Select(dot.pos, node, name)
        return self._call(bracket.pos, name, self._arguments(")"), node)

    def _call(self, pos: int, name: str, args: list[Node], target: Node | None) -> Node:
        try:
            return expand(pos, name, target, args, self._bind) or Call(pos, name, args, target)
        except MacroError as error:
            self._report("macro-argument", error.message, error.pos)
            return Literal(pos, False)

    def _arguments(self, closing: str) -> list[Node]:
        args: list[Node] = []
        if self._accept(closing):
            return args
        while True:
            args.append(self.expression())
            if not self._accept(","):
                break
        self._expect(closing)
        return args

    def _primary(self) -> Node:
        token = self._tokens[self._at]
        match token.kind:
            case "literal" | "-":
                return self._literal(token)
            case "ident" | ".":
                return self._name(token)
            case "[":
                self._at += 1
                return self._list(token.pos)
            case "{":
                self._at += 1
                return MapNode(token.pos, self._entries())
            case _:
                raise self._unexpected("a value")

    def _literal(self, token: Token) -> Node:
        negative = token.kind == "-"
        self._at += 1
        value = token.value
        if negative:
            value = self._tokens[self._at].value
            self._at += 1
        if isinstance(value, Number):
            try:
                return Literal(token.pos, integer(value, negative, token.pos))
            except LexicalError as error:
                self._report(error.error_class, error.message, error.pos)
                return Literal(token.pos, 0)
        if negative and isinstance(value, float):
            value = -value
        return Literal(token.pos, value)

    def _name(self, token: Token) -> Node:
        leading = "." if self._accept(".") else ""
        ident = self._tokens[self._at]
        if ident.kind != "ident":
            raise self._unexpected("a name")
        self._at += 1
        name = str(ident.value)
        if name in RESERVED:
            self._report("reserved-identifier", f"{name!r} is a reserved word and cannot be used as a name", token.pos)
        if bracket := self._accept("("):
            return self._call(bracket.pos, leading + name, self._arguments(")"), None)
        return Ident(ident.pos, leading + name)

    def _list(self, pos: int) -> Node:
        elements: list[Node] = []
        optional: set[int] = set()
        while not self._accept("]"):
            if self._accept("?"):
                optional.add(len(elements))
            elements.append(self.expression())
            if not self._accept(","):
                self._expect("]")
                break
        return ListNode(pos, elements, frozenset(optional))

    def _entries(self) -> list[Entry]:
        entries: list[Entry] = []
        while not self._accept("}"):
            optional = self._accept("?") is not None
            key = self.expression()
            colon = self._expect(":")
            entries.append(Entry(colon.pos, key, self.expression(), optional))
            if not self._accept(","):
                self._expect("}")
                break
        return entries

    def _fields(self) -> list[Entry]:
        entries: list[Entry] = []
        while not self._accept("}"):
            optional = self._accept("?") is not None
            token = self._tokens[self._at]
            if token.kind not in ("ident", "quoted"):
                raise self._unexpected("a field name")
            self._at += 1
            colon = self._expect(":")
            entries.append(Entry(colon.pos, Literal(token.pos, str(token.value)), self.expression(), optional))
            if not self._accept(","):
                self._expect("}")
                break
        return entries


def _same_chain(one: Token, other: Token) -> bool:
    return one.kind == other.kind and one.kind in ("&&", "||")


def _reduce(operands: list[Node], operators: list[Token]) -> None:
    """Apply the last operator; a chain of ``&&`` or ``||`` is taken as a whole."""
    last = operators.pop()
    count = 1
    places = [last.pos]
    while operators and _same_chain(operators[-1], last):
        places.append(operators.pop().pos)
        count += 1
    terms = operands[-count - 1 :]
    del operands[-count - 1 :]
    operands.append(_balanced(_OPERATORS[last.kind], terms, places[::-1], 0, count))


def _balanced(function: str, terms: list[Node], places: list[int], low: int, high: int) -> Node:
    """A tree of logarithmic depth over the terms of a long chain."""
    if low == high:
        return terms[low]
    middle = (low + high) // 2
    left = _balanced(function, terms, places, low, middle)
    right = _balanced(function, terms, places, middle + 1, high)
    return Call(places[middle], function, [left, right])
