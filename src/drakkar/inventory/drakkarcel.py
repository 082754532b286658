"""The join between selectors and :mod:`drakkar.cel`, which is loaded only when one is compiled."""

from __future__ import annotations

from typing import Any

from drakkar.api.resource.v1 import DeviceAttribute
from drakkar.inventory.devices import DeviceRecord
from drakkar.inventory.selection import Derivation, Program


class DrakkarCel:
    """Compiles with the environment for stored expressions, as a scheduler has to."""

    def compile(self, text: str) -> Program:
        """The compiled selector; :class:`drakkar.cel.CompileError` when the text is wrong."""
        from drakkar import cel

        return cel.compile_selector(text, environment="stored")

    def compile_derived(self, text: str) -> Derivation:
        """The compiled derived attribute; :class:`drakkar.cel.CompileError` when the text is wrong."""
        from drakkar import cel

        return cel.compile_derived(text, environment="stored")

    def attribute(self, value: Any) -> DeviceAttribute:
        """A value of an expression as an attribute; :class:`drakkar.cel.EvaluationError` when it cannot be one."""
        from drakkar import cel

        return DeviceAttribute(**cel.attribute_of(value))

    def present(self, record: DeviceRecord) -> Any:
        """The device with its slice's driver, as expressions see it."""
        from drakkar import cel

        return cel.DeviceInput(record.slice.driver, record.device)
