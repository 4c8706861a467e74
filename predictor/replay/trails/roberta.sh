#!/usr/bin/env bash
# Analyse the recorded traces of RoBERTa.   bash trails/roberta.sh [options of analyse.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/analyse_all.sh" roberta "$@"
