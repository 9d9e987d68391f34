#!/usr/bin/env bash
# Checks the dependency directions of docs/architecture.md and the banned crates.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0

# Names of the workspace's own packages that a package depends on, itself excluded.
own_dependencies() {
    cargo tree --quiet --locked --package "$1" --edges normal --prefix none --format '{p}' |
        awk '{print $1}' | sort -u |
        grep -xE 'aggregated-api|crawl-api|devcluster|fake-clouds|kubectl-px|lease-apiserver|mock-cloud|proxy-operator|runtime-kit|scaling' |
        grep -vx "$1" || true
}

# allow PACKAGE [DEPENDENCY ...]: the package may depend on these of ours and on no others.
allow() {
    local package=$1 found
    shift
    found=$(own_dependencies "$package")
    for dependency in $found; do
        if ! printf '%s\n' "$@" | grep -qx "$dependency"; then
            echo "error: $package must not depend on $dependency" >&2
            failed=1
        fi
    done
}

allow crawl-api
allow runtime-kit
allow aggregated-api runtime-kit
allow devcluster
allow mock-cloud runtime-kit
allow fake-clouds mock-cloud runtime-kit
allow kubectl-px crawl-api runtime-kit
allow lease-apiserver aggregated-api crawl-api runtime-kit
allow proxy-operator crawl-api mock-cloud runtime-kit

# crawl-api is pure: no runtime and no client.
if cargo tree --quiet --locked --package crawl-api --edges normal --prefix none --format '{p}' |
    awk '{print $1}' | grep -xE 'tokio|hyper|kube-client' >&2; then
    echo "error: crawl-api must not depend on a runtime or a client" >&2
    failed=1
fi

for banned in ring openssl-sys serde_yaml; do
    if cargo tree --quiet --locked --workspace --edges all --invert "$banned" 2>/dev/null | grep -q .; then
        echo "error: $banned is in the dependency tree:" >&2
        cargo tree --quiet --locked --workspace --edges all --invert "$banned" >&2
        failed=1
    fi
done

exit "$failed"
