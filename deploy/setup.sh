#!/usr/bin/env bash
# Makes the virtual environment $VENV and installs Headrace with everything it needs, at the pinned versions.
# Safe to run again: an environment that works is kept and brought up to date.
#
#   VENV      where (default .venv)        PYTHON    made with (default: deploy/find_python.sh)
#   PIP_ARGS  more arguments for pip       EXTRAS    what to install (default dev: everything and the tests' tools)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
extras=${EXTRAS:-dev}
started=$SECONDS

make_venv() {
  local python
  python=$(deploy/find_python.sh)
  echo "making $venv with $python" >&2
  rm -rf "$venv"
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv "$venv"
  else
    echo "this Python has no ensurepip (Debian: the package python3-venv); using its own pip instead" >&2
    "$python" -m venv --without-pip "$venv"
    "$python" -m pip --python "$venv/bin/python" install -qq --disable-pip-version-check pip
  fi
}

"$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv

# One call, so that pip resolves once. Byte code is written when a module is first imported: most of it never is.
echo "installing headrace[$extras] into $venv (some minutes the first time)" >&2
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile --no-input \
  ${PIP_ARGS:-} --constraint deploy/constraints.txt --editable ".[$extras]"
"$venv/bin/python" -c 'import grpc, torch, headrace' || {
  echo "error: the environment in $venv does not work" >&2
  exit 1
}
echo "set up in $((SECONDS - started)) s" >&2
