#!/usr/bin/env bash
# A run on one node of a Slurm cluster: sbatch scripts/launch/slurm.sh --preset default --env miniwob
# On two nodes with eight GPUs each, a task for each GPU and the runs on a shared disk:
#     sbatch --nodes=2 --ntasks=16 --gres=gpu:8 --cpus-per-task=8 scripts/launch/slurm.sh ...
# Without GPUs: sbatch --gres=none. A job that is preempted or out of time goes on where
# it was: every stage is resumable, and Slurm starts the same command again.
# Not run: no Slurm was at hand.
#SBATCH --job-name=dreamgym
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --gres=gpu:1
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -euo pipefail

run_dir="${DREAMGYM_RUN_DIR:-$SLURM_SUBMIT_DIR/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID}"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/dreamgym-jax}"
mesh=()
if [[ "${SLURM_NTASKS:-1}" -gt 1 ]]; then
    mesh=(--distributed auto)
elif [[ "${SLURM_GPUS_ON_NODE:-0}" -gt 1 ]]; then
    mesh=(--mesh "data=$SLURM_GPUS_ON_NODE")  # all GPUs of the node, one process
fi

# The signal two minutes before the end reaches this shell: pass it on, then requeue.
srun dreamgym quickstart --run-dir "$run_dir" "${mesh[@]}" "$@" &
child=$!
trap 'kill -TERM "$child"; wait "$child" || true; scontrol requeue "$SLURM_JOB_ID"' TERM
wait "$child"
