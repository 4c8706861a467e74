#!/usr/bin/env bash
# Generate the node data and graphs of one trace.   bash run_single_prepare.sh 16 resnet50 fp16_comm_t4 [options]
set -euo pipefail
usage="usage: bash run_single_prepare.sh BIT MODEL FILE_NAME [options of analyse.py]"
bit="${1:?$usage}" model="${2:?$usage}" file_name="${3:?$usage}"
shift 3
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/analyse.py" \
    --bit "$bit" --model_name "$model" --generate_mapping --file_name "$file_name" "$@"
