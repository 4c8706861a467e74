#!/usr/bin/env bash
# Record traces of the four models on two ranks of this machine's CPU, in fp32 and bf16, and what their operators and
# casts cost here.
#   bash record_samples.sh              small models, as they come with the package, into the current folder
#   bash record_samples.sh --full DIR   whole models (minutes, and memory for each rank)
# The interpreter is $PYTHON, or python3; it needs torch and transformers.
set -euo pipefail

full=""
if [ "${1:-}" = "--full" ]; then full=yes; shift; fi
root="${1:-.}"
python="${PYTHON:-python3}"

sizes() {
    [ -z "$full" ] || return 0
    case "$1" in
        vgg16) echo --image 32 --width 16 ;;
        resnet50) echo --image 64 --width 16 --layers 1 ;;
        bert) echo --sequence 64 --width 128 --layers 2 ;;
        roberta) echo --sequence 32 --width 64 --layers 1 --batch 2 ;;
    esac
}

mkdir -p "$root/casting_cost"
for model in vgg16 resnet50 bert roberta; do
    for precision in fp32 bf16; do
        # shellcheck disable=SC2046 # sizes are words
        "$python" -m microbench trace "$model" --precision "$precision" $(sizes "$model") --steps 5 --keep median --device cpu \
            --out "$root/traces" --input "$root/input_data"
    done
    rm "$root/traces/$model/bf16/execution-0.json.gz" # its operators are those of fp32, and casts
    "$python" -m microbench traced "$root/traces/$model/fp32/rank-0.json.gz" --precision fp32 bf16 --device cpu \
        --out "$root/casting_cost/$model.json"
done
"$python" -m microbench casts --device cpu --largest 22 --out "$root/casting_cost/casts.json"

# One table of costs, without the name of this machine.
"$python" - "$root/casting_cost" <<'END'
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
