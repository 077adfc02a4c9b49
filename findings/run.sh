#!/usr/bin/env bash
# Runs the findings NAME ..., or all: a line each, with its seconds. The status is 0 if all of them are ok.
cd "$(dirname "$0")" || exit 1
names=("$@")
[ $# -gt 0 ] || names=(*.sh)
trace=$(mktemp) || exit 1
trap 'rm -f "$trace"' EXIT
status=0
for name in "${names[@]}"; do
    name=$(basename "$name" .sh)
    [ "$name" = run ] && continue
    if [ ! -f "$name.sh" ]; then
        echo "no such finding  $name"
        status=1
        continue
    fi
    SECONDS=0
    if output=$(BASH_XTRACEFD=9 bash -x "$name.sh" 2>&1 9> "$trace"); then
        echo "ok  $SECONDS s  $name: $(tail -n 1 <<< "$output")"
        continue
    fi
    status=1
    last_command=$(grep -v '^+ rm -rf' "$trace" | tail -n 1)
    case $last_command in
        *mktemp* | *"-m venv"* | *"pip install"*)
            error=$(grep -i error <<< "$output" | tail -n 1)
            echo "not installed  $SECONDS s  $name: ${error:-$output}" ;;
        *)
            printf 'CHANGED  %s s  %s\n%s\n' "$SECONDS" "$name" "$output" ;;
    esac
done
exit $status
