#!/bin/sh
# One door for every chore. Needs only python3 (3.11+) with venv; everything else goes into .venv.
#   ./do demo      set up and run the 64-chip story
#   ./do test      set up and run all fast checks and tests
#   ./do help      the other chores
set -eu
cd "$(dirname "$0")"

say() { printf '%s\n' "$*" >&2; }

setup() {
    want=$(cksum < requirements.lock)
    if [ -x .venv/bin/drakkar ] && [ "$(cat .venv/lock.cksum 2>/dev/null || true)" = "$want" ]; then
        return
    fi
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
        say "drakkar needs Python 3.11 or newer as '$python'; set PYTHON=/path/to/python3.11"
        exit 2
    fi
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        say "'$python' has no venv module; on Debian: apt-get install python3-venv"
        exit 2
    fi
    say "setting up .venv (once) ..."
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
    printf '%s' "$want" > .venv/lock.cksum
}

case "${1:-help}" in
demo)
    shift
    setup
    exec .venv/bin/drakkar demo tpu "$@"
    ;;
setup) setup ;;
lint)
    setup
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/lint-imports
    .venv/bin/pyright --pythonpath .venv/bin/python
    ;;
test)
    shift
    ./do lint
    .venv/bin/python -m pytest -q -n "${DRAKKAR_WORKERS:-2}" -m "not slow and not upstream and not kubelet" tests "$@"
    ;;
slow)
    shift
    setup
    .venv/bin/python -m pytest -q -m slow tests "$@"
    ;;
upstream)
    shift
    setup
    # The same control plane in an older release, built or emulated, and the tests that say what of Drakkar works there.
    case "${1:-}" in
    --kubernetes) export DRAKKAR_KUBERNETES="${2:?which release? ./do upstream --kubernetes 1.34}" ;;
    --emulated) export DRAKKAR_EMULATED="${2:?which release? ./do upstream --emulated 1.34}" ;;
    esac
    if [ -n "${DRAKKAR_KUBERNETES:-}${DRAKKAR_EMULATED:-}" ]; then
        case "${1:-}" in --kubernetes | --emulated) shift 2 ;; esac
        files=$(.venv/bin/python -m tests.support.releases)
        # shellcheck disable=SC2086
        set -- $files "$@"
    else
        set -- tests "$@"
    fi
    .venv/bin/python -m tests.support.upstream
    .venv/bin/python -m pytest -q -m upstream "$@"
    ;;
kubelet)
    shift
    setup
    # Builds what is missing and tells its versions; where this machine cannot run a kubelet: why, and status 77.
    versions=$(.venv/bin/python -m tests.support.kubelet) || {
        status=$?
        say "$versions"
        [ "$status" -eq 77 ] && exit 0
        exit "$status"
    }
    .venv/bin/python -m pytest -q -m kubelet tests "$@"
    say "run: $versions"
    ;;
kill)
    shift
    setup
    what=all
    case "${1:-}" in plane|node) what=$1; shift ;; esac
    [ "$what" = node ] || .venv/bin/python -m tests.support.killer "$@"
    [ "$what" = plane ] || .venv/bin/python -m tests.support.nodekiller "$@"
    ;;
weather)
    shift
    setup
    .venv/bin/python -m tests.support.weather "$@"
    ;;
fuzz)
    shift
    setup
    .venv/bin/python -m tests.fuzz "$@"
    ;;
bench)
    shift
    setup
    for file in benchmarks/*.py; do .venv/bin/python "$file" "$@"; done
    ;;
lock)
    setup
    .venv/bin/python -m pip install --quiet --disable-pip-version-check uv
    .venv/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 pyproject.toml \
        --group dev --no-header -o requirements.lock
    .venv/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 pyproject.toml \
        --extra node --extra gpu --extra nic --extra solver --constraint requirements.lock --no-header \
        -o requirements.image.lock
    echo 'hatchling>=1.27' | .venv/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 - \
        --constraint requirements.lock --no-header -o requirements.build.lock
    ;;
image)
    shift
    setup
    .venv/bin/python tools/image.py "$@"
    ;;
manifests)
    setup
    .venv/bin/python -m tests.support.chart
    ;;
help)
    say "usage: ./do demo|test|setup|lint|slow|upstream|kubelet|kill|weather|fuzz|bench|image|manifests|lock
  demo   set up and run the 64-chip story on this machine
  setup  set up .venv and nothing else
  test   set up, lint, type-check and run the fast tests
  slow   the slower tests: real kubectl, kills, story variants
  upstream  build upstream's components once (minutes, needs Go) and test with them;
            --kubernetes 1.34: those of an older release; --emulated 1.34: ours in its clothes (see CONTRIBUTING.md)
  kubelet  a real kubelet and containerd with our drivers, as root; says 'not run: why' where this machine cannot
  kill   the long kill loops over all failpoints: ./do kill [plane|node] (see CONTRIBUTING.md)
  weather  all parts behind a proxy that refuses, delays, loses and repeats (--seconds, --seed, --beyond)
  fuzz   random requests to the API server, for as long as you like (--seconds)
  bench  the benchmarks
  image  build the image without any engine: ./do image --base FOLDER --out LAYOUT
  manifests  renew deploy/ from charts/drakkar
  lock   renew requirements.lock from pyproject.toml"
    ;;
*)
    say "unknown chore '$1'; ./do help lists them"
    exit 2
    ;;
esac
