"""Opaque parameters, strictly: the struct of their kind, and nothing that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

#: `(apiVersion, kind)` → struct, as in :attr:`drakkar.driver.Driver.configs`.
Configs = Mapping[tuple[str, str], type[msgspec.Struct]]
#: In place of such a table: parameters of every kind are taken, unread. For drivers that stand for others.
ANY: Configs = MappingProxyType({})

#: Characters of an unknown apiVersion or kind that are repeated in a message.
_SHOWN = 80


class Unread(msgspec.Struct, frozen=True):
    """Parameters of a kind that the driver does not know, whole."""

    parameters: dict[str, Any]


class ConfigProblem(ValueError):
    """Parameters that the driver cannot take; the message says what is known instead."""


def decode_config(driver: str, configs: Configs, parameters: Mapping[str, Any]) -> msgspec.Struct:
    """The parameters as a struct. Raises ConfigProblem."""
    if configs is ANY:
        return Unread(dict(parameters))
    key = (str(parameters.get("apiVersion", "")), str(parameters.get("kind", "")))
    struct = configs.get(key)
    if struct is None:
        known = ", ".join(f"{version} {kind}" for version, kind in configs) or "none"
        if not all(key):
            raise ConfigProblem(f"apiVersion and kind are needed, driver {driver} knows: {known}")
        given = " ".join(part[:_SHOWN] for part in key)
        raise ConfigProblem(f"{given} is not known to driver {driver}, known: {known}")
    rest = {name: value for name, value in parameters.items() if name not in ("apiVersion", "kind")}
    try:
        return msgspec.convert(rest, struct)
    except msgspec.ValidationError as error:
        raise ConfigProblem(str(error)) from None
