"""Opaque parameters, strictly: the struct of their kind, and nothing that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

#: `(apiVersion, kind)` → struct, as in :attr:`drakkar.driver.Driver.configs`.
Configs = Mapping[tuple[str, str], type[msgspec.Struct]]


class ConfigProblem(ValueError):
    """Parameters that the driver cannot take; the message says what is known instead."""


def decode_config(driver: str, configs: Configs, parameters: Mapping[str, Any]) -> msgspec.Struct:
    """The parameters as a struct. Raises ConfigProblem."""
    key = (str(parameters.get("apiVersion", "")), str(parameters.get("kind", "")))
    struct = configs.get(key)
    if struct is None:
        known = ", ".join(f"{version} {kind}" for version, kind in configs) or "none"
        raise ConfigProblem(f"{key[0]} {key[1]} is not known to driver {driver}, known: {known}")
    rest = {name: value for name, value in parameters.items() if name not in ("apiVersion", "kind")}
    try:
        return msgspec.convert(rest, struct)
    except msgspec.ValidationError as error:
        raise ConfigProblem(str(error)) from None
