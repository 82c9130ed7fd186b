#!/usr/bin/env bash
# What a GPU is to show, in under ten minutes, with nothing but PyTorch's image and this repository:
#
#   benchmarks/gpu.sh [FOLDER]    writes what each test and benchmark says to FOLDER (build/gpu by default)
#
# The tests need pytest and what tests/conftest.py imports; where the image lacks them, name a folder of unpacked wheels
# in WHEELS (pip download pytest pytest-timeout jaxtyping beartype hypothesis). The benchmarks need PyTorch, NumPy and
# safetensors. benchmarks/fvd.py is not among them: it needs I3D's weights.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu}
mkdir -p "$out"
export PYTHONPATH="src:benchmarks${WHEELS:+:$WHEELS}" PYTHONUNBUFFERED=1
status=0

# run SECONDS FILE COMMAND…: what it prints goes to the file and is shown; a failure is told and remembered.
run() {
  local seconds=$1 file=$2
  shift 2
  timeout "$seconds" "$@" >"$out/$file" || { echo "failed: $*" >&2; status=1; }
  cat "$out/$file"
}

pytest=(python -m pytest -q -p no:cacheprovider)
run 20 machine.txt python -c 'import torch; print(torch.cuda.get_device_name(), torch.__version__)'
run 150 tests.txt "${pytest[@]}" tests/test_gpu.py tests/ops/test_attention_triton.py
run 60 attention.json python benchmarks/attention.py --device cuda
run 90 model.json python benchmarks/model.py --device cuda
run 100 training.json python benchmarks/training.py --device cuda
run 100 sampling.json python benchmarks/sampling.py --device cuda --only waves-bf16-1 waves-bf16-16
if command -v compute-sanitizer >/dev/null; then
  run 70 sanitizer.txt compute-sanitizer --error-exitcode 9 "${pytest[@]}" tests/ops/test_attention_triton.py -k 'small or odd'
fi
exit $status
