#!/usr/bin/env bash
#SBATCH --job-name=ranks
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=00:20:00
#
# Run what compares ways on several machines, from the course's folder on a file system that all
# nodes share, or at one path on each:
#
#   sbatch --nodes 2 layer3_system/bench/nodes.sh data_parallel        s21
#   sbatch --nodes 2 layer3_system/bench/nodes.sh tensor_parallel      s22
#   sbatch --nodes 2 layer3_system/bench/nodes.sh context_parallel     s25
#
# A rank for each GPU of a node, or RANKS of them; over gloo where there are fewer GPUs than ranks.
# The small model of s22 can be shared by two ranks: one on each of two nodes, if RANKS is not set.
# Tried with two agents of torchrun on one machine, over gloo; not on two machines, not with Slurm.
set -euo pipefail

case ${1-} in
    data_parallel | tensor_parallel | context_parallel) ;;
    *) echo "expected data_parallel, tensor_parallel or context_parallel, got '${1-}'" >&2; exit 2 ;;
esac
if [ "$1" = tensor_parallel ]; then RANKS=${RANKS:-1}; fi
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# A port of the job's own, so that two jobs may share a node.
srun .venv/bin/python -m torch.distributed.run --nnodes "$SLURM_JOB_NUM_NODES" \
    --nproc-per-node "${RANKS:-${SLURM_GPUS_ON_NODE:-1}}" \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-endpoint "$head:$((20000 + SLURM_JOB_ID % 10000))" -m "layer3_system.bench.$1"
