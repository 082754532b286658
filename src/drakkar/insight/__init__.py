"""Room ``insight``: computes from objects and returns structs; no screen.

:mod:`~drakkar.insight.dump` reads objects, :mod:`~drakkar.insight.verify` audits them,
:mod:`~drakkar.insight.cases` runs case folders.
"""
