#!/usr/bin/env bash
# Become one role's vLLM server: ROLE=prefill|decode BIDIR=true|false [MODEL=...] [SERVED_NAME=...] [P_IP=...] [D_IP=...]
#   launch/serve_pd_multiturn.sh [neuron-pd launch options] [-- vLLM flags]
# The instance is detected. BIDIR must be the same on both nodes. The prefill engine keeps no prefix cache here, as if it
# had been evicted; put --prefix-caching behind to keep it.
set -euo pipefail

: "${ROLE:?set ROLE=prefill or ROLE=decode}"
options=()
if [[ "$ROLE" == prefill ]]; then options+=(--no-prefix-caching); fi
exec neuron-pd launch --exec ${options[@]+"${options[@]}"} "$@"
