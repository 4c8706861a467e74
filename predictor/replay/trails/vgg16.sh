#!/usr/bin/env bash
# Analyse the recorded traces of VGG-16.   bash trails/vgg16.sh [options of analyse.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/analyse_all.sh" vgg16 "$@"
