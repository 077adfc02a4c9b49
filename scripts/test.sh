#!/usr/bin/env bash
# Sets up .venv and runs the tests. Passes its arguments to pytest.
set -euo pipefail
source "$(dirname "$0")/venv.sh"
use_venv requirements.txt requirements-export.txt requirements-dev.txt
.venv/bin/python -m pytest -n 2 --dist loadscope "$@"
