#!/usr/bin/env bash
# Drive the prompt-length sweep through the proxy: LEG=on|off|both [P_IP=...] [D_IP=...] [PROXY_IP=...]
#   launch/run_multiturn_sweep.sh [neuron-pd bench sweep options]
# SERVED_NAME chooses the model by its served name. MODEL and VLLM_SRC are accepted and not needed.
set -euo pipefail

options=(
  --leg "${LEG:-both}"
  --url "http://${PROXY_IP:-127.0.0.1}:8000"
  --prefill-url "http://${P_IP:-127.0.0.1}:8100"
  --decode-url "http://${D_IP:-127.0.0.1}:8200"
)
if [[ -n "${SERVED_NAME:-}" ]]; then options+=(--model "$SERVED_NAME"); fi
exec neuron-pd bench sweep "${options[@]}" "$@"
