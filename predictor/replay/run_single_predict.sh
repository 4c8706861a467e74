#!/usr/bin/env bash
# Predict one step from a trace.   bash run_single_predict.sh 32 resnet50 fp32_comm_t4 [options]
set -euo pipefail
usage="usage: bash run_single_predict.sh BIT MODEL FILE_NAME [options of analyse.py]"
bit="${1:?$usage}" model="${2:?$usage}" file_name="${3:?$usage}"
shift 3
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/analyse.py" \
    --bit "$bit" --model_name "$model" --file_name "$file_name" "$@"
