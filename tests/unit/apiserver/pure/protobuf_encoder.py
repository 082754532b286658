"""A small encoder, independent of the decoder: JSON to Kubernetes' protobuf by the same table."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any


@cache
def _facts() -> dict[str, Any]:
    return json.loads(gzip.decompress(resources.files("drakkar.data").joinpath("wire-fields.json.gz").read_bytes()))


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def block(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def encode(obj: dict[str, Any]) -> bytes:
    group, slash, version = obj["apiVersion"].partition("/")
    name = _facts()["roots"][f"{group}/{version}/{obj['kind']}" if slash else f"/{group}/{obj['kind']}"]
    meta = block(1, obj["apiVersion"].encode()) + block(2, obj["kind"].encode())
    return b"k8s\0" + block(1, meta) + block(2, message(name, obj)) + block(3, b"") + block(4, b"")


def message(name: str, obj: dict[str, Any]) -> bytes:
    short = name.rpartition(".")[2]
    if short in ("Time", "MicroTime") and isinstance(obj, str):
        moment = datetime.fromisoformat(obj)
        return number_field(1, int(moment.timestamp())) + number_field(2, moment.microsecond * 1000)
    if short == "Quantity":
        return block(1, str(obj).encode())
    if short == "IntOrString":
        is_text = isinstance(obj, str)
        return number_field(1, int(is_text)) + number_field(2, 0 if is_text else obj) + block(
            3, obj.encode() if is_text else b""
        )  # fmt: skip
    if short in ("RawExtension", "FieldsV1"):
        return block(1, json.dumps(obj).encode())
    out = b""
    for field in _facts()["types"][name]:
        number, key = field["n"], field["j"]
        if not key:
            out += block(number, message(field["t"], obj))
        elif field.get("r") == "m":
            for entry_key, item in obj.get(key, {}).items():
                out += block(number, block(1, entry_key.encode()) + value(2, field, item))
        elif field.get("r") == "l":
            for item in obj.get(key) or ():
                out += value(number, field, item)
        elif key in obj:
            out += value(number, field, obj[key])
        elif not field.get("p") and field["k"] in "sib":
            # Go writes the zeros of everything that is no pointer.
            out += value(number, field, {"s": "", "i": 0, "b": False}[field["k"]])
    return out


def value(number: int, field: dict[str, Any], item: Any) -> bytes:
    match field["k"]:
        case "s":
            return block(number, item.encode())
        case "i" | "b":
            return number_field(number, int(item))
        case "y":
            return block(number, base64.b64decode(item))
        case "x":
            return block(number, b"".join(block(1, text.encode()) for text in item))
        case _:
            return block(number, message(field["t"], item))
