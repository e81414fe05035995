#!/usr/bin/env bash
# One part of a class, begun or gone on with:  shard.sh NUMBER/COUNT SUBMISSIONS OUT [OPTIONS]
#
# From the course's folder. Finished units of an earlier try, whose journal is in OUT, are kept.
set -euo pipefail

shard=$1 submissions=$2 out=$3
again=()
if [ -e "$out/journal-${shard/\//-of-}.jsonl" ]; then
    again=(--resume)
fi
.venv/bin/lab grade "$submissions" --out "$out" --shard "$shard" "${@:4}" "${again[@]}"
