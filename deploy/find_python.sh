#!/usr/bin/env bash
# Prints a Python (3.11 to 3.13) that this user can execute and that can make a virtual environment with pip in it.
set -euo pipefail

# With ensurepip a new environment brings its own pip; without it (Debian without python3-venv) an installed pip serves.
suits() {
  [ -x "$(command -v "$1" 2>/dev/null)" ] && "$1" - <<'CHECK' 2>/dev/null
import importlib.util, sys
has = lambda name: importlib.util.find_spec(name) is not None
raise SystemExit(not ((3, 11) <= sys.version_info[:2] <= (3, 13) and has("venv") and (has("ensurepip") or has("pip"))))
CHECK
}

for candidate in "${PYTHON:-}" python3.11 /usr/bin/python3.11 python3.12 python3.13 python3 /usr/bin/python3; do
  if [ -n "$candidate" ] && suits "$candidate"; then
    # The real path: a version manager's shim may stand for another version in another folder.
    "$candidate" -c 'import sys; print(sys.executable)'
    exit 0
  fi
done
cat >&2 <<'WHY'
error: no Python 3.11, 3.12 or 3.13 that this user can run, with venv and either ensurepip or pip.
  Debian, Ubuntu: apt-get install python3 python3-venv
  or name one:    make setup PYTHON=/path/to/python3.11
WHY
exit 1
