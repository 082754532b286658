"""A program that stays with one container: writes its log, lets clients attach, and remembers how it ended.

It outlives the agent, so that neither output nor exit status is lost when the agent crashes, and it is found again by
the files it leaves. It runs alone (``python -I -S shim.py CONFIG``) and imports nothing but the standard library,
because there is one per container.

CONFIG is a JSON file; see :data:`drakkar.node.agent.shims.Config`. On standard output comes one line when the container
exists: ``{"pid": N}`` or ``{"error": TEXT}``. Clients on the socket send and get frames: a byte that names the channel
(as in `drakkar.streaming.channels`), four bytes of length, the content.
"""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

STDIN, STDOUT, STDERR, RESIZE, CLOSE = 0, 1, 2, 4, 255
NAMES = {STDOUT: b"stdout", STDERR: b"stderr"}
#: Longest text in one entry of a log, as other runtimes have it.
LONGEST_ENTRY = 16 << 10
#: Bytes that wait for a client that does not read; then it is cut off.
LONGEST_BACKLOG = 4 << 20
#: Seconds for output that something else than the container's first process still holds open.
DRAIN = 2.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Where a test lets a monitor die; see `drakkar.plugin.failpoints`.
POINTS = (
    "monitor-listening",
    "monitor-created",
    "monitor-recorded",
    "monitor-reported",
    "monitor-ended",
    "monitor-remembered",
)


class Log:
    """The log file; moved aside when it has become too long."""

    def __init__(self, path, longest, keep):
        self.path, self.longest, self.keep = path, longest, keep
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115
        self.size = self.file.tell()
        self.held = {STDOUT: bytearray(), STDERR: bytearray()}

    def take(self, channel, data):
        held = self.held[channel]
        held += data
        while True:
            end = held.find(b"\n", 0, LONGEST_ENTRY)
            if end >= 0:
                self.entry(channel, b"F", bytes(held[:end]))
                del held[: end + 1]
            elif len(held) >= LONGEST_ENTRY:
                self.entry(channel, b"P", bytes(held[:LONGEST_ENTRY]))
                del held[:LONGEST_ENTRY]
            else:
                return

    def end(self, channel):
        if self.held[channel]:
            self.entry(channel, b"P", bytes(self.held[channel]))
            self.held[channel].clear()

    def entry(self, channel, tag, text):
        now = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z"
        line = stamp.encode() + b" " + NAMES[channel] + b" " + tag + b" " + text + b"\n"
        if self.size + len(line) > self.longest and self.size:
            self.turn()
        try:
            self.file.write(line)
            self.size += len(line)
        except OSError:
            pass  # A full disk must not stop the container.

    def turn(self):
        for number in range(self.keep - 1, 0, -1):
            older = self.path if number == 1 else f"{self.path}.{number - 1}"
            if os.path.exists(older):
                os.replace(older, f"{self.path}.{number}")
        self.file.close()
        self.file = open(self.path, "wb", buffering=0)  # noqa: SIM115
        self.size = 0


class Client:
    """One attached client."""

    def __init__(self, connection):
        connection.setblocking(False)
        self.connection = connection
        self.incoming = bytearray()
        self.outgoing = bytearray()

    def frames(self):
        while len(self.incoming) >= 5:
            channel, length = struct.unpack_from(">BI", self.incoming)
            if len(self.incoming) < 5 + length:
                return
            yield channel, bytes(self.incoming[5 : 5 + length])
            del self.incoming[: 5 + length]


class Shim:
    def __init__(self, config):
        self.config = config
        self.selector = selectors.DefaultSelector()
        self.log = Log(config["log"], config["longestLog"], config["keepLogs"])
        self.clients = []
        self.process = None
        self.stdin: int = -1
        self.pending = bytearray()
        self.closing = False
        self.master: int = -1
        self.open = set()

    def run(self):
        started = time.time()
        listener = self.listen()
        hit("monitor-listening")
        try:
            pid = self.start()
        except (OSError, RuntimeError) as error:
            self.report({"error": str(error)})
            self.remember({"exitCode": 128, "error": str(error), "startedAt": started, "finishedAt": time.time()})
            return
        hit("monitor-created")
        config = self.config
        state = {
            "identity": config["identity"],
            "shim": os.getpid(),
            "shimStart": start_time(os.getpid()),
            "pid": pid,
            "pidStart": start_time(pid),
            "startedAt": started,
            "socket": config["socket"],
        }
        write(config["state"], state)
        hit("monitor-recorded")
        self.report({"pid": pid})
        hit("monitor-reported")
        status = self.serve(pid, listener)
        hit("monitor-ended")
        ended = {"exitCode": 128 - status if status < 0 else status, "startedAt": started, "finishedAt": time.time()}
        if status < 0:
            ended["signal"] = -status
        self.remember(ended)
        hit("monitor-remembered")

    # The container.

    def start(self):
        config = self.config
        if config["tty"] and not config.get("create"):
            self.master, slave = os.openpty()
            streams = (slave, slave, slave)
            self.watch(self.master, STDOUT)
            self.stdin = self.master
        elif config["tty"]:
            streams = (subprocess.DEVNULL, subprocess.DEVNULL, subprocess.DEVNULL)
        else:
            streams = self.pipes()
        try:
            if config.get("create"):
                return self.create(streams)
            # Kept, since a Popen that goes away takes the status of its process with it.
            self.process = subprocess.Popen(
                config["argv"],
                env=config["env"],
                cwd=config["cwd"],
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                start_new_session=True,
                umask=0o022,
                preexec_fn=_take_terminal if config["tty"] else _usual_signals,
            )
            return self.process.pid
        finally:
            for stream in set(streams):
                if stream != subprocess.DEVNULL:
                    os.close(stream)

    def pipes(self):
        out, err = os.pipe(), os.pipe()
        self.watch(out[0], STDOUT)
        self.watch(err[0], STDERR)
        if not self.config["stdin"]:
            return os.open(os.devnull, os.O_RDONLY), out[1], err[1]
        inward = os.pipe()
        os.set_blocking(inward[1], False)
        self.stdin = inward[1]
        return inward[0], out[1], err[1]

    def create(self, streams):
        """Let a container runtime make the container; its first process becomes a child of this one."""
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        config = self.config
        command = list(config["create"])
        console = None
        if config["tty"]:
            console = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            console.bind(config["console"])
            console.listen(1)
            command[-1:-1] = ["--console-socket", config["console"]]
        # The runtime's own complaints go to a file, since the container inherits the streams.
        done = subprocess.run(
            command,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            check=False,
            # It ends with this program: a container that appeared later would be nobody's.
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
        if done.returncode != 0:
            raise RuntimeError(_last_words(config["runtimeLog"]) or f"{command[0]} ended with {done.returncode}")
        if console is not None:
            connection, _ = console.accept()
            _, descriptors, _, _ = socket.recv_fds(connection, 1024, 1)
            connection.close()
            console.close()
            os.unlink(config["console"])
            self.master = self.stdin = descriptors[0]
            self.watch(self.master, STDOUT)
        with open(config["pidFile"]) as file:
            return int(file.read())

    # The loop.

    def watch(self, descriptor, channel):
        os.set_blocking(descriptor, False)
        self.open.add(descriptor)
        self.selector.register(descriptor, selectors.EVENT_READ, ("output", channel))

    def listen(self):
        path = self.config["socket"]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(8)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, ("listener", None))
        return listener

    def serve(self, pid, listener):
        """Until the container has ended and its output is read; its wait status as Popen has it."""
        end = os.pidfd_open(pid)
        self.selector.register(end, selectors.EVENT_READ, ("end", None))
        status, deadline = None, 0.0
        while status is None or (self.open and time.monotonic() < deadline):
            for key, events in self.selector.select(None if status is None else max(0, deadline - time.monotonic())):
                kind, data = key.data
                if kind == "output":
                    self.output(key.fd, data)
                elif kind == "listener":
                    with contextlib.suppress(OSError):
                        self.join(listener.accept()[0])
                elif kind == "client":
                    self.converse(data, events)
                elif kind == "stdin":
                    self.feed()
                elif status is None:
                    self.selector.unregister(end)
                    if self.process is not None:
                        # A container's other processes end with its first one.
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(pid, signal.SIGKILL)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    deadline = time.monotonic() + DRAIN
        for channel in NAMES:
            self.log.end(channel)
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.connection.setblocking(True)
                client.connection.settimeout(DRAIN)
                client.connection.sendall(client.outgoing)
            client.connection.close()
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.config["socket"])
        return status

    def output(self, descriptor, channel):
        try:
            data = os.read(descriptor, 64 << 10)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # A terminal that nobody has open any more.
        if not data:
            self.selector.unregister(descriptor)
            self.open.discard(descriptor)
            return
        self.log.take(channel, data)
        frame = struct.pack(">BI", channel, len(data)) + data
        for client in list(self.clients):
            client.outgoing += frame
            if len(client.outgoing) > LONGEST_BACKLOG:
                self.leave(client)
            else:
                self.selector.modify(
                    client.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, ("client", client)
                )

    def join(self, connection):
        client = Client(connection)
        self.clients.append(client)
        self.selector.register(connection, selectors.EVENT_READ, ("client", client))

    def leave(self, client):
        self.clients.remove(client)
        self.selector.unregister(client.connection)
        client.connection.close()

    def converse(self, client, events):
        try:
            if events & selectors.EVENT_WRITE:
                del client.outgoing[: client.connection.send(client.outgoing)]
                if not client.outgoing:
                    self.selector.modify(client.connection, selectors.EVENT_READ, ("client", client))
            if events & selectors.EVENT_READ:
                data = client.connection.recv(64 << 10)
                if not data:
                    self.leave(client)
                    return
                client.incoming += data
                if len(client.incoming) > LONGEST_BACKLOG:
                    self.leave(client)
                    return
                for channel, content in client.frames():
                    self.obey(channel, content)
        except BlockingIOError:
            pass
        except OSError:
            self.leave(client)

    def obey(self, channel, content):
        if channel == STDIN and self.stdin >= 0:
            self.pending += content
            del self.pending[LONGEST_BACKLOG:]
            self.feed()
        elif channel == RESIZE and self.master >= 0 and len(content) == 4:
            columns, rows = struct.unpack(">HH", content)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        elif channel == CLOSE and self.stdin >= 0 and self.master < 0 and self.config["stdinOnce"]:
            # Not before the container has taken what came before.
            self.closing = True
            self.feed()

    def feed(self):
        """Give the container what waits for its standard input, as far as it takes it."""
        try:
            while self.pending:
                del self.pending[: os.write(self.stdin, self.pending)]
        except BlockingIOError:
            if self.master < 0 and self.stdin not in self.selector.get_map():
                self.selector.register(self.stdin, selectors.EVENT_WRITE, ("stdin", None))
            return
        except OSError:
            self.pending.clear()
        if self.master < 0 and self.stdin in self.selector.get_map():
            self.selector.unregister(self.stdin)
        if self.closing:
            os.close(self.stdin)
            self.stdin = -1

    # Words to the agent.

    def report(self, words):
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(words).encode() + b"\n")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)

    def remember(self, ended):
        write(self.config["exit"], ended)


def write(path, content):
    """A file that is there whole or not at all, also after a power cut."""
    with open(f"{path}.new", "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def start_time(pid):
    """When a process started, in ticks since boot; 0 when there is none any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    # A zombie has ended.
    return 0 if fields[0] == b"Z" else int(fields[19])


def hit(point):
    """Die here, if a test wants that."""
    folder = os.environ.get("DRAKKAR_NODE_FAILPOINTS")
    if folder:
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{folder}/{point}", f"{folder}/{point}.met")
            os.kill(os.getpid(), signal.SIGKILL)


def _usual_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _take_terminal():
    _usual_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _last_words(path):
    """What a runtime wrote last to its log, which has a JSON object per line."""
    try:
        with open(path, "rb") as file:
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        with contextlib.suppress(ValueError, AttributeError):
            entry = json.loads(line)
            if entry.get("level") in ("error", "fatal"):
                return str(entry.get("msg"))
    return lines[-1] if lines else ""


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    with open(sys.argv[1]) as file:
        config = json.load(file)
    Shim(config).run()


if __name__ == "__main__":
    main()
