"""Talking to any API server: transports, verbs, caches, and the runner of controllers.

Everything here knows the API and nothing else of ours, so it serves components beside a real
cluster as well as those inside ``drakkar up``.
"""

from drakkar.api.errors import ApiError
from drakkar.client import kubeconfig
from drakkar.client.cache import Cache, Caches
from drakkar.client.client import Client, ListResult, WatchEvent
from drakkar.client.clock import SystemClock, parse_timestamp, timestamp
from drakkar.client.events import EventRecorder
from drakkar.client.http import HttpTransport
from drakkar.client.leader import Election
from drakkar.client.queue import KeyQueue
from drakkar.client.runner import Controller, Runner
from drakkar.client.transport import MemoryTransport, Transport, Unreachable
from drakkar.client.writes import After, Create, Delete, Patch, Record, Write

__all__ = [
    "After",
    "ApiError",
    "Cache",
    "Caches",
    "Client",
    "Controller",
    "Create",
    "Delete",
    "Election",
    "EventRecorder",
    "HttpTransport",
    "KeyQueue",
    "ListResult",
    "MemoryTransport",
    "Patch",
    "Record",
    "Runner",
    "SystemClock",
    "Transport",
    "Unreachable",
    "WatchEvent",
    "Write",
    "kubeconfig",
    "parse_timestamp",
    "timestamp",
]
