#!/usr/bin/env bash
# Runs benchmarks: bench.sh [creates|read|store|fleet ...], all of them without arguments. Each tells its own
# figures and goals; see docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."

step=./hack/step.sh
read -r -a flags <<<"${CARGO_FLAGS:---locked}"
[ "$#" -gt 0 ] || set -- creates read store fleet

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
        fleet)
            "$step" "Build release binaries" cargo build "${flags[@]}" --release \
                --package proxy-operator --package lease-apiserver --package mock-cloud --bins
            "$step" "Benchmark a fleet" cargo bench "${flags[@]}" --package proxy-operator --bench fleet
            ;;
        *)
            echo "error: there is no benchmark $bench; there are creates, read, store, fleet" >&2
            exit 2
            ;;
    esac
done
