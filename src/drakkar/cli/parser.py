"""All arguments of all commands, without heavy imports.

Those of the commands that run one part of a cluster are in `drakkar.cli.parser_parts`.

argparse and not a decorator library: a command line that is used in scripts and tests
starts some 300 ms sooner (docs/decisions/0002-argparse.md).
"""

from __future__ import annotations

import argparse

from drakkar.cli.arguments import Sub, add_command, add_target, count, port, seconds
from drakkar.cli.parser_parts import add_parts
from drakkar.version import KUBERNETES_VERSION, __version__

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
    add_parts(commands)
    return parser


def _plane(command: argparse.ArgumentParser, lease: float, period: float, grace: float) -> None:
    command.add_argument(
        "--data", metavar="DIR", help="where state is kept; default: a temporary folder, gone at the end"
    )
    command.add_argument(
        "--port", type=port, default=0, metavar="N", help="port of the API server; default: a free one"
    )
    command.add_argument(
        "--sync",
        choices=("full", "normal"),
        default="full",
        help="full: acknowledged writes survive power loss; normal: any crash of the program (default: full)",
    )
    command.add_argument(
        "--lease-duration", type=seconds, default=lease, metavar="S", help=f"of node leases (default {lease:g} s)"
    )
    command.add_argument(
        "--lease-period", type=seconds, default=period, metavar="S", help=f"heartbeat of nodes (default {period:g} s)"
    )
    command.add_argument(
        "--node-grace",
        type=seconds,
        default=grace,
        metavar="S",
        help=f"silence after which a node is NotReady (default {grace:g} s)",
    )


def _up(commands: Sub) -> None:
    command = add_command(
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
        type=seconds,
        default=60,
        metavar="S",
        help="for a request that is no watch, its body and its answer included (60 s)",
    )
    command.add_argument(
        "--max-requests-inflight",
        type=count,
        default=400,
        metavar="N",
        help="reads in progress beyond which clients are told to come back, with 429 (400)",
    )
    command.add_argument(
        "--max-mutating-requests-inflight", type=count, default=200, metavar="N", help="the same for writes (200)"
    )
    command.add_argument("--audit-log", metavar="FILE", help="write who did what, one JSON event a line")
    command.add_argument(
        "--audit-policy",
        metavar="FILE",
        help="audit.k8s.io/v1 Policy; default: every request at level Metadata",
    )
    command.add_argument(
        "--audit-log-maxsize",
        type=count,
        default=100,
        metavar="MB",
        help="size at which the audit log is put aside (default 100)",
    )
    command.add_argument(
        "--audit-log-maxbackup",
        type=count,
        default=10,
        metavar="N",
        help="how many audit logs that were put aside are kept (default 10)",
    )


def _demo(commands: Sub) -> None:
    demo = add_command(commands, "demo", "demo:run", "run a story unattended and say whether every step was seen")
    stories = demo.add_subparsers(title="stories", required=True, metavar="STORY")
    command = add_command(
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
        type=seconds,
        default=60,
        metavar="S",
        help="how long the observer waits for the whole story (60 s)",
    )
    command.add_argument("--json", metavar="FILE", help="write timeline and figures as JSON")
    _plane(command, lease=1, period=0.25, grace=4)
    command = add_command(
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
        "--patience", type=seconds, default=120, metavar="S", help="how long each step may take (120 s)"
    )
    command.add_argument("--json", metavar="FILE", help="write all figures as JSON")
    command.add_argument("--logs", metavar="DIR", help="keep what agents and drivers print, a file for each")
    command.add_argument(
        "--hold", action="store_true", help="let the nodes stay afterwards and print how kubectl reaches them"
    )


def _test(commands: Sub) -> None:
    command = add_command(
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


def _batch_tools(commands: Sub) -> None:
    command = add_command(
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
    command = add_command(
        commands,
        "cel",
        "batch:cel",
        "evaluate case files of device selectors, one JSON line per case out",
        """\
example: drakkar cel cases.json

The form of a file and of an answer: docs/reference/cel.md.""",
    )
    command.add_argument("files", nargs="+", metavar="FILE", help="case file (devices, cases); may end in .gz")


def _fence(commands: Sub) -> None:
    command = add_command(
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
    add_target(command)


def _explain(commands: Sub) -> None:
    command = add_command(
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
    add_target(command)
    command = add_command(
        commands,
        "dump",
        "explain:dump",
        "write all that explain and verify need into one file, without secrets",
        "Left out: Secrets and ConfigMaps, environment, commands and probes of containers, opaque driver parameters.",
    )
    command.add_argument("file", nargs="?", default="-", metavar="FILE", help="default: standard output")
    add_target(command)


def _verify(commands: Sub) -> None:
    command = add_command(
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
    add_target(command)


def _backups(commands: Sub) -> None:
    command = add_command(
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
    command = add_command(
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
