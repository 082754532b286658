"""The server's side of a SPDY connection over any pipe of bytes: streams that a client opens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from drakkar.streaming.spdy import Data, Decoder, Encoder, Frame, GoAway, Ping, Reset, SpdyError, SynReply, SynStream

#: Pieces that wait for the reader of a stream before the whole connection waits.
_WAITING = 16
#: Streams that a connection may have open at the same time.
MAX_STREAMS = 512
#: Largest piece of data in one frame.
_PIECE = 32 << 10

_PROTOCOL_ERROR, _INVALID_STREAM, _REFUSED = 1, 2, 3


class Stream:
    """A stream of a client, taken already. Ends when both sides have said that they have no more."""

    def __init__(self, session: SpdySession, number: int, headers: Mapping[str, str]):
        self._session = session
        self._incoming: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        self.number = number
        self.headers = headers
        self.sent_fin = False
        self.got_fin = False
        self._deaf = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """What the client sends, until it says that no more comes or the connection ends."""
        while (piece := await self._incoming.get()) is not None:
            yield piece

    async def write(self, content: bytes) -> None:
        """Send bytes; after the end they are dropped."""
        for at in range(0, len(content), _PIECE):
            if not self.sent_fin:
                await self._session.send(Data(self.number, content[at : at + _PIECE]))

    async def close(self) -> None:
        """No more comes from this side, and nothing is read any more."""
        self.ignore()
        if not self.sent_fin:
            self.sent_fin = True
            await self._session.send(Data(self.number, b"", fin=True))
        self._session.forget(self)

    async def reset(self) -> None:
        """Break the stream off."""
        self.ignore()
        if not self.sent_fin or not self.got_fin:
            self.sent_fin = self.got_fin = True
            await self._session.send(Reset(self.number))
        self._session.forget(self)

    def ignore(self) -> None:
        """Whatever else the client sends is dropped, so that it does not hold up the others."""
        self._deaf = True
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                self._incoming.get_nowait()

    async def deliver(self, piece: bytes | None) -> None:
        """For the session only: a piece has come, or the end."""
        if piece is None:
            self.got_fin = True
        if not self._deaf:
            await self._incoming.put(piece)

    def abort(self) -> None:
        """For the session only: the connection is gone."""
        self.got_fin = self.sent_fin = True
        with contextlib.suppress(asyncio.QueueEmpty):
            while self._incoming.full():
                self._incoming.get_nowait()
        self._incoming.put_nowait(None)


class SpdySession:
    """One connection. ``write`` sends bytes and waits while the peer does not read."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], taken: Callable[[Stream], None]):
        self._write = write
        self._taken = taken
        self._encoder = Encoder()
        self._lock = asyncio.Lock()
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._ended = False

    async def serve(self, pieces: AsyncIterator[bytes]) -> None:
        """Until the client hangs up. Raises SpdyError for bytes that are no SPDY, and what ``pieces`` raises."""
        decoder = Decoder()
        try:
            async for piece in pieces:
                for frame in decoder.feed(piece):
                    await self._take(frame)
        except SpdyError:
            await self.send(GoAway(self._last, _PROTOCOL_ERROR))
            raise
        finally:
            self._ended = True
            for stream in list(self._streams.values()):
                stream.abort()
            self._streams.clear()

    async def send(self, frame: Frame) -> None:
        """One frame, in order: compressed headers depend on those before. Dropped once the connection has ended."""
        if self._ended:
            return
        async with self._lock:
            await self._write(self._encoder.encode(frame))

    def forget(self, stream: Stream) -> None:
        """The stream needs no room here any more, once the client has ended it too."""
        if stream.got_fin and stream.sent_fin:
            self._streams.pop(stream.number, None)

    async def _take(self, frame: Frame) -> None:
        match frame:
            case SynStream():
                await self._open(frame)
            case Data():
                stream = self._streams.get(frame.stream)
                if stream is None or stream.got_fin:
                    return
                if frame.content:
                    await stream.deliver(frame.content)
                if frame.fin:
                    await stream.deliver(None)
                    self.forget(stream)
            case Reset():
                stream = self._streams.pop(frame.stream, None)
                if stream is not None:
                    stream.abort()
            case Ping():
                await self.send(frame)
            case _:
                pass

    async def _open(self, frame: SynStream) -> None:
        if frame.stream <= self._last or frame.stream % 2 == 0:
            raise SpdyError(f"stream {frame.stream} after {self._last}: a client's streams have growing odd numbers")
        self._last = frame.stream
        if len(self._streams) >= MAX_STREAMS:
            await self.send(Reset(frame.stream, _REFUSED))
            return
        stream = self._streams[frame.stream] = Stream(self, frame.stream, frame.headers)
        if frame.fin:
            await stream.deliver(None)
        await self.send(SynReply(frame.stream))
        self._taken(stream)
