#!/usr/bin/env bash
# Record traces of VGG16, ResNet-50, BERT and RoBERTa on two ranks of this machine's CPU, in fp32 and bf16, and what their
# operators and casts cost here.
#   bash record_samples.sh DIR        whole models (minutes, and memory for each rank)
#   bash record_samples.sh --samples  smaller ones, as they come with the package, beside this script
# The interpreter is $PYTHON, or python3; it needs torch and transformers.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
root="${1:?usage: bash record_samples.sh DIR, or --samples}"
models="vgg16 resnet50 bert roberta"

if [ "$root" != "--samples" ]; then
    costs="$root/tmp_data/casting_cost"
    mkdir -p "$costs"
    for model in $models; do
        for precision in fp32 bf16; do
            "$python" -m microbench trace "$model" --precision "$precision" --steps 1 --warm-up 4 --device cpu \
                --out "$root/traces" --input "$root/input_data"
        done
        "$python" -m microbench traced "$root/traces/$model/fp32/rank-0.json.gz" --precision fp32 bf16 --device cpu \
            --out "$costs/$model.json"
    done
    "$python" -m microbench casts --device cpu --largest 22 --out "$costs/casts.json"
    exit 0
fi

recorded="$(mktemp -d)"
trap 'rm -rf "$recorded"' EXIT
"$python" -m microbench compare-precisions --device cpu --out "$recorded"
"$python" - "$recorded" "$here" <<'END'
"""Take the traces, and one table of costs; nothing that names this machine, nor what can be derived."""
import shutil
import sys
from pathlib import Path

from predictor.replay.precision.measured_costs import joined, read_measured_costs

recorded, here = map(Path, sys.argv[1:])
paths = [recorded / "casts.json", *sorted(recorded.glob("*/costs.json"))]
costs = joined(read_measured_costs(path) for path in paths).model_copy(update={"host": None})
(here / "casting_cost").mkdir(exist_ok=True)
(here / "casting_cost" / "cpu.json").write_text(costs.model_dump_json(exclude_none=True) + "\n", encoding="utf-8")
for run in recorded.glob("*/*/record.json"):
    precision = run.parent
    target = here / "traces" / precision.parent.name / precision.name
    target.mkdir(parents=True, exist_ok=True)
    for trace in precision.glob("*.json.gz"):
        if precision.name == "fp32" or not trace.name.startswith("execution"):  # those of bf16 add casts alone
            shutil.copyfile(trace, target / trace.name)
END
