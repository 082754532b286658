"""What only the store over etcd can get wrong: addresses, a second writer, lost members, TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import sys
import uuid
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.apiserver.opening import open_etcd
from drakkar.store import Compacted, Conflict, Record, Refused, SharedBackend, StoreFailed, Write
from drakkar.store import etcdwire as wire
from drakkar.store.etcd import VALUE_LIMIT, Address, EtcdBackend
from drakkar.store.problems import StoreProblem
from tests.support.etcd import Etcd, running_etcd


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture
def url(member: Etcd) -> str:
    """A prefix of its own on the shared member."""
    return f"{member.url}/{uuid.uuid4().hex}"


def test_addresses() -> None:
    assert Address.parse("etcd://a:1,b:2") == Address(("a:1", "b:2"), "/drakkar", None, None, None)
    parsed = Address.parse("etcd://[::1]:1/here?ca=/ca.pem&cert=/c.pem&key=/k.pem")
    assert parsed == Address(("[::1]:1",), "/here", "/ca.pem", "/c.pem", "/k.pem")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("etcd://", "write etcd://host:port"),
        ("etcd://host", "write etcd://host:port"),
        ("etcd://me:word@host:1", "write etcd://host:port"),
        ("etcd://host:1?cert=a", "belong together"),
        ("etcd://host:1?tls=yes", "known are ca, cert and key"),
        ("etcd://host:1?ca=/no/such/file", "cannot read /no/such/file"),
    ],
)
def test_wrong_addresses(text: str, words: str) -> None:
    with pytest.raises(EnvironmentProblem, match=words):
        open_etcd(text)


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "drakkar.store.etcd")
    with pytest.raises(UsageError, match=r"pip install 'drakkar\[etcd\]'"):
        open_etcd("etcd://127.0.0.1:1")


@pytest.mark.slow
def test_many_keys_come_in_pages(url: str) -> None:
    async def run() -> None:
        store = EtcdBackend(url)
        answers = await store.commit([Write(f"/{n:04}", 0, b"%d" % n) for n in range(1201)])
        assert list(store.load()) == [
            Record(f"/{n:04}", answer, b"%d" % n) for n, answer in enumerate(answers) if isinstance(answer, int)
        ]
        await store.close()

    asyncio.run(run())


@pytest.mark.slow
def test_peers(url: str) -> None:
    """Two servers write; both see all of it, in one order, and none does away with what the other did."""

    async def run() -> None:
        first, second = EtcdBackend(url), EtcdBackend(url)
        assert isinstance(first, SharedBackend)
        start = first.revision
        (made,) = await first.commit([Write("/a", 0, b"1")])
        assert isinstance(made, int)
        assert await second.latest() >= made
        assert await second.commit([Write("/a", 0, b"2")]) == [Conflict("/a", made)]
        (changed,) = await second.commit([Write("/a", made, b"2")])
        assert await first.commit([Write("/a", made, None)]) == [Conflict("/a", changed)]  # type: ignore[arg-type]
        both = [
            server.commit([Write(f"/{n}-{at}", 0, b"x") for n in range(150)])
            for at, server in enumerate((first, second))
        ]
        answers = [answer for future in both for answer in await future]
        assert len(set(answers)) == 300
        await second.commit([Write(f"/{n}-0", None, None) for n in range(100)])
        end = await first.latest()

        async def all_of(server: EtcdBackend, after: int) -> list[Record]:
            found: list[Record] = []
            async with aclosing(server.feed(after)) as feed:
                async for progress in feed:
                    found += progress.records
                    assert not found or found[-1].revision <= progress.reached
                    if progress.reached >= end:
                        return found
            raise AssertionError

        one, two = await all_of(first, start), await all_of(second, start)
        assert one == two
        revisions = [record.revision for record in one]
        assert revisions == sorted(set(revisions))
        assert {record.revision for record in one if record.value is not None} == {made, changed, *answers}
        assert len([record for record in one if record.value is None]) == 100
        # From the middle of a transaction on.
        middle = revisions[120]
        assert await all_of(first, middle) == one[121:]
        await first.close()
        await second.close()

    asyncio.run(run())


@pytest.mark.slow
def test_data_of_format_1(url: str) -> None:
    """It is taken over with growing revisions, and its server is fenced off."""

    async def run() -> None:
        old = EtcdBackend(url)
        prefix = old.address.prefix.encode()
        puts = [
            wire.put_op(prefix + b"/format", b"1"),
            wire.put_op(prefix + b"/writer", b"a token"),
            wire.put_op(prefix + b"/o/a", b'{"kind":"A"}'),
            wire.put_op(prefix + b"/p/event", b'{"kind":"E"}'),
        ]
        written = wire.txn_answer(old._ask("/etcdserverpb.KV/Txn", wire.txn_request([], puts, []))).revision
        await old.close()
        store = EtcdBackend(url)
        (record,) = store.load()
        assert (record.key, record.value) == ("/a", b'{"kind":"A"}')
        assert record.revision > written
        (answer,) = await store.commit([Write("/a", record.revision, b'{"kind":"B"}')])
        assert isinstance(answer, int)
        assert answer > record.revision
        assert [found.value for found in store.load()] == [b'{"kind":"B"}']
        token = wire.range_answer(store._ask("/etcdserverpb.KV/Range", wire.range_request(prefix + b"/writer")))
        assert token.items[0].value != b"a token"
        await store.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_newer_drakkar_takes_over(url: str) -> None:
    async def run() -> None:
        store = EtcdBackend(url)
        key = store.address.prefix.encode() + b"/format"
        store._ask("/etcdserverpb.KV/Txn", wire.txn_request([], [wire.put_op(key, b"3")], []))
        with pytest.raises(StoreFailed, match="upgraded by a newer Drakkar"):
            await store.commit([Write("/a", 0, b"1")])
        await store.close()

    asyncio.run(run())


@pytest.mark.slow
def test_what_servers_share(url: str) -> None:
    async def run() -> None:
        first, second = EtcdBackend(url), EtcdBackend(url)
        assert first.agree("key", b"one") == b"one"
        assert second.agree("key", b"two") == b"one"
        assert list(second.load()) == []
        await first.close()
        await second.close()

    asyncio.run(run())


@pytest.mark.slow
def test_another_format_is_refused(url: str) -> None:
    async def run() -> None:
        store = EtcdBackend(url)
        key = store.address.prefix.encode() + b"/format"
        store._ask("/etcdserverpb.KV/Txn", wire.txn_request([], [wire.put_op(key, b"3")], []))
        await store.close()

    asyncio.run(run())
    with pytest.raises(StoreProblem, match="has format 3, this Drakkar knows 2"):
        EtcdBackend(url)


@pytest.mark.slow
def test_old_history_is_dropped_by_one_server(url: str) -> None:
    """Whoever finds the mark where it left it a period ago moves it and compacts to where it was."""

    async def run() -> None:
        store, other = EtcdBackend(url), EtcdBackend(url)
        start = store.revision
        mark = await store._compact_once(0)
        for expected, value in ((0, b"1"), (None, b"2"), (None, b"3")):
            await store.commit([Write("/a", expected, value)])
        assert await other._compact_once(0) == mark  # moved by another: nothing to do
        assert (await anext(aiter(other.changes(start)))).value == b"1"
        moved = await other._compact_once(mark)
        assert moved > mark
        await store.commit([Write("/a", None, b"4")])
        assert await store._compact_once(mark) == moved
        assert await store._compact_once(moved) > moved
        with pytest.raises(Compacted):
            await anext(aiter(store.changes(start)))
        assert [record.value for record in store.load()] == [b"4"]
        await store.close()
        await other.close()

    asyncio.run(run())


@pytest.mark.slow
def test_others_use_the_same_etcd(url: str, member: Etcd) -> None:
    """Their writes do not count for us, and their compaction takes nothing from a server that was idle."""

    async def run() -> None:
        store, other = EtcdBackend(url), EtcdBackend(f"{member.url}/{uuid.uuid4().hex}")
        (one,) = await store.commit([Write("/a", 0, b"1")])
        assert isinstance(one, int)
        for n in range(20):
            await other.commit([Write("/b", None, b"%d" % n)])
        second = EtcdBackend(url)
        assert [record.revision for record in second.load()] == [one]
        assert second.revision == await store.latest() == one | 127
        await other.compact(await other.latest())
        feeds = [server.feed(after) for server in (store, second) for after in (one | 127,)]
        reads = [asyncio.ensure_future(anext(feed)) for feed in feeds]
        await asyncio.sleep(0.3)
        assert not any(read.done() for read in reads)
        (two,) = await store.commit([Write("/a", one, b"2")])
        async with asyncio.timeout(60):
            for read in reads:
                assert [record.revision for record in (await read).records] == [two]
        with pytest.raises(Compacted):
            await anext(store.feed(0))
        for feed in feeds:
            await feed.aclose()
        for server in (store, second, other):
            await server.close()

    asyncio.run(run())


@pytest.mark.slow
def test_the_largest_value(url: str) -> None:
    async def run() -> None:
        store = EtcdBackend(url)
        (made,) = await store.commit([Write("/a", 0, b"x" * VALUE_LIMIT)])
        assert [(record.revision, len(record.value or b"")) for record in store.load()] == [(made, VALUE_LIMIT)]
        await store.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_write_whose_answer_was_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is repeated and found to be done, or said to be unclear where that cannot be known."""
    import grpc
    import grpc.aio

    async def run() -> None:
        store = EtcdBackend(url)
        (one,) = await store.commit([Write("/a", 0, b"1")])
        (other,) = await store.commit([Write("/b", 0, b"1")])
        call, lose = store._call, True

        async def lossy(at: int, method: str, request: bytes) -> bytes:
            nonlocal lose
            answer = await call(at, method, request)
            if lose:
                lose = False
                none = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "the answer was lost")
            return answer

        monkeypatch.setattr(store, "_call", lossy)
        assert isinstance(one, int)
        assert isinstance(other, int)
        answers = await store.commit([Write("/a", one, b"2"), Write("/b", one, b"2")])
        two = {record.key: record.revision for record in store.load()}["/a"]
        assert answers == [two, Conflict("/b", other, unclear=True)]
        lose = True
        # Somebody else may have deleted it: only the changes tell.
        assert await store.commit([Write("/a", two, None)]) == [Conflict("/a", 0, unclear=True)]
        (three,) = await store.commit([Write("/c", 0, b"1")])
        lose = True
        (unknown, four) = await store.commit([Write("/c", None, b"2"), Write("/d", 0, b"1")])
        assert isinstance(unknown, Refused)  # nothing says whether a repetition is safe
        assert unknown.unclear
        assert isinstance(four, int)
        assert isinstance(three, int)
        assert four > three
        await store.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_full_etcd_refuses_and_recovers(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        store = EtcdBackend(url)
        answers: list[object] = []
        for number in range(60):
            answers += await store.commit([Write(f"/{number}", 0, b"x" * 500_000)])
            if isinstance(answers[-1], Refused):
                break
        assert isinstance(answers[-1], Refused)
        assert answers[-1].full
        assert not answers[-1].unclear
        assert len(list(store.load())) == len(answers) - 1
        await store.close()

    with running_etcd(tmp_path, "--quota-backend-bytes", "8000000") as member:
        asyncio.run(run(member.url))


@pytest.mark.slow
def test_other_members_are_asked(tmp_path: Path) -> None:
    """A dead endpoint is passed over, at the start and later; a watch goes on."""

    async def run(member: Etcd) -> None:
        port = member.port
        store = EtcdBackend(f"etcd://127.0.0.1:1,127.0.0.1:{port},127.0.0.1:2")
        (one,) = await store.commit([Write("/a", 0, b"1")])
        assert isinstance(one, int)
        seen: list[Record] = []

        async def read() -> None:
            async for record in store.changes(one):
                seen.append(record)

        reader = asyncio.create_task(read())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(member.kill)
        writing = store.commit([Write("/a", one, b"2"), Write("/b", 0, b"3")])
        await asyncio.sleep(0.5)
        await asyncio.to_thread(member.start)
        assert all(isinstance(answer, int) for answer in await writing)
        async with asyncio.timeout(60):
            while len(seen) < 2:
                await asyncio.sleep(0.05)
        assert {(record.key, record.value) for record in seen} == {("/a", b"2"), ("/b", b"3")}
        await store.close()
        await asyncio.wait_for(reader, 60)

    with running_etcd(tmp_path) as member:
        asyncio.run(run(member))


def _certificates(folder: Path) -> None:
    """A CA that signs one certificate for both sides: ca.pem, cert.pem, key.pem."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test ca")])
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])

    def built(subject: x509.Name, public: ec.EllipticCurvePublicKey, ca: bool) -> x509.Certificate:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(public)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(hours=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(ca_key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(built(ca_name, ca_key.public_key(), True).public_bytes(pem))
    (folder / "cert.pem").write_bytes(built(name, key.public_key(), False).public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


@pytest.mark.slow
def test_tls_with_client_certificates(tmp_path: Path) -> None:
    _certificates(tmp_path)
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    flags = ("--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth")

    async def run(url: str) -> None:
        store = EtcdBackend(url)
        assert all(isinstance(answer, int) for answer in await store.commit([Write("/a", 0, b"1")]))
        assert [record.key for record in store.load()] == ["/a"]
        await store.close()

    with running_etcd(tmp_path / "member", *flags) as member:
        asyncio.run(run(f"{member.url}?ca={ca}&cert={cert}&key={key}"))
        with pytest.raises(StoreProblem, match="cannot reach etcd"):
            EtcdBackend(f"{member.url}?ca={ca}")
