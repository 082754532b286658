"""SPDY: frames survive the wire in any pieces, hostile bytes end in SpdyError, streams open, carry data and end."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakkar.streaming.session import SpdySession, Stream
from drakkar.streaming.spdy import (
    DICTIONARY,
    LONGEST_HEADERS,
    Data,
    Decoder,
    Encoder,
    Frame,
    GoAway,
    Ping,
    Reset,
    SpdyError,
    SynReply,
    SynStream,
)

_STREAM = st.integers(1, 2**31 - 1)
_WORD = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=20)
_HEADERS = st.dictionaries(_WORD, st.text(st.characters(max_codepoint=127), max_size=40), max_size=4)
_FRAME = st.one_of(
    st.builds(SynStream, _STREAM, _HEADERS, st.booleans()),
    st.builds(SynReply, _STREAM, _HEADERS, st.booleans()),
    st.builds(Data, _STREAM, st.binary(max_size=300), st.booleans()),
    st.builds(Reset, _STREAM, st.integers(0, 2**32 - 1)),
    st.builds(Ping, st.integers(0, 2**32 - 1)),
    st.builds(GoAway, _STREAM, st.integers(0, 2**32 - 1)),
)


def test_the_dictionary_is_that_of_the_protocol() -> None:
    # Its checksum stands in every compressed block that is made with it.
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


@given(st.lists(_FRAME, max_size=8), st.integers(1, 50))
def test_frames_survive_in_any_pieces(frames: list[Frame], size: int) -> None:
    encoder, decoder = Encoder(), Decoder()
    wire = b"".join(encoder.encode(frame) for frame in frames)
    found = [frame for at in range(0, len(wire), size) for frame in decoder.feed(wire[at : at + size])]
    assert found == frames


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    decoder = Decoder()
    try:
        for frame in decoder.feed(data):
            assert isinstance(frame, Frame)
    except SpdyError:
        pass


def test_headers_that_swell_are_refused() -> None:
    frame = Encoder().encode(SynStream(1, {"a": "x" * (4 * LONGEST_HEADERS)}))
    with pytest.raises(SpdyError, match="longer than"):
        list(Decoder().feed(frame))


class _Pipe:
    """A session with a client that is played by the test."""

    def __init__(self, taken: Callable[[Stream], None]) -> None:
        self.encoder, self.decoder = Encoder(), Decoder()
        self.sent: list[Frame] = []
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.session = SpdySession(self._written, taken)

    async def _written(self, data: bytes) -> None:
        self.sent += self.decoder.feed(data)

    def client(self, *frames: Frame) -> None:
        for frame in frames:
            self._pieces.put_nowait(self.encoder.encode(frame))

    def hang_up(self) -> None:
        self._pieces.put_nowait(None)

    async def pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece


def test_a_stream_echoes_and_ends() -> None:
    async def run() -> None:
        tasks: list[asyncio.Task[None]] = []

        async def echo(stream: Stream) -> None:
            assert stream.headers == {"streamtype": "data", "port": "80"}
            async for piece in stream.pieces():
                await stream.write(piece.upper())
            await stream.close()

        pipe = _Pipe(lambda stream: tasks.append(asyncio.create_task(echo(stream))))
        serving = asyncio.create_task(pipe.session.serve(pipe.pieces()))
        pipe.client(SynStream(1, {"streamType": "data", "port": "80"}), Ping(7), Data(1, b"abc"), Data(1, b"d", True))
        while not tasks:
            await asyncio.sleep(0)
        await tasks[0]
        assert pipe.sent == [SynReply(1), Ping(7), Data(1, b"ABC"), Data(1, b"D"), Data(1, b"", True)]
        pipe.hang_up()
        await serving

    asyncio.run(run())


def test_readers_end_with_the_connection_and_with_a_reset() -> None:
    async def run() -> None:
        streams: list[Stream] = []
        pipe = _Pipe(streams.append)
        serving = asyncio.create_task(pipe.session.serve(pipe.pieces()))
        pipe.client(SynStream(1), SynStream(3), Reset(1))
        while len(streams) < 2:
            await asyncio.sleep(0)
        assert [piece async for piece in streams[0].pieces()] == []
        pipe.hang_up()
        await serving
        assert [piece async for piece in streams[1].pieces()] == []

    asyncio.run(run())


@pytest.mark.parametrize("numbers", [(2,), (3, 3), (5, 3)])
def test_streams_of_a_client_grow(numbers: tuple[int, ...]) -> None:
    async def run() -> None:
        pipe = _Pipe(lambda stream: None)
        pipe.client(*(SynStream(number) for number in numbers))
        with pytest.raises(SpdyError, match="growing odd numbers"):
            await pipe.session.serve(pipe.pieces())
        assert isinstance(pipe.sent[-1], GoAway)

    asyncio.run(run())
