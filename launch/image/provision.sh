#!/usr/bin/env bash
# Make a machine, or a container, one of neuron-pd's: launch/image/provision.sh neuron|cuda|cpu [--container]
#   neuron   a Neuron DLAMI or Neuron's container: EFA userspace, NIXL and its libraries, neuron-pd beside vLLM
#   cuda     vLLM's container: EFA userspace, NIXL, neuron-pd
#   cpu      a Python container: vLLM for CPU, NIXL, neuron-pd, the tiny model
# As root, out of a checkout. What is already there is left alone, so it may run again. The first step that fails ends it.
set -euo pipefail

case "${1:-}" in neuron | cuda | cpu) accelerator=$1 ;; *)
  echo "usage: provision.sh neuron|cuda|cpu [--container]" >&2
  exit 2
  ;;
esac
container=false
if [[ "${2:-}" == --container ]]; then container=true; fi
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
# shellcheck source=launch/image/versions.env
. "$here/versions.env"

home=/opt/neuron-pd
settings=/etc/neuron-pd
export DEBIAN_FRONTEND=noninteractive PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

main() {
  step system_packages
  if [[ $accelerator != cpu ]]; then step efa; fi
  step find_python
  step neuron_pd
  if [[ $accelerator != cpu ]]; then step loader_path; fi
  if [[ $accelerator == neuron ]]; then step nixl_libraries; fi
  step program
  if [[ $accelerator == cpu ]]; then step model; fi
  if ! $container; then
    step limits
    step units
  fi
  step prove
}

step() {
  echo "== $1"
  "$1"
}

fail() {
  echo "provision.sh: $1" >&2
  exit 1
}

system_packages() {
  local wanted=(ca-certificates curl libhwloc15 libnuma1) missing=() package
  case $accelerator in
  neuron) wanted+=(gcc libc6-dev) ;; # the stub
  cpu) wanted+=(g++) ;;              # what vLLM compiles when log probabilities are asked for
  esac
  for package in "${wanted[@]}"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then return; fi
  apt-get update -qq
  apt-get install -qq --yes --no-install-recommends "${missing[@]}"
  if $container; then rm -rf /var/lib/apt/lists/*; fi
}

efa() {
  local list=/opt/amazon/efa_installed_packages found='' archive work options=(-y)
  if [[ -f $list ]]; then found=$(awk -F': *' '/EFA installer version/ { print $2; exit }' "$list"); fi
  if [[ -n $found && $(printf '%s\n' "$EFA_VERSION" "$found" | sort -V | head -n 1) == "$EFA_VERSION" ]]; then
    echo "EFA $found is there"
    return
  fi
  # The driver and the limits are the machine's, not a container's.
  if $container; then options+=(-g --skip-kmod --skip-limit-conf --no-verify); fi
  work=$(mktemp -d)
  archive="$work/efa.tar.gz"
  curl --fail --silent --show-error --location --retry 3 --output "$archive" \
    "https://efa-installer.amazonaws.com/aws-efa-installer-$EFA_VERSION.tar.gz"
  echo "$EFA_SHA256  $archive" | sha256sum --check --quiet || fail "the EFA installer is not the one that versions.env pins"
  tar --extract --gzip --file "$archive" --directory "$work"
  (cd "$work/aws-efa-installer" && ./efa_installer.sh "${options[@]}")
  rm -rf "$work"
}

# The Python that has vLLM: a DLAMI's virtual environment, or a container's own.
find_python() {
  python=$(command -v python3) || true
  if [[ $accelerator == neuron ]] && ! $container; then
    python=$(printf '%s\n' /opt/aws_neuronx_venv_pytorch_inference_vllm_*/bin/python | sort -V | tail -n 1)
  fi
  [[ -x $python ]] || fail "there is no Python with vLLM here: start from a Neuron DLAMI, or one of the containers"
  echo "$python"
}

pip() { "$python" -m pip --quiet "$@"; }

neuron_pd() {
  local kept extras=kubernetes,redis,otel
  if [[ $accelerator == cpu ]]; then
    pip install --extra-index-url "$TORCH_INDEX" "${source}[cpu,$extras]"
    pip uninstall --yes torchvision torchaudio torchcodec # builds that do not match torch break vLLM
    return
  fi
  # Nothing that the image's vLLM was built with is changed.
  kept=$(mktemp)
  pip list --format=freeze --exclude neuron-pd >"$kept"
  pip install --constraint "$kept" "${source}[$extras]"
  if ! "$python" -c 'import nixl' 2>/dev/null; then
    pip install --no-deps "nixl==$NIXL_VERSION" "nixl-cu12==$NIXL_VERSION"
  fi
  rm -f "$kept"
}

loader_path() {
  mkdir -p "$home/lib"
  put /etc/ld.so.conf.d/neuron-pd.conf <<<"/opt/aws/neuron/lib
/opt/amazon/efa/lib
/opt/amazon/efa/lib64
$home/lib"
  ldconfig
}

# NIXL's LIBFABRIC plugin links against CUDA. Without a GPU a stub answers "no device", and the runtime comes from a wheel.
nixl_libraries() {
  local plugin missing
  plugin=$("$python" -c 'import nixl, pathlib
package = pathlib.Path(nixl._pkg.__file__).parent
print(package.parent / f".{package.name}.mesonpy.libs" / "plugins" / "libplugin_LIBFABRIC.so")')
  [[ -f $plugin ]] || fail "NIXL has no LIBFABRIC plugin at $plugin"
  missing=$(ldd "$plugin" | awk '/not found/ { print $1 }')
  if grep -qx libcuda.so.1 <<<"$missing"; then
    cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$home/lib/libcuda.so.1" "$source/ci/libcuda_stub.c"
  fi
  if grep -qx libcudart.so.12 <<<"$missing"; then
    pip install --no-deps --target "$home/cuda-runtime" --upgrade "nvidia-cuda-runtime-cu12==$CUDA_RUNTIME_VERSION"
    ln -sf "$home"/cuda-runtime/nvidia/cuda_runtime/lib/libcudart.so.12 "$home/lib/"
  fi
  ldconfig
  missing=$(ldd "$plugin" | awk '/not found/ { print $1 }')
  [[ -z $missing ]] || fail "NIXL's LIBFABRIC plugin lacks $(tr '\n' ' ' <<<"$missing")"
}

# One path for units and people, whichever Python it is; programs of vLLM are found where pip puts them.
program() {
  local beside
  beside=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))') # not always beside the interpreter
  mkdir -p "$home/bin"
  ln -sf "$beside/neuron-pd" "$home/bin/neuron-pd"
  if $container; then return; fi
  put "$settings/machine.env" <<<"PATH=$beside:/opt/aws/neuron/bin:/opt/amazon/efa/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

model() {
  "$home/bin/neuron-pd" model tiny --out "$home/models/tiny"
}

limits() { # for people's own shells; the units have theirs
  put /etc/security/limits.d/90-neuron-pd.conf <<<"* - memlock unlimited"
}

units() {
  local file
  mkdir -p /etc/systemd/system
  for file in "$source"/launch/systemd/*.service "$source"/launch/systemd/*.target; do
    install -m 644 "$file" /etc/systemd/system/
  done
  for file in "$source"/launch/systemd/*.env; do
    install -m 600 "$file" "$settings/$(basename "$file").example"
  done
  # Each waits for its file in /etc/neuron-pd, which says what the machine is.
  systemctl enable neuron-pd.target neuron-pd-engine@0.service neuron-pd-proxy.service
}

prove() {
  "$home/bin/neuron-pd" --version
}

# Standard input becomes the file.
put() {
  mkdir -p "$(dirname "$1")"
  cat >"$1"
}

main
