#!/usr/bin/python3
"""One rank of the measurement, for one GPU: how fast is every GPU's memory reached from every other?

A file stands for a GPU's memory (nothing here is NVLink). A rank that can map the file of its peer copies into it: its
own pod's GPUs at /run/fake-gpus, those of its ComputeDomain at /fabric. To any other peer it sends by MPI, over the
network of the pods. Which of these it can do was decided by the claims of its pod, and by nothing in this program.

Pairs take turns; who waits sleeps, so that only two ranks compute at a time. Rank 0 prints one line: RESULT and a JSON
document with GB/s and microseconds by sender and receiver.
"""

import json
import mmap
import os
import socket
import sys
import time

# Of the machine on which it runs.
from mpi4py import MPI  # pyright: ignore[reportMissingImports]

OWN, FABRIC = "/run/fake-gpus", "/fabric"
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
#: Numbers of the device node of channel 0 of a fake fabric.
NUMBERS = (121, 0)
#: Copies of which the best counts, and round trips.
COPIES, TRIPS = {"map": 5, "mpi": 2}, {"map": 200, "mpi": 20}
#: Seconds between two looks of a rank that waits, and for an answer of a peer.
LOOK, PATIENCE = 0.002, 60.0
DATA, TURN, REPORT, END = 1, 2, 3, 4

comm = MPI.COMM_WORLD


class Gpu:
    """The memory of a GPU, mapped: the bytes of copies, and two words behind them for round trips."""

    def __init__(self, path, size):
        with open(path, "r+b") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0))
        self.bytes = view[:size]
        self.words = view[-16:].cast("Q")


def main():
    size = int(sys.argv[1]) << 20
    rank, ranks = comm.rank, comm.size
    uuids = [os.environ[name] for name in sorted(os.environ) if name.startswith("GPU_")]
    local = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    mine = uuids[local]
    about = {"pod": socket.gethostname(), "node": os.environ["NODE_NAME"], "gpu": local, "uuid": mine}
    about["access"] = access()
    everybody = comm.allgather(about)
    gpus = [find(other["uuid"], size) for other in everybody]
    own = gpus[rank]
    rows = {}
    turns = [(i, j) for i in range(ranks) for j in range(ranks)]
    for number, (i, j) in enumerate(turns):
        if rank not in (i, j):
            continue
        if number:
            wait(TURN, number)
        if rank == i:
            rows[j] = itself(own, size) if i == j else lead(own, gpus[j], j, stamp(number))
            for other in set(turns[number + 1]) if number + 1 < len(turns) else ():
                comm.send(number + 1, dest=other, tag=TURN)
        else:
            follow(own, i, stamp(number))
    if rank:
        comm.send(rows, dest=0, tag=REPORT)
        wait(END, None)
        return
    found = [rows] + [wait(REPORT, None, source) for source in range(1, ranks)]
    for other in range(1, ranks):
        comm.send(None, dest=other, tag=END)
    table = [[row[j] for j in range(ranks)] for row in found]
    result = {"ranks": everybody, "bytes": size}
    for index, name in enumerate(("way", "bandwidth", "latency")):
        result[name] = [[cell[index] for cell in row] for row in table]
    print("RESULT " + json.dumps(result), flush=True)


def access():
    """What this container can do with the domain's memory and channel: names of errors, empty for none."""
    found = {"fabric": attempt(os.listdir, FABRIC), "channel": attempt(os.open, CHANNEL, os.O_RDWR)}
    # Somebody who knows the numbers makes the node himself.
    forged = f"/tmp/forged-{os.getpid()}"
    found["forged"] = attempt(os.mknod, forged, 0o20666, os.makedev(*NUMBERS)) or attempt(os.open, forged, os.O_RDWR)
    return found


def attempt(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def find(uuid, size):
    for folder in (OWN, FABRIC):
        if os.path.exists(f"{folder}/{uuid}"):
            return Gpu(f"{folder}/{uuid}", size)
    return None


def stamp(number):
    """What tells the content of one turn from all others."""
    return number.to_bytes(8, "little")


def itself(gpu, size):
    """Within one GPU: a copy out of its memory."""
    buffer = memoryview(bytearray(size))
    best = min(timed(lambda: buffer.__setitem__(slice(None), gpu.bytes)) for _ in range(COPIES["map"]))
    return "self", size / best / 1e9, 0.0


def lead(own, peer, j, mark):
    """Copy the memory of this rank's GPU into that of rank ``j``; its content is checked there."""
    way = "map" if peer is not None else "mpi"
    own.bytes[:] = mark * (len(own.bytes) // len(mark))
    comm.send(way, dest=j, tag=DATA)
    wait(DATA, None, j)
    if peer is not None:
        best = min(timed(lambda: peer.bytes.__setitem__(slice(None), own.bytes)) for _ in range(COPIES[way]))
        comm.send(None, dest=j, tag=DATA)
        trip = min(timed(lambda n=n: call(peer.words, n)) for n in range(1, TRIPS[way] + 1))
    else:
        best = min(timed(lambda: post(own.bytes, j)) for _ in range(COPIES[way]))
        word = bytearray(8)
        trip = min(timed(lambda: post(word, j)) for _ in range(TRIPS[way]))
    wait(DATA, None, j)
    return way, len(own.bytes) / best / 1e9, trip / 2 * 1e6


def follow(own, i, mark):
    """The other end of :func:`lead`."""
    way = wait(DATA, None, i)
    own.bytes[:] = bytes(len(own.bytes))
    own.words[0] = own.words[1] = 0
    comm.send(None, dest=i, tag=DATA)
    if way == "map":
        wait(DATA, None, i)
        for n in range(1, TRIPS[way] + 1):
            until(own.words, 0, n)
            own.words[1] = n
    else:
        for _ in range(COPIES[way]):
            comm.Recv([own.bytes, MPI.BYTE], source=i, tag=DATA)
            comm.Send(b"", dest=i, tag=DATA)
        for _ in range(TRIPS[way]):
            comm.Recv(bytearray(8), source=i, tag=DATA)
            comm.Send(b"", dest=i, tag=DATA)
    if own.bytes != mark * (len(own.bytes) // len(mark)):
        fail(f"rank {comm.rank}: what rank {i} copied has not arrived")
    comm.send(None, dest=i, tag=DATA)


def post(content, j):
    comm.Send([content, MPI.BYTE], dest=j, tag=DATA)
    comm.Recv(bytearray(1), source=j, tag=DATA)


def call(words, n):
    """Write into the peer's memory, and see there that it has answered."""
    words[0] = n
    until(words, 1, n)


def until(words, index, value):
    deadline = time.monotonic() + PATIENCE
    while words[index] != value:
        os.sched_yield()
        if time.monotonic() > deadline:
            fail(f"rank {comm.rank}: no answer in mapped memory")


def timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def wait(tag, content, source=MPI.ANY_SOURCE):
    """A message, with sleep in between; ``content`` is what a turn must have, None for any."""
    while not comm.Iprobe(source=source, tag=tag):
        time.sleep(LOOK)
    found = comm.recv(source=source, tag=tag)
    if content is not None and found != content:
        fail(f"rank {comm.rank}: turn {found} came, {content} was due")
    return found


def fail(words):
    print(words, file=sys.stderr, flush=True)
    comm.Abort(1)


main()
