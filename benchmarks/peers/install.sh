#!/usr/bin/env bash
# A virtual environment with the measured servers and this checkout of Feedline: benchmarks/peers/install.sh FOLDER
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
folder="${1:?usage: benchmarks/peers/install.sh FOLDER}/peers"
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --disable-pip-version-check --requirement "$here/requirements.txt"
"$folder/bin/pip" install --disable-pip-version-check --no-deps --editable "$here/../.."
echo "feedline bench peers --venvs $1 --snapshots ..."
