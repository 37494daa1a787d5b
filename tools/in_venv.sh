#!/usr/bin/env bash
# Run Python in an environment of $NEWEST_PYTHON: tools/in_venv.sh FOLDER EXTRA ARGUMENTS...
#
# Makes the environment FOLDER, with sawlog's EXTRA, if it is not there. It is made anew when the
# interpreter or pyproject.toml changed, or when making it was interrupted.
set -euo pipefail

folder=$1 extra=$2
shift 2
stamp=$folder/.made-with
recipe="$NEWEST_PYTHON: $("$NEWEST_PYTHON" -VV) [$extra] $(cksum pyproject.toml)"

if [[ ! -e $stamp || $(<"$stamp") != "$recipe" ]]; then
    echo "Setting up $folder with $("$NEWEST_PYTHON" -V) (once; takes a few minutes)"
    rm -rf "$folder"
    "$NEWEST_PYTHON" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extra]"
    echo "$recipe" >"$stamp"
fi
exec "$folder/bin/python" "$@"
