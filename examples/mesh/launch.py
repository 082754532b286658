#!/usr/bin/python3
"""The launcher of the MPI job: waits for the workers, then lets mpirun start the ranks in them by enter.py.

Environment: WORKERS (how many), RANKS (for each), MEGABYTES (of a copy), NAMESPACE; whatever else is for the server.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
#: Seconds for the workers to start, and for the ranks to end.
PATIENCE = 300


def ready_workers():
    """Addresses of the workers that are ready, by name."""
    with open(f"{ACCOUNT}/token") as file:
        token = file.read().strip()
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    url = f"{server}/api/v1/namespaces/{os.environ['NAMESPACE']}/pods?labelSelector=job%3Dmesh"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    tls = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    with urllib.request.urlopen(request, context=tls, timeout=10) as answer:
        pods = json.load(answer)["items"]
    return {
        pod["metadata"]["name"]: pod["status"]["podIP"]
        for pod in pods
        if any(
            (condition["type"], condition["status"]) == ("Ready", "True")
            for condition in pod["status"].get("conditions", [])
        )
    }


def main():
    workers, ranks = int(os.environ["WORKERS"]), int(os.environ["RANKS"])
    deadline = time.monotonic() + PATIENCE
    found = {}
    while len(found) < workers:
        try:
            found = ready_workers()
        except urllib.error.URLError as error:
            print(f"the API server: {error}", file=sys.stderr, flush=True)
        if time.monotonic() > deadline:
            sys.exit(f"after {PATIENCE} s only {len(found)} of {workers} workers are ready")
        time.sleep(0.25)
    # There is no DNS for pods here, and mpirun asks for names.
    with open("/etc/hosts", "a") as file:
        file.writelines(f"{address}\t{name}\n" for name, address in found.items())
    settings = {
        # Ranks talk over the network of the pods, never by memory of the machine that they happen to share.
        "btl": "self,tcp",
        "btl_tcp_if_include": "eth0",
        "oob_tcp_if_include": "eth0",
        # Daemons are started in the workers by enter.py, each from here.
        "plm": "rsh",
        "plm_rsh_agent": "/mesh/enter.py",
        "plm_rsh_no_tree_spawn": "1",
        "mpi_yield_when_idle": "1",
    }
    command = ["timeout", str(PATIENCE), "mpirun", "--allow-run-as-root", "--leave-session-attached"]
    command += ["--bind-to", "none", "--map-by", "slot", "-np", str(workers * ranks)]
    command += ["--host", ",".join(f"worker-{number}:{ranks}" for number in range(workers))]
    for name, value in settings.items():
        command += ["--mca", name, value]
    os.execvp(command[0], [*command, "/usr/bin/python3", "/mesh/measure.py", os.environ["MEGABYTES"]])


main()
