#!/usr/bin/env bash
# Sets up .venv and runs the fast tests; `-m slow` runs the slow ones. Passes its arguments to pytest.
set -euo pipefail
source "$(dirname "$0")/venv.sh"
use_venv requirements.txt requirements-export.txt requirements-dev.txt
unset PYTHONDONTWRITEBYTECODE  # else each process compiles the sources, and rewrites the tests, again
.venv/bin/python -m pytest -n 2 --dist worksteal "$@"
