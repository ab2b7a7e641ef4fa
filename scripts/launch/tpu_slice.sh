#!/usr/bin/env bash
# A run on all hosts of a Cloud TPU slice (v5litepod-16 has four hosts of four chips each).
#     TPU_SHARE=10.0.0.2:/runs scripts/launch/tpu_slice.sh NAME ZONE --preset default
# TPU_SHARE is an NFS export that the hosts can mount (a Filestore, for example): all of them
# must see the run directory. The first host writes it; each computes on its own chips.
# Repeated, it goes on where it was; a host that fails ends the others after a minute or two.
# ssh-add ~/.ssh/google_compute_engine first: gcloud asks for it to reach several hosts.
# Delete the slice yourself:  gcloud compute tpus tpu-vm delete NAME --zone ZONE
# Not run: no TPU was at hand.
set -euo pipefail
usage='usage: TPU_SHARE=HOST:/PATH tpu_slice.sh NAME ZONE [options of dreamgym quickstart]'
name="${1:?$usage}"
zone="${2:?$usage}"
share="${TPU_SHARE:?$usage}"
shift 2
type="${TPU_TYPE:-v5litepod-16}"
image="${TPU_IMAGE:-v2-alpha-tpuv5-lite}"

at() { gcloud compute tpus tpu-vm "$1" "$name" --zone "$zone" "${@:2}"; }

at describe >/dev/null 2>&1 ||
    at create --accelerator-type "$type" --version "$image"
git archive --format=tar.gz -o /tmp/dreamgym.tar.gz HEAD
gcloud compute tpus tpu-vm scp /tmp/dreamgym.tar.gz "$name":dreamgym.tar.gz --zone "$zone" --worker=all
printf -v options ' %q' "$@"
# First the hosts are made ready, then all begin the same command: each waits for the others.
at ssh --worker=all --command "
    set -e
    sudo apt-get install -qq -y nfs-common
    sudo mkdir -p /mnt/runs
    mountpoint -q /mnt/runs || sudo mount -t nfs $share /mnt/runs
    mkdir -p dreamgym && tar xzf dreamgym.tar.gz -C dreamgym
    python3 -m venv venv && . venv/bin/activate
    pip install -q ./dreamgym 'jax[tpu]'"
at ssh --worker=all --command "
    . venv/bin/activate
    dreamgym quickstart --run-dir /mnt/runs/$name --distributed auto --dtype bfloat16$options"
