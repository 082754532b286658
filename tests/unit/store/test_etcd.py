"""What only the store over etcd can get wrong: addresses, a second writer, lost members, TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.apiserver.opening import open_etcd
from drakkar.store import Compacted, Conflict, Record, StoreFailed, Write, etcd
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
def test_the_newest_writes(url: str) -> None:
    async def run() -> None:
        first = EtcdBackend(url)
        (made,) = await first.commit([Write("/a", 0, b"1")])
        second = EtcdBackend(url)
        with pytest.raises(StoreFailed, match="taken over"):
            await first.commit([Write("/a", None, b"2")])
        with pytest.raises(StoreFailed, match="taken over"):
            await first.commit([Write("/b", 0, b"2")])
        assert [(record.key, record.revision) for record in second.load()] == [("/a", made)]
        await second.commit([Write("/b", 0, b"2")])
        await first.close()
        await second.close()

    asyncio.run(run())


@pytest.mark.slow
def test_another_format_is_refused(url: str) -> None:
    async def run() -> None:
        store = EtcdBackend(url)
        key = store.address.prefix.encode() + b"/format"
        store._ask("/etcdserverpb.KV/Txn", wire.txn_request([], [wire.put_op(key, b"2")], []))
        await store.close()

    asyncio.run(run())
    with pytest.raises(StoreProblem, match="has format 2, this Drakkar knows 1"):
        EtcdBackend(url)


@pytest.mark.slow
def test_old_history_is_dropped(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd, "_HISTORY", 0.0)

    async def run() -> None:
        store = EtcdBackend(url)
        start = store.revision
        for value in (b"1", b"2", b"3"):
            await store.commit([Write("/a", None, value)])
        # The worker compacts after it has answered.
        async with asyncio.timeout(5):
            while store._worker is not None:
                await asyncio.sleep(0.01)
        with pytest.raises(Compacted):
            await anext(aiter(store.changes(start)))
        assert [record.value for record in store.load()] == [b"3"]
        await store.close()

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
    """It is repeated, found to be done, and answered with the revision of the first attempt."""
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
        (two,) = await store.commit([Write("/a", one, b"2")])
        assert two == other + 1
        lose = True
        (three,) = await store.commit([Write("/a", two, None)])
        assert three == other + 2
        lose = True
        assert await store.commit([Write("/b", 1, b"2")]) == [Conflict("/b", other)]
        assert await store.commit([Write("/c", 0, b"1")]) == [other + 3]
        lose = True
        with pytest.raises(StoreFailed, match="did not write /c"):
            await store.commit([Write("/c", None, b"2")])  # nothing says whether a repetition is safe
        await store.close()

    asyncio.run(run())


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
        async with asyncio.timeout(10):
            while len(seen) < 2:
                await asyncio.sleep(0.05)
        assert {(record.key, record.value) for record in seen} == {("/a", b"2"), ("/b", b"3")}
        await store.close()
        await asyncio.wait_for(reader, 5)

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
