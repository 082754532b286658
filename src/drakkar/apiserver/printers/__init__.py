"""Tables: what ``kubectl get`` shows.

Columns and cells per kind; every other kind has NAME and AGE. Custom resources bring their
own columns (:func:`custom_printer`).
"""

from drakkar.apiserver.printers.custom import custom_printer
from drakkar.apiserver.printers.table import Printer, columns, row_cells, table
from drakkar.apiserver.printers.text import age, human_duration

__all__ = ["Printer", "age", "columns", "custom_printer", "human_duration", "row_cells", "table"]
