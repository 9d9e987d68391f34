#!/usr/bin/env bash
# Runs a command and says what for and how long it took: step.sh TITLE COMMAND [ARGUMENT ...]
set -euo pipefail

title=$1
shift
echo "==> $title"
started=$SECONDS
status=0
"$@" || status=$?
elapsed=$((SECONDS - started))
if [ "$status" -eq 0 ]; then
    echo "==> $title: done in ${elapsed}s"
else
    echo "==> $title: failed with status $status after ${elapsed}s" >&2
fi
exit "$status"
