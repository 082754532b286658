"""One certificate authority for all servers of a shared store.

A client must be able to go from one server to the next with the same credentials. So the first
server puts its authority into the store, and the others take it from there into their own folders.
Whoever can read the store therefore is its administrator; but whoever can write to it was that before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from drakkar.api.errors import EnvironmentProblem
from drakkar.apiserver.tls import Pki, open_pki, write_private
from drakkar.store.base import SharedBackend

_NAME = "authority"
_KEY = b"-----BEGIN PRIVATE KEY-----"


def open_shared_pki(folder: str | os.PathLike[str], store: SharedBackend, hosts: Sequence[str] = ()) -> Pki:
    """The authority of all servers of the store, and in this folder a certificate of it for this server.

    Raises EnvironmentProblem when the folder cannot be used, or holds another authority.
    """
    folder = Path(folder)
    known = (folder / "ca.crt").exists()
    pki = open_pki(folder, hosts)
    own = pki.ca_certificate + (folder / "ca.key").read_bytes()
    common = store.agree(_NAME, own)
    if common == own:
        return pki
    if known:
        raise EnvironmentProblem(
            f"the certificates in {folder} are of another authority than those of the other servers on this store; "
            "move the folder away to take theirs (kubeconfig files made with it end)"
        )
    certificate, begin, key = common.partition(_KEY)
    try:
        for name in ("server.crt", "server.key"):
            (folder / name).unlink()
        write_private(folder / "ca.key", begin + key)
        write_private(folder / "ca.crt", certificate)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write the certificates in {folder}: {error.strerror}") from None
    return open_pki(folder, hosts)
