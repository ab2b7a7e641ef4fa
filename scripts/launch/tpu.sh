#!/usr/bin/env bash
# A run on one host of a Cloud TPU (v5e-8 or smaller); tpu_slice.sh is for several hosts.
#     scripts/launch/tpu.sh NAME ZONE --preset default
# Creates the machine, copies this checkout, installs it, and runs; repeated, it goes on.
# Delete the machine yourself:  gcloud compute tpus tpu-vm delete NAME --zone ZONE
# Not run: no TPU was at hand.
set -euo pipefail
name="${1:?usage: tpu.sh NAME ZONE [options of dreamgym quickstart]}"
zone="${2:?usage: tpu.sh NAME ZONE [options of dreamgym quickstart]}"
shift 2
type="${TPU_TYPE:-v5litepod-8}"
image="${TPU_IMAGE:-v2-alpha-tpuv5-lite}"
chips="${type##*-}"

at() { gcloud compute tpus tpu-vm "$1" "$name" --zone "$zone" "${@:2}"; }

at describe >/dev/null 2>&1 ||
    at create --accelerator-type "$type" --version "$image"
git archive --format=tar.gz -o /tmp/dreamgym.tar.gz HEAD
gcloud compute tpus tpu-vm scp /tmp/dreamgym.tar.gz "$name":dreamgym.tar.gz --zone "$zone"
printf -v options ' %q' "$@"
at ssh --command "
    set -e
    mkdir -p dreamgym && tar xzf dreamgym.tar.gz -C dreamgym
    python3 -m venv venv && . venv/bin/activate
    pip install -q ./dreamgym 'jax[tpu]'
    dreamgym quickstart --run-dir runs/tpu --mesh data=$chips --dtype bfloat16$options"
gcloud compute tpus tpu-vm scp --recurse "$name":runs/tpu "runs/$name" --zone "$zone"
