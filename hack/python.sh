#!/usr/bin/env bash
# Prints the folder of a Python environment with hack/requirements.txt, made on first use and kept in
# the user's cache folder under a name that says what it holds.
set -euo pipefail
cd "$(dirname "$0")"

key=$( (cat requirements.txt && python3 --version) | sha256sum | cut -c1-12)
cache=${PROXY_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/proxy-operator}
environment=$cache/python-$key

mkdir -p "$cache"
exec 9>"$environment.lock"
flock 9
if [ ! -f "$environment/complete" ]; then
    echo "creating a Python environment with hack/requirements.txt" >&2
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt >&2
    touch "$environment/complete"
fi
echo "$environment/bin"
