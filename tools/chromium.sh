#!/usr/bin/env bash
# Install Debian's Chromium if there is none: the browser of `make test-browser`.
# Exits with 1, and says why, if there is none and none can be installed.
set -euo pipefail

if command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [[ $(id -u) != 0 ]]; then
    echo "There is no chromium. Hint: install it, or run this as root on a Debian system." >&2
    exit 1
fi
echo "Installing chromium (once; takes a minute)"
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null; then
    echo "apt-get could not install chromium: is there a network?" >&2
    exit 1
fi
command -v chromium >/dev/null
