#!/usr/bin/env bash
#SBATCH --job-name=grade
#SBATCH --array=1-8
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=5G
#SBATCH --time=02:00:00
#
# Grade a class on a cluster, from the course's folder on a file system that all nodes share:
#
#   array=$(sbatch --parsable lab/grading/slurm.sh SUBMISSIONS OUT --lessons k01,k02)
#   sbatch --dependency=afterok:$array --wrap ".venv/bin/lab grade SUBMISSIONS --out OUT --merge"
#
# Each task grades one shard with the options after OUT. After a failure submit the whole array
# again: finished units are not repeated. 5G: a process of code under test is stopped at 4 GiB.
set -euo pipefail

if [ "$SLURM_ARRAY_TASK_COUNT" != "$SLURM_ARRAY_TASK_MAX" ]; then
    echo "expected an array from 1 to N without gaps, such as --array=1-8" >&2
    exit 2
fi
# Slurm runs a copy of this file, in the folder that it was submitted from.
exec bash lab/grading/shard.sh "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" "$1" "$2" \
    --jobs "${SLURM_CPUS_PER_TASK:-1}" "${@:3}"
