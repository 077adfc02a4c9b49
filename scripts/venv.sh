# The other scripts source this file. `use_venv FILES` installs requirement files into .venv unless they are installed.
# PYTHON selects the interpreter (3.11 or later).

cd "$(dirname "${BASH_SOURCE[0]}")/.."

use_venv() {
    local stamp=.venv/.installed
    local wanted
    wanted=$(cat "$@")
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        "${PYTHON:-python3}" -c 'import sys
sys.exit("error: Python 3.11 or later is needed; set PYTHON" if sys.version_info < (3, 11)
    else "error: Windows is not supported; use WSL 2" if sys.platform == "win32" else 0)'
        "${PYTHON:-python3}" -m venv --clear .venv
    fi
    if [[ "$(cat "$stamp" 2>/dev/null)" != *"$wanted"* ]]; then
        compgen -G ".venv/lib/*/site-packages/torch" >/dev/null || echo "Installing into .venv (about two minutes, 6 GB) ..."
        .venv/bin/python -m pip install --quiet --disable-pip-version-check $(printf -- '-r %s ' "$@")
        echo "$wanted" >"$stamp"
    fi
}
