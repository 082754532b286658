"""Remembering: bytes under keys with one revision, durable in SQLite or etcd, or only in memory.

base        the contract (Backend, SharedBackend, Write, Conflict, Refused, Record)
sqlite      one file, group commit on a writer thread
etcd        etcd v3 for several servers; etcdwire are its messages (needs grpcio)
backup      a copy of the file while it is in use, and back
memory      the same without a file
failpoints  death at a chosen commit, for crash tests
"""

from drakkar.store.base import Answer, Backend, Compacted, Conflict, Record, Refused, SharedBackend, StoreFailed, Write
from drakkar.store.memory import MemoryBackend

__all__ = [
    "Answer",
    "Backend",
    "Compacted",
    "Conflict",
    "MemoryBackend",
    "Record",
    "Refused",
    "SharedBackend",
    "StoreFailed",
    "Write",
]
