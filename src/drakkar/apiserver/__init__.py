"""Kubernetes' API for one process: from a request to an answer, over a store.

    server      ApiServer: the whole as one function, without sockets
    http, tls   the same behind uvicorn, with certificates of its own

Inside: `routes` reads what is asked, `auth` and `rbac` who may ask it, `bodies`, `schema` and
`patch` what was sent, `registry` decides writes, `commit` makes them durable, `cache` holds what
is committed, `lists` and `watch` serve it, `render` and `printers` give it its form.
"""

from drakkar.apiserver.http import Serving, serve
from drakkar.apiserver.opening import open_server, open_store
from drakkar.apiserver.server import ApiServer
from drakkar.apiserver.tls import Pki, open_pki, write_kubeconfig

__all__ = ["ApiServer", "Pki", "Serving", "open_pki", "open_server", "open_store", "serve", "write_kubeconfig"]
