#!/usr/bin/env bash
# Install Debian's Chromium if there is none: the browser of `make test-browser`.
set -euo pipefail

if command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [[ $(id -u) != 0 ]]; then
    echo "There is no chromium. Hint: install it, or run this as root on a Debian system." >&2
    exit 1
fi
echo "Installing chromium (once; takes a minute)"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
