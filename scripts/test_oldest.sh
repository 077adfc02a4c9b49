#!/usr/bin/env bash
# Runs the fast tests in .venv-oldest, with the oldest version of each package that the requirement files allow; `-m slow`
# runs the slow ones. Passes its arguments to pytest. PYTHON selects the interpreter (3.11 or later). TORCH=2.11.0 tests
# that torch, with the newest version of all other packages, in .venv-oldest-2.11.0.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.venv-oldest${TORCH:+-$TORCH}
installed=$folder/requirements.txt
versions=${TORCH:+"s/^torch>=[^ ]*/torch==$TORCH/"}
wanted=$(sed "${versions:-s/>=/==/}" requirements.txt requirements-export.txt requirements-dev.txt)
if [[ "$(cat $installed 2>/dev/null)" != "$wanted" ]]; then
    echo "Installing into $folder (about two minutes, 6 GB) ..."
    "${PYTHON:-python3}" -m venv --clear $folder
    $folder/bin/python -m pip install --quiet --disable-pip-version-check -r <(echo "$wanted")
    echo "$wanted" >$installed
fi
$folder/bin/python -m pytest -n 2 --dist worksteal "$@"
