#!/usr/bin/env bash
# Everything that can be checked without running the system. A tool that is missing is an error in CI
# and a note elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."

step=./hack/step.sh

# optional TOOL TITLE COMMAND ...
optional() {
    local tool=$1 title=$2
    shift 2
    if command -v "$tool" >/dev/null; then
        "$step" "$title" "$@"
    elif [ "${CI:-}" = true ]; then
        echo "error: $tool is missing; .ci/run installs it" >&2
        exit 1
    else
        echo "==> $title: skipped, $tool is not installed (see CONTRIBUTING.md)"
    fi
}

# Each crate must be complete by itself: its Cargo.toml names all it uses.
check_from_own_folder() {
    local folder
    for folder in crates/*/ apiserver/; do
        (cd "$folder" && cargo check --locked --quiet --all-targets) || return 1
    done
}

generated_files_are_current() {
    cargo run --locked --quiet --package crawl-api --bin crdgen -- config/crd
    if [ -n "$(git status --porcelain -- config/crd)" ]; then
        echo "error: config/crd is stale; run make manifests and commit the result" >&2
        git --no-pager diff --stat -- config/crd >&2
        return 1
    fi
}

"$step" "Format" cargo fmt --all --check
"$step" "Clippy" cargo clippy --locked --workspace --all-targets -- -D warnings
"$step" "Docs" env RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items --quiet
"$step" "Dependency directions and banned crates" ./hack/check-dependencies.sh
echo "==> Each crate from its own folder"
check_from_own_folder
echo "==> Generated files"
generated_files_are_current
optional typos "Spelling" typos
optional shellcheck "Shell scripts" shellcheck .ci/run hack/*.sh
optional yamllint "YAML" yamllint --strict config
if command -v cargo-deny >/dev/null; then
    "$step" "Licences and sources" cargo deny --locked check bans licenses sources
fi
