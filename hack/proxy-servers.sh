#!/usr/bin/env bash
# Installs the proxy servers that tests probe: squid, tinyproxy, dante and microsocks, and what lets
# dante know a user that the machine does not have. None of them is left running.
set -euo pipefail

packages=(curl dante-server libnss-wrapper microsocks squid tinyproxy)
missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "error: install ${missing[*]} (the names are Debian's): tests run them" >&2
    exit 1
fi
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }
as_root apt-get update -q
# Why the run level: Debian's packages would start their servers otherwise.
as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -q -y --no-install-recommends "${missing[@]}"
