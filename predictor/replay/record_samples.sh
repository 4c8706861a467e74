#!/usr/bin/env bash
# Record traces of VGG16, ResNet-50, BERT and RoBERTa on two ranks of this machine's CPU, in fp32 and bf16, and what their
# operators and casts cost here.
#   bash record_samples.sh DIR          whole models (minutes, and memory for each rank)
#   bash record_samples.sh --small DIR  small models
#   bash record_samples.sh --samples    small models, as they come with the package, beside this script
# The interpreter is $PYTHON, or python3; it needs torch and transformers.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
small=""
root="${1:?usage: bash record_samples.sh [--small] DIR, or --samples}"
if [ "$root" = "--small" ]; then
    small=yes
    root="${2:?usage: bash record_samples.sh --small DIR}"
elif [ "$root" = "--samples" ]; then
    small=yes
    root="$here"
fi
costs="$root/tmp_data/casting_cost"
[ "$root" != "$here" ] || costs="$here/casting_cost"

sizes() {
    [ -n "$small" ] || return 0
    case "$1" in
        vgg16) echo --image 32 --width 16 ;;
        resnet50) echo --image 64 --width 16 --layers 1 ;;
        bert) echo --sequence 64 --width 128 --layers 2 ;;
        roberta) echo --sequence 32 --width 64 --layers 1 --batch 2 ;;
    esac
}

mkdir -p "$costs"
for model in vgg16 resnet50 bert roberta; do
    for precision in fp32 bf16; do
        # shellcheck disable=SC2046 # sizes are words
        "$python" -m microbench trace "$model" --precision "$precision" $(sizes "$model") --steps 1 --warm-up 4 \
            --device cpu --out "$root/traces" --input "$root/input_data"
    done
    rm "$root/traces/$model/bf16/execution-0.json.gz" # its operators are those of fp32, and casts
    "$python" -m microbench traced "$root/traces/$model/fp32/rank-0.json.gz" --precision fp32 bf16 --device cpu \
        --out "$costs/$model.json"
done
"$python" -m microbench casts --device cpu --largest 22 --out "$costs/casts.json"
[ "$root" = "$here" ] || exit 0

# One table of costs, and nothing that names this machine.
"$python" - "$costs" <<'END'
import sys
from pathlib import Path

from predictor.precision.measured_costs import joined, read_measured_costs

folder = Path(sys.argv[1])
paths = sorted(path for path in folder.glob("*.json") if path.name != "cpu.json")
costs = joined(read_measured_costs(path) for path in paths).model_copy(update={"host": None})
(folder / "cpu.json").write_text(costs.model_dump_json(exclude_none=True) + "\n", encoding="utf-8")
for path in paths:
    path.unlink()
END
find "$root/traces" -name record.json -delete
