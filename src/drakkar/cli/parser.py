"""All arguments of all commands, in one place and without heavy imports.

argparse and not a decorator library: a command line that is used in scripts and tests
starts some 300 ms sooner (docs/decisions/0002-argparse.md).
"""

from __future__ import annotations

import argparse
from typing import Any

from drakkar.version import KUBERNETES_VERSION, __version__

_Sub = Any  # argparse's private sub-parser action

_TOP = """\
Dynamic Resource Allocation for Kubernetes: devices, claims, scheduling, healing.

  drakkar demo tpu               watch a 16-chip job survive the death of a host
  drakkar demo mesh              see what an NVLink domain of four nodes gives to a job
  drakkar up --fleet tpu-16      the same cluster for yourself; then use kubectl
  drakkar test cases/            check your own cases (cluster, workload, expectation)
  drakkar explain my-pod         why does it wait, and what would help
  drakkar verify                 audit a cluster for double allocation and overdrawn counters
"""


def build() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``args.run`` names the function to call."""
    parser = argparse.ArgumentParser(
        prog="drakkar", description=_TOP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--version", action="version", version=f"drakkar {__version__} (Kubernetes {KUBERNETES_VERSION})"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _up(commands)
    _demo(commands)
    _test(commands)
    _fence(commands)
    _batch_tools(commands)
    _explain(commands)
    _verify(commands)
    _backups(commands)
    _node(commands)
    _token(commands)
    _components(commands)
    return parser


def _command(parent: _Sub, name: str, run: str, help: str, epilog: str = "") -> argparse.ArgumentParser:
    command = parent.add_parser(
        name, help=help, description=help, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.set_defaults(run=run)
    return command


def _target(command: argparse.ArgumentParser) -> None:
    """Which cluster a command addresses (see `drakkar.cli.target`)."""
    command.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="default: $KUBECONFIG, the pod's service account, your running `drakkar up`, ~/.kube/config",
    )
    command.add_argument("--context", metavar="NAME", help="context of the kubeconfig")


def _seconds(text: str) -> float:
    value = float(text.removesuffix("s"))
    if not value > 0:
        raise ValueError
    return value


_seconds.__name__ = "number of seconds"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_positive.__name__ = "number of at least 1"


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_count.__name__ = "number above 0"


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError
    return value


_port.__name__ = "port number"


def _plane(command: argparse.ArgumentParser, lease: float, period: float, grace: float) -> None:
    command.add_argument(
        "--data", metavar="DIR", help="where state is kept; default: a temporary folder, gone at the end"
    )
    command.add_argument(
        "--port", type=_port, default=0, metavar="N", help="port of the API server; default: a free one"
    )
    command.add_argument(
        "--sync",
        choices=("full", "normal"),
        default="full",
        help="full: acknowledged writes survive power loss; normal: any crash of the program (default: full)",
    )
    command.add_argument(
        "--lease-duration", type=_seconds, default=lease, metavar="S", help=f"of node leases (default {lease:g} s)"
    )
    command.add_argument(
        "--lease-period", type=_seconds, default=period, metavar="S", help=f"heartbeat of nodes (default {period:g} s)"
    )
    command.add_argument(
        "--node-grace",
        type=_seconds,
        default=grace,
        metavar="S",
        help=f"silence after which a node is NotReady (default {grace:g} s)",
    )


def _up(commands: _Sub) -> None:
    command = _command(
        commands,
        "up",
        "up:run",
        "start the embedded control plane in the foreground",
        """\
examples:
  drakkar up --fleet tpu-16                 16 hollow nodes with 4 TPU chips each
  drakkar up --fleet my-fleet.yaml --data ~/lab --port 6443
  export KUBECONFIG=...                     (printed at the start); kubectl get nodes

Ctrl-C stops it cleanly; with the same --data it comes back as it was.""",
    )
    command.add_argument(
        "--fleet", metavar="FILE|NAME", help="hollow nodes and devices: a Fleet file or a named fleet (tpu-16)"
    )
    command.add_argument(
        "--store",
        default="sqlite",
        metavar="sqlite|memory|etcd://…",
        help="where objects are kept (default: sqlite, in --data); etcd://host:port[,host:port…][/prefix]",
    )
    command.add_argument(
        "--listen",
        default="127.0.0.1",
        metavar="HOST",
        help="address or name of this machine under which others reach the server (default: 127.0.0.1)",
    )
    command.add_argument("--no-scheduler", action="store_true", help="run no scheduler")
    command.add_argument("--no-controllers", action="store_true", help="run no controllers")
    command.add_argument("--no-driver", action="store_true", help="run no device drivers for the fleet")
    command.add_argument(
        "--own-process",
        action="append",
        default=[],
        metavar="NODE",
        help="run this hollow node in a process of its own (repeatable); its pid is printed",
    )
    _plane(command, lease=40, period=10, grace=40)
    _api_server(command)


def _api_server(command: argparse.ArgumentParser) -> None:
    """What only concerns the embedded API server."""
    command.add_argument(
        "--feature-profile",
        choices=("drakkar", "1.34", "1.35", "1.36", "1.37"),
        default="drakkar",
        help="gates to start from: all on (drakkar, the default), or the defaults of a Kubernetes version",
    )
    command.add_argument(
        "--feature-gates",
        default="",
        metavar="A=true,B=false",
        help="changes to the profile; AllAlpha and AllBeta stand for all gates of a stage",
    )
    command.add_argument(
        "--token-auth-file",
        metavar="FILE",
        help='bearer tokens of users: lines of token,user,uid,"group,group"',
    )
    command.add_argument(
        "--request-timeout",
        type=_seconds,
        default=60,
        metavar="S",
        help="for a request that is no watch, its body and its answer included (60 s)",
    )
    command.add_argument(
        "--max-requests-inflight",
        type=_count,
        default=400,
        metavar="N",
        help="reads in progress beyond which clients are told to come back, with 429 (400)",
    )
    command.add_argument(
        "--max-mutating-requests-inflight", type=_count, default=200, metavar="N", help="the same for writes (200)"
    )
    command.add_argument("--audit-log", metavar="FILE", help="write who did what, one JSON event a line")
    command.add_argument(
        "--audit-policy",
        metavar="FILE",
        help="audit.k8s.io/v1 Policy; default: every request at level Metadata",
    )
    command.add_argument(
        "--audit-log-maxsize",
        type=_positive,
        default=100,
        metavar="MB",
        help="size at which the audit log is put aside (default 100)",
    )
    command.add_argument(
        "--audit-log-maxbackup",
        type=_positive,
        default=10,
        metavar="N",
        help="how many audit logs that were put aside are kept (default 10)",
    )


def _demo(commands: _Sub) -> None:
    demo = _command(commands, "demo", "demo:run", "run a story unattended and say whether every step was seen")
    stories = demo.add_subparsers(title="stories", required=True, metavar="STORY")
    command = _command(
        stories,
        "tpu",
        "demo:run",
        "a 16-chip job on 16 hosts x 4 chips loses a host and comes back on a healthy slice",
        """\
A second process that holds only the kubeconfig watches; exit 0 only if it saw each step.

On a cluster of your own, of which these run: `drakkar node hollow --fleet tpu-16`, `drakkar driver run tpu`,
`drakkar scheduler`, and beside kube-controller-manager `drakkar controllers --only eviction,node-loss`:
  drakkar demo tpu --kubeconfig admin.conf               beside kube-scheduler
  drakkar demo tpu --kubeconfig admin.conf --mode own    pods with schedulerName: drakkar
docs/how-to/on-a-cluster.md tells it step by step.""",
    )
    command.add_argument("--kubeconfig", metavar="FILE", help="play on this cluster instead of a plane of its own")
    command.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    command.add_argument(
        "--namespace",
        default="",
        metavar="NS",
        help="where to play on that cluster; made for it and deleted afterwards (default: drakkar-demo)",
    )
    command.add_argument(
        "--mode",
        choices=("gate", "own"),
        default="gate",
        help="on that cluster: who binds the pods, its own scheduler (gate, the default) or drakkar scheduler (own)",
    )
    command.add_argument(
        "--fault",
        choices=("annotation", "sigstop", "flap"),
        default="annotation",
        help="how the host dies: told to fall silent, its process stopped, or silent and back in mid-recovery",
    )
    command.add_argument(
        "--patience",
        type=_seconds,
        default=60,
        metavar="S",
        help="how long the observer waits for the whole story (60 s)",
    )
    command.add_argument("--json", metavar="FILE", help="write timeline and figures as JSON")
    _plane(command, lease=1, period=0.25, grace=4)
    command = _command(
        stories,
        "mesh",
        "demo_mesh:run",
        "4 nodes x 4 GPUs: an MPI job measures all pairs, in one NVLink domain and without it",
        """\
Four node agents with runc on this machine, each in a network of its own, with fake GB200; the claims of a pod decide
whose memory its ranks can map. Needs root, runc, iproute2 and Debian's MPI; says what is missing. No GPU is used.
Exit 0 only if all pairs are uniform with the domain, other nodes are slow without it, and no pod without the channel
reaches the fabric. Ctrl-C ends everything. What is real in it: docs/how-to/mesh-demo.md.""",
    )
    command.add_argument(
        "--megabytes", type=int, choices=range(1, 9), default=4, metavar="N", help="of one copy, 1 to 8 (4)"
    )
    command.add_argument(
        "--patience", type=_seconds, default=120, metavar="S", help="how long each step may take (120 s)"
    )
    command.add_argument("--json", metavar="FILE", help="write all figures as JSON")
    command.add_argument("--logs", metavar="DIR", help="keep what agents and drivers print, a file for each")
    command.add_argument(
        "--hold", action="store_true", help="let the nodes stay afterwards and print how kubectl reaches them"
    )


def _test(commands: _Sub) -> None:
    command = _command(
        commands,
        "test",
        "casetest:run",
        "run cases (cluster.yaml, workload.yaml, expect.yaml) and compare the outcome",
        """\
examples:
  drakkar test cases/ --shuffle 5                                 each on a plane in memory of its own
  drakkar test cases/ --kubeconfig F --scheduler-name drakkar     on a cluster, one after the other

One line per case, the total last; exit 1 on a miss. The format: docs/reference/cases.md.
On a cluster a case gets namespaces of its own and is deleted afterwards. Its nodes and slices are created there, so
take one for tests. A controller that makes claims and the scheduler to be tested have to be at work.""",
    )
    command.add_argument("paths", nargs="+", metavar="PATH", help="a case folder, or a folder of case folders")
    command.add_argument("--shuffle", type=int, default=0, metavar="N", help="also run each case in N shuffled orders")
    command.add_argument("--kubeconfig", metavar="F", help="on this cluster instead of a plane in memory")
    command.add_argument(
        "--scheduler-name",
        default="",
        metavar="NAME",
        help="with --kubeconfig: spec.schedulerName of pods that name none (default: they name none)",
    )


def _batch_tools(commands: _Sub) -> None:
    command = _command(
        commands,
        "allocate",
        "batch:allocate",
        "answer allocation scenarios (NDJSON in, NDJSON out)",
        """\
examples:
  drakkar allocate scenarios.ndjson.gz                     one answer a line, in their order
  drakkar allocate --policy upstream < one-scenario.json   as kube-scheduler's allocator answers

A line is one scenario: id, nodes, deviceClasses, resourceSlices, claims, try (all, any or the name of a node).
Scenarios and answers have the form of the reference allocator's batch mode.""",
    )
    command.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="scenarios; - or nothing: standard input; may end in .gz"
    )
    command.add_argument(
        "--policy", choices=("drakkar", "upstream"), default="drakkar", help="whose answer (default: drakkar)"
    )
    command = _command(
        commands,
        "cel",
        "batch:cel",
        "evaluate case files of device selectors, one JSON line per case out",
        """\
example: drakkar cel cases.json

The form of a file and of an answer: docs/reference/cel.md.""",
    )
    command.add_argument("files", nargs="+", metavar="FILE", help="case file (devices, cases); may end in .gz")


def _fence(commands: _Sub) -> None:
    command = _command(
        commands,
        "fence",
        "fence:run",
        "keep other schedulers off the devices of a driver",
        """\
examples:
  drakkar fence gpu.example.com              from now on only Drakkar gives its devices away
  drakkar fence                              which fences there are
  drakkar fence --remove gpu.example.com     kube-scheduler may again

A fence is a DeviceTaintRule (taint drakkar.dev/managed:NoSchedule) that Drakkar ignores. What runs is left alone, and
pods whose claims Drakkar has allocated are bound by any scheduler. docs/how-to/beside-kube-scheduler.md tells when.""",
    )
    command.add_argument("drivers", nargs="*", metavar="DRIVER", help="name of a DRA driver, as in ResourceSlices")
    command.add_argument("--remove", action="store_true", help="take the fences of these drivers away")
    _target(command)


def _explain(commands: _Sub) -> None:
    command = _command(
        commands,
        "explain",
        "explain:explain",
        "say why a pod waits, or what a claim has and for whom",
        """\
examples:
  drakkar explain my-pod -n team                   from the live cluster
  drakkar explain claim/shared -f dump.json        from a file that `drakkar dump` wrote
  kubectl get nodes,pods,resourceclaims,resourceslices,deviceclasses -A -o yaml > all.yaml
  drakkar explain my-pod -f all.yaml               from what kubectl printed
  drakkar explain my-pod --full -o json            every node and request

Each line of a request counts devices after every stage: published > matching > large-enough > untainted > free > …""",
    )
    command.add_argument("name", metavar="POD|CLAIM", help="a name, or pod/NAME or claim/NAME where both exist")
    command.add_argument("-n", "--namespace", default="default", metavar="NS", help="default: default")
    command.add_argument(
        "-f",
        dest="dump",
        action="append",
        default=[],
        metavar="DUMP",
        help="objects in YAML or JSON instead of a live cluster (repeatable)",
    )
    command.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="output format")
    command.add_argument("--full", action="store_true", help="every request on every node")
    command.add_argument(
        "--policy", choices=("drakkar", "upstream"), default="drakkar", help="whose rules (default: drakkar)"
    )
    _target(command)
    command = _command(
        commands,
        "dump",
        "explain:dump",
        "write all that explain and verify need into one file, without secrets",
        "Left out: Secrets and ConfigMaps, environment, commands and probes of containers, opaque driver parameters.",
    )
    command.add_argument("file", nargs="?", default="-", metavar="FILE", help="default: standard output")
    _target(command)


def _verify(commands: _Sub) -> None:
    command = _command(
        commands,
        "verify",
        "verify:run",
        "audit a cluster: double allocation, overdrawn counters, orphans",
        """\
examples:
  drakkar verify                    the live cluster
  drakkar verify -f dump.json       what `drakkar dump` or kubectl get … -o yaml wrote

Exit 0: clean. Exit 1: findings, one line each; docs/reference/verify.md lists the rules.""",
    )
    command.add_argument(
        "-f", dest="dump", metavar="DUMP", help="a dump (kubectl get … -o yaml) instead of a live cluster"
    )
    command.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="output format")
    _target(command)


def _backups(commands: _Sub) -> None:
    command = _command(
        commands,
        "backup",
        "backup:backup",
        "copy the embedded SQLite store into one file, also while `drakkar up` runs",
        """\
examples:
  drakkar backup lab.backup                 of your running `drakkar up`, or of $KUBECONFIG
  drakkar backup --data ~/lab lab.backup    of a folder, whether or not a server runs on it

The file holds everything acknowledged before the command began, Secrets included; its mode is 0600.""",
    )
    command.add_argument("file", metavar="FILE", help="where the copy goes; replaced only by a whole one")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--data", metavar="DIR", help="data folder of `drakkar up`; default: that of the kubeconfig")
    which.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, your running `drakkar up`")
    command = _command(
        commands,
        "restore",
        "backup:restore",
        "make a data folder for `drakkar up` from a backup",
        """\
example: drakkar restore lab.backup --data ~/lab-2, then drakkar up --data ~/lab-2

The backup is checked first; a folder that a running `drakkar up` uses is refused, also with --force.""",
    )
    command.add_argument("file", metavar="FILE", help="a file that `drakkar backup` wrote")
    command.add_argument("--data", metavar="DIR", required=True, help="the folder to fill")
    command.add_argument("--force", action="store_true", help="overwrite the store of a folder that is not empty")


def _node(commands: _Sub) -> None:
    node = _command(
        commands, "node", "node:run", "make this machine a node; make hollow nodes fail and recover, or run some"
    )
    actions = node.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, text in (
        ("fail", "silence a hollow node: heartbeats, pods, everything (nothing else is told)"),
        ("recover", "revive a hollow node that was made to fail"),
    ):
        action = _command(
            actions,
            name,
            f"node:{name}",
            text,
            f"""\
examples:
  drakkar node {name} host-0
  drakkar node {name} host-0 host-1

A silent node becomes NotReady after --node-grace of `drakkar up` (40 s); see docs/how-to/lose-a-node.md.""",
        )
        action.add_argument("names", nargs="+", metavar="NAME", help="node name")
        _target(action)
    _agent(actions)
    hollow = _command(
        actions,
        "hollow",
        "node:hollow",
        "run hollow nodes of a fleet in this process, at any cluster",
        """\
examples:
  drakkar node hollow --fleet tpu-16                   16 Nodes whose pods only seem to run
  drakkar node hollow --fleet fleet.yaml host-0        one of them

For clusters made for tests. The rights it needs: examples/tpu/on-a-cluster/hollow-nodes.yaml. After Ctrl-C the nodes
are silent; kubectl delete node removes them.""",
    )
    hollow.add_argument("names", nargs="*", metavar="NAME", help="which nodes of the fleet (default: all)")
    hollow.add_argument("--fleet", required=True, metavar="FILE|NAME", help="a Fleet file or a named fleet")
    hollow.add_argument("--end-with-parent", action="store_true", help="end when standard input closes")
    hollow.add_argument("--lease-duration", type=_seconds, default=40, metavar="S", help="default 40 s")
    hollow.add_argument("--lease-period", type=_seconds, default=10, metavar="S", help="default 10 s")
    _target(hollow)


def _agent(actions: _Sub) -> None:
    run = _command(
        actions,
        "run",
        "agent:run",
        "run the node agent: this machine becomes a node and runs pods",
        """\
examples:
  drakkar node run --runtime process            pods as plain processes of yours; no root, no isolation
  sudo drakkar node run                         containers by runc
  drakkar node run --join drakkar1.eyJz…        a second machine; `drakkar token create` prints the text

Drivers register in ROOT/plugins_registry, as with a kubelet. Ctrl-C stops the agent; containers go on and are
found again by the next one on the same root.""",
    )
    run.add_argument("--name", metavar="NODE", help="name of the Node (default: this machine's host name)")
    run.add_argument("--runtime", choices=("oci", "process"), help="oci needs root and runc and is its default")
    run.add_argument(
        "--root", metavar="DIR", help="default: /var/lib/kubelet for root, else ~/.local/share/drakkar/node"
    )
    run.add_argument(
        "--network", choices=("bridge", "host"), help="of pods (default: bridge with oci, which needs root)"
    )
    run.add_argument(
        "--pod-cidr",
        metavar="CIDR",
        help="addresses of pods, for routes between nodes (default: the first /24 of 10.88.0.0/16 that is free here)",
    )
    run.add_argument("--config", metavar="FILE", help="images and their places (docs/reference/node.md)")
    run.add_argument("--join", metavar="TEXT|FILE", help="join the cluster of this text instead of a kubeconfig's")
    run.add_argument("--address", metavar="IP", help="address of the node (default: the one the API server sees)")
    run.add_argument(
        "--port", type=_port, default=0, metavar="N", help="port of the agent's endpoint (default: a free one)"
    )
    run.add_argument("--cdi-dir", action="append", metavar="DIR", help="CDI folder, the last one wins (repeatable)")
    run.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="label of the Node (repeatable)")
    run.add_argument("--lease-duration", type=_seconds, default=40, metavar="S", help="default 40 s")
    run.add_argument("--lease-period", type=_seconds, default=10, metavar="S", help="default 10 s")
    _target(run)


def _token(commands: _Sub) -> None:
    token = _command(commands, "token", "agent:token", "tokens with which machines join")
    actions = token.add_subparsers(title="actions", required=True, metavar="ACTION")
    create = _command(
        actions,
        "create",
        "agent:token",
        "make a bootstrap token and print the command with which a machine joins",
        "The token lets its holder ask for the certificate of a new node, and nothing else.",
    )
    create.add_argument("--ttl", type=_seconds, default=86400, metavar="S", help="how long it is good (86400 s, a day)")
    create.add_argument(
        "--server", metavar="URL", help="how the machine reaches the API server (default: the kubeconfig's)"
    )
    _target(create)


def _replicas(command: argparse.ArgumentParser) -> None:
    """Several replicas of a component, and what can be asked of each."""
    command.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="of several replicas let only the one that holds a Lease work (default: yes)",
    )
    command.add_argument(
        "--leader-elect-lease-duration",
        type=_seconds,
        default=15,
        metavar="S",
        help="after how long a silent leader is replaced (15 s)",
    )
    command.add_argument(
        "--leader-elect-resource-name", default="", metavar="NAME", help="of the Lease; default: by component"
    )
    command.add_argument(
        "--leader-elect-resource-namespace", default="kube-system", metavar="NS", help="default: kube-system"
    )
    command.add_argument(
        "--metrics-bind-address",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where /healthz, /readyz and /metrics answer (default: a free port of 127.0.0.1); 0: nowhere",
    )


def _components(commands: _Sub) -> None:
    command = _command(
        commands,
        "scheduler",
        "components:scheduler",
        "run the scheduler alone against any API server",
        """\
examples:
  drakkar scheduler --kubeconfig admin.conf        gated pods, and pods with schedulerName: drakkar
  drakkar scheduler --mode own                     pods with schedulerName: drakkar only
  drakkar scheduler --metrics-bind-address :10259  in a pod; start several: one works, the others stand by
  drakkar scheduler --webhook :8443 --tls-cert tls.crt --tls-key tls.key
                                                   gates pods of namespaces labelled drakkar.dev/gate=enabled,
                                                   and keeps other schedulers off devices that are taken

A gated pod (scheduling gate drakkar.dev/allocation) gets its devices here and is bound by its own scheduler, for
most the cluster's; docs/how-to/beside-kube-scheduler.md tells how. A pod with our scheduler name is bound here.
SIGTERM hands the Lease over at once; docs/reference/scheduler.md tells what is decided and why a pod waits.""",
    )
    command.add_argument(
        "--scheduler-name",
        default="drakkar",
        metavar="NAME",
        help="pods with this schedulerName are bound here, in both modes (default: drakkar)",
    )
    command.add_argument(
        "--mode",
        choices=("gate", "own"),
        default="gate",
        help="gate (default): also allocate for pods with our scheduling gate, and lift it; own: leave those alone",
    )
    command.add_argument(
        "--webhook",
        default="",
        metavar="HOST:PORT",
        help="serve the admission webhooks there, by HTTPS: / gates pods (mode gate), /guard judges allocations",
    )
    command.add_argument("--tls-cert", metavar="FILE", help="certificate of the webhook, PEM")
    command.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    command.add_argument(
        "--guard-service",
        default="",
        metavar="NAMESPACE/NAME",
        help="Service without selector that this replica leads to itself while it works: only the leader can judge",
    )
    command.add_argument(
        "--pod-ip",
        default="",
        metavar="IP",
        help="where the Service leads to (default: the environment's POD_IP)",
    )
    command.add_argument("--policy", choices=("drakkar", "upstream"), default="drakkar", help="allocation policy")
    command.add_argument(
        "--binding-timeout",
        type=_seconds,
        default=600,
        metavar="S",
        help="how long devices may take to be prepared before a pod is bound (600 s)",
    )
    _replicas(command)
    _target(command)
    command = _command(
        commands,
        "controllers",
        "components:controllers",
        "run the controllers alone against any API server",
        """\
examples:
  drakkar controllers                              all of them, for a server that has none
  drakkar controllers --only eviction,node-loss    beside kube-controller-manager

Several may run: of those with the same --only one works, the others wait for its Lease.""",
    )
    command.add_argument("--only", metavar="A,B", help="just these, for example eviction,node-loss")
    command.add_argument(
        "--node-grace",
        type=_seconds,
        default=40,
        metavar="S",
        help="silence after which a node is not ready, and lost for node-loss (40 s)",
    )
    command.add_argument(
        "--loss-by-silence",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="node-loss lets pods go of nodes that are silent, not only of those tainted out-of-service "
        "(default: where --only names node-loss)",
    )
    _replicas(command)
    _target(command)
    driver = _command(commands, "driver", "driver:run", "device drivers: run one, write one, check one")
    actions = driver.add_subparsers(title="actions", required=True, metavar="ACTION")
    action = _command(
        actions,
        "run",
        "driver:run",
        "run one of our drivers against any API server",
        """\
drivers:
  tpu          multi-host TPU slices, one controller for the cluster
  gpu          NVIDIA GPUs: whole, MIG partitions, time slicing, MPS, passthrough
  nic          virtual functions with a share of their port's bandwidth, in the pod's network
  cpu          processors of a claim's own, by NUMA node
  computedomain  domains of several nodes over NVLink
  example      no hardware: a profile per way to model devices
  replay       no hardware: any driver, by the slices that it once published

`drakkar driver run NAME --help` tells the flags of a driver.""",
    )
    action.add_argument(
        "name",
        choices=("tpu", "gpu", "nic", "cpu", "computedomain", "example", "replay"),
        metavar="NAME",
        help="which driver",
    )
    action.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="flags of the driver")
    action = _command(
        actions,
        "new",
        "driver:new",
        "begin a driver of your own: code, tests, manifests",
        "example: drakkar driver new gpu.example.com",
    )
    action.add_argument("name", metavar="NAME", help="the driver's DNS name, for example gpu.example.com")
    action.add_argument("--folder", metavar="DIR", help="where to (default: the first part of the name)")
    action = _command(
        actions,
        "check",
        "driver:check",
        "check any DRA driver, whatever it is written in, against the kubelet's protocol",
        """\
examples:
  drakkar driver check --command "python driver.py"     started, killed and upgraded by the kit, embedded API server
  drakkar driver check --socket /var/lib/kubelet/plugins_registry/gpu.example.com-reg.sock --api admin.conf \\
      --node-name n1                                    one that runs already, beside a real kubelet

The driver finds KUBECONFIG, NODE_NAME, KUBELET_ROOT, CDI_DIR and POD_UID in its environment.
Exit 0: no rule is broken. Exit 1: one line per finding says which.""",
    )
    action.add_argument(
        "--command", metavar="CMD", help="how to start the driver; the kit stops and kills it as it needs"
    )
    action.add_argument("--socket", metavar="PATH", help="registration socket of a driver that runs already")
    action.add_argument(
        "--api", metavar="FILE", help="kubeconfig (administrator) of the driver's API server; with --command: embedded"
    )
    action.add_argument("--node-name", default="check-node", metavar="NAME", help="Node of the driver (check-node)")
    action.add_argument("--kubelet-root", metavar="DIR", help="default: a temporary folder, or /var/lib/kubelet")
    action.add_argument("--cdi-dir", metavar="DIR", help="default: within --kubelet-root, or /var/run/cdi")
    action.add_argument("--only", metavar="A,B", help="just these checks")
    action.add_argument("--log", metavar="FILE", help="append what the driver prints to this file")
    action.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="output format")
