"""Text to tokens. Offsets count code points."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from drakkar.cel.values import Uint


class Token(NamedTuple):
    """``kind`` is ``ident``, ``quoted`` (a back-quoted field name), ``literal``, ``end`` or the punctuation itself."""

    kind: str
    value: object
    pos: int


class LexicalError(Exception):
    """A piece of text that is no token."""

    def __init__(self, message: str, pos: int, error_class: str = "syntax") -> None:
        self.message = message
        self.pos = pos
        self.error_class = error_class
        super().__init__(message)


_SPACE: Final = re.compile(r"(?:[ \t\r\n\f]+|//[^\n]*)+")
_IDENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED: Final = re.compile(r"`([A-Za-z0-9_.\-/ ]+)`")
_STRING: Final = re.compile(
    r"""(?P<bytes>[bB])?(?:
        (?P<raw>[rR])(?:"{3}(?P<r3>.*?)"{3}|'{3}(?P<q3>.*?)'{3}|"(?P<r1>[^"\n\r]*)"|'(?P<q1>[^'\n\r]*)')
        |"{3}(?P<d3>(?:\\.|[^\\])*?)"{3}|'{3}(?P<s3>(?:\\.|[^\\])*?)'{3}
        |"(?P<d1>(?:\\.|[^\\"\n\r])*)"|'(?P<s1>(?:\\.|[^\\'\n\r])*)'
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER: Final = re.compile(
    r"(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<int>0x[0-9a-fA-F]+|[0-9]+)(?P<unsigned>[uU])?"
)
_PUNCTUATION: Final = re.compile(r"&&|\|\||==|!=|<=|>=|[.,?:()\[\]{}<>+\-*/%!]")
_ESCAPE: Final = re.compile(
    r"""\\(?:x([0-9a-fA-F]{2})|X([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|([abfnrtv\\?"'`]))"""
)
_SIMPLE: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


def tokenize(text: str) -> list[Token]:
    """All tokens of ``text``; the last one has the kind ``end``."""
    tokens: list[Token] = []
    pos, end = 0, len(text)
    while True:
        if space := _SPACE.match(text, pos):
            pos = space.end()
        if pos >= end:
            tokens.append(Token("end", None, pos))
            return tokens
        char = text[pos]
        if (char in "\"'bBrR") and (match := _STRING.match(text, pos)):
            tokens.append(Token("literal", _string(match, pos), pos))
        elif match := _IDENT.match(text, pos):
            name = match.group()
            if name in _CONSTANTS:
                tokens.append(Token("literal", _CONSTANTS[name], pos))
            else:
                tokens.append(Token("in" if name == "in" else "ident", name, pos))
        elif (char.isascii() and char.isdigit()) or char == ".":
            match = _NUMBER.match(text, pos) or _PUNCTUATION.match(text, pos)
            assert match is not None
            if match.re is _PUNCTUATION:
                tokens.append(Token(".", ".", pos))
            else:
                tokens.append(Token("literal", _number(match, pos, tokens), pos))
        elif match := _QUOTED.match(text, pos):
            tokens.append(Token("quoted", match[1], pos))
        elif match := _PUNCTUATION.match(text, pos):
            tokens.append(Token(match.group(), match.group(), pos))
        elif char in "\"'":
            raise LexicalError("string literal is not closed", pos)
        else:
            raise LexicalError(f"character {char!r} is not part of the language", pos)
        pos = match.end()


class Number(NamedTuple):
    """An integer literal before its sign is known: -9223372036854775808 fits, its positive twin does not."""

    value: int
    unsigned: bool


def _number(match: re.Match[str], pos: int, tokens: list[Token]) -> object:
    if match["float"] is not None:
        value = float(match["float"])
        if value in (float("inf"), float("-inf")):
            raise LexicalError("double literal is out of range", pos, "bad-literal")
        return value
    digits = match["int"]
    if digits[:2] != "0x" and len(digits.lstrip("0")) > 20:
        # Refused when its sign is known; its value does not matter.
        return Number(10**20, match["unsigned"] is not None)
    return Number(int(digits, 16 if digits[:2] == "0x" else 10), match["unsigned"] is not None)


def integer(number: Number, negative: bool, pos: int) -> int:
    """The value of an integer literal; raises :class:`LexicalError` where 64 bits do not hold it."""
    value = -number.value if negative else number.value
    if number.unsigned:
        if negative or value > 2**64 - 1:
            raise LexicalError("uint literal is out of range", pos, "bad-literal")
        return Uint(value)
    if not -(2**63) <= value < 2**63:
        raise LexicalError("int literal is out of range", pos, "bad-literal")
    return value


def _string(match: re.Match[str], pos: int) -> str | bytes:
    binary = match["bytes"] is not None
    if match["raw"] is not None:
        raw = next(match[name] for name in ("r3", "q3", "r1", "q1") if match[name] is not None)
        return raw.encode() if binary else raw
    body = next(match[name] for name in ("d3", "s3", "d1", "s1") if match[name] is not None)
    if "\\" not in body:
        return body.encode() if binary else body
    parts: list[str] = []
    octets = bytearray()
    at = 0
    while at < len(body):
        slash = body.find("\\", at)
        plain = body[at:] if slash < 0 else body[at:slash]
        parts.append(plain)
        if binary:
            octets += plain.encode()
        if slash < 0:
            break
        escape = _ESCAPE.match(body, slash)
        if escape is None:
            raise LexicalError(f"unknown escape sequence {body[slash : slash + 2]!r}", pos)
        code = _escape_code(escape)
        if binary:
            if escape[3] or escape[4]:
                raise LexicalError("\\u and \\U are not allowed in bytes", pos, "bad-literal")
            octets.append(code)
        elif code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise LexicalError("escape sequence names no Unicode character", pos, "bad-literal")
        else:
            parts.append(chr(code))
        at = escape.end()
    return bytes(octets) if binary else "".join(parts)


def _escape_code(escape: re.Match[str]) -> int:
    hexadecimal = escape[1] or escape[2] or escape[3] or escape[4]
    if hexadecimal:
        return int(hexadecimal, 16)
    if escape[5]:
        return int(escape[5], 8)
    return _SIMPLE.get(escape[6], ord(escape[6]))
