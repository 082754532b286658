#!/usr/bin/python3
"""What mpirun takes for ssh: ``enter.py POD COMMAND…`` runs the command in a pod, through the API server's exec."""

import json
import os
import ssl
import sys
from typing import NoReturn
from urllib.parse import quote

import websocket

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
STDOUT, STDERR, STATUS = 1, 2, 3


def main():
    # As ssh does: the words are a line for a shell.
    pod, command = sys.argv[1], ["sh", "-c", " ".join(sys.argv[2:])]
    with open(f"{ACCOUNT}/token") as file:
        token = file.read().strip()
    server = f"wss://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    words = "&".join(f"command={quote(word, safe='')}" for word in command)
    connection = websocket.create_connection(
        f"{server}/api/v1/namespaces/{os.environ['NAMESPACE']}/pods/{pod}/exec?{words}&stdout=true&stderr=true",
        header=[f"Authorization: Bearer {token}"],
        subprotocols=["v5.channel.k8s.io", "v4.channel.k8s.io"],
        sslopt={"ca_certs": f"{ACCOUNT}/ca.crt", "cert_reqs": ssl.CERT_REQUIRED},
    )
    while True:
        message = connection.recv()
        if not message or isinstance(message, str):
            fail(f"pod {pod}: the connection broke")
        channel, content = message[0], message[1:]
        if channel in (STDOUT, STDERR):
            os.write(channel, content)
        elif channel == STATUS:
            status = json.loads(content)
            if status["status"] == "Success":
                return 0
            for cause in status.get("details", {}).get("causes", []):
                if cause.get("reason") == "ExitCode":
                    fail(f"pod {pod}: the command ended with {cause['message']}")
            fail(f"pod {pod}: {status.get('message')}")


def fail(words) -> NoReturn:
    # mpirun does not show what its ssh says; the log of the container does.
    with open("/proc/1/fd/2", "w") as log:
        print(f"enter.py: {words}", file=log)
    sys.exit(1)


try:
    sys.exit(main())
except (OSError, websocket.WebSocketException) as error:
    fail(f"pod {sys.argv[1]}: {type(error).__name__}: {error}")
