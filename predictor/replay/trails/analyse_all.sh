#!/usr/bin/env bash
# Analyse every recorded trace of a model: fills tmp_data/ and .log/ of the current folder.
#   bash trails/analyse_all.sh MODEL [options of analyse.py, such as --root DIR or --target_trace_idx 1]
# The interpreter is $PYTHON, or python3.
set -euo pipefail

model="${1:?usage: bash trails/analyse_all.sh MODEL [options of analyse.py]}"
shift
procedure="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"

traces="$("$python" "$procedure/analyse.py" --model_name "$model" --list_traces "$@")"
for trace in $traces; do
    case "$trace" in
        int8* | fp8*) bit=8 ;;
        fp16* | bf16*) bit=16 ;;
        *) bit=32 ;;
    esac
    "$python" "$procedure/analyse.py" --device_name cpu --bit "$bit" --model_name "$model" --generate_mapping \
        --file_name "$trace" "$@"
done
