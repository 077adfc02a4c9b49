#!/usr/bin/env bash
# Runs the finding NAME, or all: a line each, ok or CHANGED, and the output of a finding that changed or failed.
cd "$(dirname "$0")" || exit 1
status=0
for name in "${@:-*}"; do
    for script in ${name%.sh}.sh; do
        [ "$script" = run.sh ] && continue
        if output=$(bash "$script" 2>&1); then
            echo "ok       ${script%.sh}: $(tail -n 1 <<< "$output")"
        else
            status=1
            printf 'CHANGED  %s\n%s\n' "${script%.sh}" "$output"
        fi
    done
done
exit $status
