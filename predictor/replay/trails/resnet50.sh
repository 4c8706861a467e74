#!/usr/bin/env bash
# Analyse the recorded traces of ResNet-50.   bash trails/resnet50.sh [options of analyse.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/analyse_all.sh" resnet50 "$@"
