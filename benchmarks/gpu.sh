#!/usr/bin/env bash
# Every test and benchmark that a GPU has a part in, with nothing but PyTorch's image and this repository:
#
#   benchmarks/gpu.sh [FOLDER]    writes what each of them says to FOLDER (build/gpu by default)
#
# The tests need pytest and what tests/conftest.py imports; where the image lacks them, name a folder of unpacked wheels
# in WHEELS (pip download pytest pytest-timeout jaxtyping beartype hypothesis). The benchmarks need PyTorch alone.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu}
mkdir -p "$out"
export PYTHONPATH="src:benchmarks${WHEELS:+:$WHEELS}" PYTHONUNBUFFERED=1
status=0
note() { "$@" || { echo "failed: $*" >&2; status=1; }; }

python -c 'import torch; print(torch.cuda.get_device_name(), torch.__version__)' | tee "$out/machine.txt"
note timeout 240 python -m pytest -q -p no:cacheprovider tests/test_gpu.py tests/ops/test_attention_triton.py 2>&1 |
  tee "$out/tests.txt"
for name in attention model; do
  note timeout 150 python "benchmarks/$name.py" --device cuda >"$out/$name.json"
  cat "$out/$name.json"
done
if command -v compute-sanitizer >/dev/null; then
  note timeout 120 compute-sanitizer --error-exitcode 9 python -m pytest -q -p no:cacheprovider \
    tests/ops/test_attention_triton.py -k 'small or odd' 2>&1 | tee "$out/sanitizer.txt"
fi
exit $status
