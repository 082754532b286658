"""Remembering: bytes under keys with one revision, durable in SQLite or etcd, or only in memory.

base        the contract (Backend, Write, Conflict, Record)
sqlite      one file, group commit on a writer thread
etcd        etcd v3; etcdwire are its messages (needs grpcio)
backup      a copy of the file while it is in use, and back
memory      the same without a file
failpoints  death at a chosen commit, for crash tests
"""

from drakkar.store.base import Backend, Compacted, Conflict, Record, StoreFailed, Write
from drakkar.store.memory import MemoryBackend

__all__ = ["Backend", "Compacted", "Conflict", "MemoryBackend", "Record", "StoreFailed", "Write"]
