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
_RELATIONS: Final = {"==", "!=", "<", "<=", ">", ">=", "in"}
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


def parse(source: Source) -> Node:
    """The tree of the expression; raises :class:`CompileError`."""
    text = source.text
    if not text:
        raise CompileError(text, [Issue("syntax", "the expression is empty", 1, 0)])
    parser: _Parser | None = None
    try:
        parser = _Parser(tokenize(text), source)
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
    def __init__(self, tokens: list[Token], source: Source) -> None:
        self._tokens = tokens
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

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Syntax(f"the expression is nested more than {MAX_DEPTH} levels deep", self._tokens[self._at].pos)
        node = self._logical("||")
        if question := self._accept("?"):
            yes = self._logical("||")
            self._expect(":")
            no = self.expression()
            node = Call(question.pos, "_?_:_", [node, yes, no])
        self._depth -= 1
        return node

    def _logical(self, operator: str) -> Node:
        inner = self._relation if operator == "&&" else None
        terms = [inner() if inner else self._logical("&&")]
        places: list[int] = []
        while token := self._accept(operator):
            places.append(token.pos)
            terms.append(inner() if inner else self._logical("&&"))
        return _balanced(_OPERATORS[operator], terms, places, 0, len(terms) - 1)

    def _relation(self) -> Node:
        node = self._sum()
        while (token := self._tokens[self._at]).kind in _RELATIONS:
            self._at += 1
            node = Call(token.pos, _OPERATORS[token.kind], [node, self._sum()])
        return node

    def _sum(self) -> Node:
        node = self._product()
        while (token := self._tokens[self._at]).kind in ("+", "-"):
            self._at += 1
            node = Call(token.pos, _OPERATORS[token.kind], [node, self._product()])
        return node

    def _product(self) -> Node:
        node = self._unary()
        while (token := self._tokens[self._at]).kind in ("*", "/", "%"):
            self._at += 1
            node = Call(token.pos, _OPERATORS[token.kind], [node, self._unary()])
        return node

    def _unary(self) -> Node:
        token = self._tokens[self._at]
        if token.kind not in ("!", "-"):
            return self._member()
        after = self._tokens[self._at + 1]
        if token.kind == "-" and after.kind == "literal" and isinstance(after.value, Number | float):
            return self._member()
        count = 0
        while self._accept(token.kind):
            count += 1
        node = self._member()
        return node if count % 2 == 0 else Call(token.pos, "!_" if token.kind == "!" else "-_", [node])

    def _member(self) -> Node:
        node = self._primary()
        while True:
            token = self._tokens[self._at]
            if token.kind == ".":
                self._at += 1
                node = self._selection(node, token)
            elif token.kind == "[":
                self._at += 1
                function = "_[?_]" if self._accept("?") else "_[_]"
                index = self.expression()
                self._expect("]")
                node = Call(token.pos, function, [node, index])
            elif token.kind == "{" and (name := qualified_name(node)) is not None:
                self._at += 1
                node = StructNode(token.pos, name, self._fields())
            else:
                return node

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
            return Select(dot.pos, node, name)
        return self._call(bracket.pos, name, self._arguments(")"), node)

    def _call(self, pos: int, name: str, args: list[Node], target: Node | None) -> Node:
        try:
            return expand(pos, name, target, args) or Call(pos, name, args, target)
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
            case "(":
                self._at += 1
                node = self.expression()
                self._expect(")")
                return node
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
        return Ident(token.pos, leading + name)

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


def _balanced(function: str, terms: list[Node], places: list[int], low: int, high: int) -> Node:
    """A tree of logarithmic depth over the terms of a long chain."""
    if low == high:
        return terms[low]
    middle = (low + high) // 2
    left = _balanced(function, terms, places, low, middle)
    right = _balanced(function, terms, places, middle + 1, high)
    return Call(places[middle], function, [left, right])
