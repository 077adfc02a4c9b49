#!/usr/bin/env bash
# Runs the fast tests in .venv-oldest, with the oldest version of each package that the requirement files allow; `-m slow`
# runs the slow ones. Passes its arguments to pytest. PYTHON selects the interpreter (3.11 or later).
set -euo pipefail
cd "$(dirname "$0")/.."
installed=.venv-oldest/requirements.txt
wanted=$(sed 's/>=/==/' requirements.txt requirements-export.txt requirements-dev.txt)
if [[ "$(cat $installed 2>/dev/null)" != "$wanted" ]]; then
    echo "Installing into .venv-oldest (about two minutes, 6 GB) ..."
    "${PYTHON:-python3}" -m venv --clear .venv-oldest
    .venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -r <(echo "$wanted")
    echo "$wanted" >$installed
fi
.venv-oldest/bin/python -m pytest -n 2 --dist worksteal "$@"
