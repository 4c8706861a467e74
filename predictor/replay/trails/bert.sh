#!/usr/bin/env bash
# Analyse the recorded traces of BERT.   bash trails/bert.sh [options of analyse.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/analyse_all.sh" bert "$@"
