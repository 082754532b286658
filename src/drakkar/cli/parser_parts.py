"""Arguments of the commands that run one part of a cluster: a node, the scheduler, the controllers, a driver."""

from __future__ import annotations

import argparse

from drakkar.cli.arguments import Sub, add_command, add_target, port, seconds


def add_parts(commands: Sub) -> None:
    """Add them."""
    _node(commands)
    _token(commands)
    _scheduler(commands)
    _controllers(commands)
    _driver(commands)


def _node(commands: Sub) -> None:
    node = add_command(
        commands, "node", "node:run", "make this machine a node; make hollow nodes fail and recover, or run some"
    )
    actions = node.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, text in (
        ("fail", "silence a hollow node: heartbeats, pods, everything (nothing else is told)"),
        ("recover", "revive a hollow node that was made to fail"),
    ):
        action = add_command(
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
        add_target(action)
    _agent(actions)
    hollow = add_command(
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
    hollow.add_argument("--lease-duration", type=seconds, default=40, metavar="S", help="default 40 s")
    hollow.add_argument("--lease-period", type=seconds, default=10, metavar="S", help="default 10 s")
    add_target(hollow)


def _agent(actions: Sub) -> None:
    run = add_command(
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
        "--port", type=port, default=0, metavar="N", help="port of the agent's endpoint (default: a free one)"
    )
    run.add_argument("--cdi-dir", action="append", metavar="DIR", help="CDI folder, the last one wins (repeatable)")
    run.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="label of the Node (repeatable)")
    run.add_argument("--lease-duration", type=seconds, default=40, metavar="S", help="default 40 s")
    run.add_argument("--lease-period", type=seconds, default=10, metavar="S", help="default 10 s")
    add_target(run)


def _token(commands: Sub) -> None:
    token = add_command(commands, "token", "agent:token", "tokens with which machines join")
    actions = token.add_subparsers(title="actions", required=True, metavar="ACTION")
    create = add_command(
        actions,
        "create",
        "agent:token",
        "make a bootstrap token and print the command with which a machine joins",
        "The token lets its holder ask for the certificate of a new node, and nothing else.",
    )
    create.add_argument("--ttl", type=seconds, default=86400, metavar="S", help="how long it is good (86400 s, a day)")
    create.add_argument(
        "--server", metavar="URL", help="how the machine reaches the API server (default: the kubeconfig's)"
    )
    add_target(create)


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
        type=seconds,
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


def _scheduler(commands: Sub) -> None:
    command = add_command(
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
        type=seconds,
        default=600,
        metavar="S",
        help="how long devices may take to be prepared before a pod is bound (600 s)",
    )
    _replicas(command)
    add_target(command)


def _controllers(commands: Sub) -> None:
    command = add_command(
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
        type=seconds,
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
    add_target(command)


def _driver(commands: Sub) -> None:
    driver = add_command(commands, "driver", "driver:run", "device drivers: run one, write one, check one")
    actions = driver.add_subparsers(title="actions", required=True, metavar="ACTION")
    action = add_command(
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
    action = add_command(
        actions,
        "new",
        "driver:new",
        "begin a driver of your own: code, tests, manifests",
        "example: drakkar driver new gpu.example.com",
    )
    action.add_argument("name", metavar="NAME", help="the driver's DNS name, for example gpu.example.com")
    action.add_argument("--folder", metavar="DIR", help="where to (default: the first part of the name)")
    _driver_check(actions)


def _driver_check(actions: Sub) -> None:
    action = add_command(
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
Exit 0: no rule is broken. Exit 1: one line per finding says which, with what came instead and what helps.""",
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
    action.add_argument(
        "--parameters",
        metavar="FILE",
        help="parameters that the driver takes (YAML): tried as they are, and with faults",
    )
    action.add_argument("--log", metavar="FILE", help="append what the driver prints to this file")
    action.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="output format")
