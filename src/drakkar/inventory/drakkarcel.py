"""The join between selectors and :mod:`drakkar.cel`, which is loaded only when one is compiled."""

from __future__ import annotations

from typing import Any

from drakkar.inventory.devices import DeviceRecord
from drakkar.inventory.selection import Program


class DrakkarCel:
    """Compiles with the environment for stored expressions, as a scheduler has to."""

    def compile(self, text: str) -> Program:
        """The compiled selector; :class:`drakkar.cel.CompileError` when the text is wrong."""
        from drakkar import cel

        return cel.compile_selector(text, environment="stored")

    def present(self, record: DeviceRecord) -> Any:
        """The device with its slice's driver, as expressions see it."""
        from drakkar import cel

        return cel.DeviceInput(record.slice.driver, record.device)
