#!/usr/bin/env bash
# Runs benchmarks: bench.sh [creates|read|store ...], all of them without arguments. Each tells its own
# figures and goals; see docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."

step=./hack/step.sh
read -r -a flags <<<"${CARGO_FLAGS:---locked}"
[ "$#" -gt 0 ] || set -- creates read store

for bench; do
    case $bench in
        creates)
            "$step" "Build release binaries" cargo build "${flags[@]}" --release \
                --package lease-apiserver --package proxy-operator --bins
            "$step" "Benchmark lease creates" cargo bench "${flags[@]}" --package lease-apiserver --bench creates
            ;;
        read)
            "$step" "Benchmark reads and watches" cargo bench "${flags[@]}" --package aggregated-api --bench read
            ;;
        store)
            "$step" "Benchmark stores" cargo bench "${flags[@]}" --package aggregated-api --bench store
            ;;
        *)
            echo "error: there is no benchmark $bench; there are creates, read, store" >&2
            exit 2
            ;;
    esac
done
