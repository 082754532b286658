"""Remembering: bytes under keys with one revision, durable in SQLite or only in memory.

base        the contract (Backend, Write, Conflict, Record)
sqlite      one file, group commit on a writer thread
memory      the same without a file
failpoints  death at a chosen commit, for crash tests
"""

from drakkar.store.base import Backend, Compacted, Conflict, Record, StoreFailed, Write
from drakkar.store.memory import MemoryBackend

__all__ = ["Backend", "Compacted", "Conflict", "MemoryBackend", "Record", "StoreFailed", "Write"]
