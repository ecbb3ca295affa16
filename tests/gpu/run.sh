#!/usr/bin/env bash
# The first things to do on a machine with a GPU, in the order in which their results mean something; made by `./dev gpu`, needs
# nothing but bash and coreutils, no network and no root. Takes at most eight minutes. Writes results.json beside itself: each step
# ok, failed or skipped, with the reason and its figures. Exit code: 0; 1 something failed; 77 everything was skipped.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$here/results.json
budget=${DDP_GPU_SECONDS:-480}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Our own libraries only where the machine's are too old: the driver's library belongs to the machine's.
loader=()
if ! "$here/bin/gpu_check" >"$work/out" 2>&1 && grep -q 'GLIBC\|not found' "$work/out"; then
  loader=("$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib")
fi
# The command line of one of our programs, in `program`.
of() { program=(${loader[@]+"${loader[@]}"} "$here/bin/$1" "${@:2}"); }

text() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t\r' '   ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g' | cut -c1-2000)"; }

steps='' ok=0 failed=0 skipped=0
# note NAME STATE REASON [FIGURES AS JSON]
note() {
  steps+="${steps:+,}"$'\n'"{\"step\":$(text "$1"),\"state\":\"$2\",\"reason\":$(text "$3"),\"seconds\":$((SECONDS - began)),\"figures\":${4:-null}}"
  case $2 in ok) ok=$((ok + 1)) ;; failed) failed=$((failed + 1)) ;; skipped) skipped=$((skipped + 1)) ;; esac
  printf '%-12s %-8s %s\n' "$1" "$2" "$3"
  printf '{"version":1,"seconds":%d,"ok":%d,"failed":%d,"skipped":%d,"steps":[%s\n]}\n' \
    "$SECONDS" "$ok" "$failed" "$skipped" "$steps" >"$results"
}
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1; }

# step NAME SECONDS COMMAND…: its exit code says how it went; a first line that begins with { holds its figures.
step() {
  local name=$1 limit=$2 code figures
  shift 2
  began=$SECONDS
  if ((SECONDS >= budget)); then
    note "$name" skipped "the $budget seconds are over"
    return
  fi
  if ! command -v "$1" >/dev/null; then
    note "$name" skipped "$(basename "$1") is not here"
    return
  fi
  ((limit <= budget - SECONDS)) || limit=$((budget - SECONDS))
  timeout -k 5 "$limit" "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
  figures=$(grep -m 1 '^{' "$work/out")
  case $code in
    0) note "$name" ok "" "$figures" ;;
    77) note "$name" skipped "$(last_line "$work/err" | sed 's/^skipped: //')" ;;
    124 | 137) note "$name" "${late:-failed}" "not ready after $limit seconds" "$figures" ;;
    *) note "$name" failed "exit code $code: $(last_line "$work/err")" "$figures" ;;
  esac
}

# tool NAME: its path, where the machine has it.
tool() {
  command -v "$1" 2>/dev/null || ls "/usr/local/cuda/bin/$1" /opt/nvidia/nsight-compute/*/"$1" 2>/dev/null | tail -n 1
}

# --- what the machine is ----------------------------------------------------------------------------------------------
machine() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader >"$work/gpus" || return
  printf '{"gpus":%s,"kernel":%s}\n' "$(text "$(cat "$work/gpus")")" "$(text "$(uname -sr)")"
}
began=$SECONDS
if ! command -v nvidia-smi >/dev/null; then
  note machine skipped "nvidia-smi is not here"
elif machine >"$work/machine" 2>"$work/err"; then
  note machine ok "" "$(cat "$work/machine")"
else
  note machine skipped "nvidia-smi: $(last_line "$work/err")"
fi

# --- the kernels ------------------------------------------------------------------------------------------------------
of gpu_parity parity
step parity 120 "${program[@]}"
sanitizer=$(tool compute-sanitizer)
for check in memcheck racecheck initcheck synccheck; do
  if [[ -z $sanitizer ]]; then
    began=$SECONDS
    note "$check" skipped "compute-sanitizer is not here"
  else
    late=skipped step "$check" 60 "$sanitizer" --tool "$check" --error-exitcode 9 --print-limit 3 "${program[@]}"
  fi
done
for check in replay train speed; do
  of gpu_check "$check"
  step "$check" 60 "${program[@]}"
done
profiler=$(tool ncu)
if [[ -z $profiler ]]; then
  began=$SECONDS
  note ncu skipped "ncu is not here"
else
  of gpu_check replay
  step ncu 60 "$profiler" --metrics gpu__time_duration.sum --launch-count 60 --csv --log-file "$here/ncu.csv" "${program[@]}"
fi

# --- the trainer ------------------------------------------------------------------------------------------------------
# train ARGUMENTS…: one rank; a command that it refuses (2) is skipped with its reason.
train() {
  of train --data synthetic --limit 4000 --batch-size 50 --bar never "$@"
  "${program[@]}"
  local code=$?
  return $((code == 2 ? 77 : code))
}
# weights FILE: the hash that all ranks share.
weights() { sed -n 's/^weights equal on [0-9]* ranks*: //p' "$1"; }

# In float64 GPU and CPU sum in other orders; one epoch later both have learnt the same.
device_train() {
  train --device gpu --dtype float64 >"$work/gpu" || return
  train --device cpu --dtype float64 >"$work/cpu" || return
  printf '{"gpu":%s,"cpu":%s}\n' "$(text "$(last_line "$work/gpu")")" "$(text "$(last_line "$work/cpu")")"
  [[ $(last_line "$work/gpu") == "$(last_line "$work/cpu")" ]] || { echo "other accuracy on the GPU" >&2 && return 1; }
}
# two_ranks FILE ARGUMENTS…: the sum of two is the same in any order, so the weights' hash must not depend on the way.
two_ranks() {
  local out=$1 port=$((20000 + RANDOM % 20000)) rank code=0 pids=()
  shift
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      train --comm-timeout 30s "$@" >"$out.$rank" 2>"$out.err.$rank" &
    pids+=($!)
  done
  for rank in 0 1; do wait "${pids[rank]}" || code=$?; done
  cat "$out".err.* >&2
  return "$code"
}
nccl_train() {
  two_ranks "$work/nccl" --comm nccl --share-gpu || return
  two_ranks "$work/tcp" --comm tcp || return
  printf '{"nccl":%s,"tcp":%s}\n' "$(text "$(weights "$work/nccl.0")")" "$(text "$(weights "$work/tcp.0")")"
  [[ -n $(weights "$work/nccl.0") && $(weights "$work/nccl.0") == "$(weights "$work/tcp.0")" ]] ||
    { echo "other weights over NCCL than over TCP" >&2 && return 1; }
}
# A function, with the limits of a step: timeout knows programs only.
function_step() {
  # shellcheck disable=SC2163 # its name
  export -f "$3" train two_ranks weights of text last_line
  export here work loader_words="${loader[*]-}"
  step "$1" "$2" bash -c "loader=(\$loader_words); $3"
}
for both in 'device-train device_train' 'nccl nccl_train'; do
  if [[ -x $here/bin/train ]]; then
    function_step "${both% *}" 60 "${both#* }"
  else
    began=$SECONDS
    note "${both% *}" skipped "train is not here"
  fi
done

printf '%d ok, %d failed, %d skipped in %d s: %s\n' "$ok" "$failed" "$skipped" "$SECONDS" "$results"
((failed == 0)) || exit 1
((ok > 0)) || exit 77
