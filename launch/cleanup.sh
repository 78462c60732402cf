#!/usr/bin/env bash
# Stop what neuron-pd started on this machine: launch/cleanup.sh proxy|server|all
set -euo pipefail

exec neuron-pd cleanup "$@"
