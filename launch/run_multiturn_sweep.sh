#!/usr/bin/env bash
# Drive the prompt-length sweep through the proxy: LEG=on|off|both [SERVED_NAME=...] [P_IP=...] [D_IP=...] [PROXY_IP=...]
#   launch/run_multiturn_sweep.sh [neuron-pd bench sweep options]
# P_IP and D_IP add what the engines themselves count. MODEL and VLLM_SRC are accepted and not needed.
set -euo pipefail

options=(--leg "${LEG:-both}" --url "http://${PROXY_IP:-127.0.0.1}:8000")
if [[ -n "${P_IP:-}" ]]; then options+=(--prefill-url "http://$P_IP:8100"); fi
if [[ -n "${D_IP:-}" ]]; then options+=(--decode-url "http://$D_IP:8200"); fi
if [[ -n "${SERVED_NAME:-}" ]]; then options+=(--model "$SERVED_NAME"); fi
exec neuron-pd bench sweep "${options[@]}" "$@"
