#!/usr/bin/env bash
# The first things to do on a machine with a GPU, in the order in which their results mean something; made by `./dev gpu`, needs
# nothing but bash and coreutils, no network and no root. Takes at most eight minutes. Writes results.json beside itself: each step
# ok, failed or skipped, with the reason and its figures. Exit code: 0; 1 something failed; 77 everything was skipped; 2 DDP_GPU_ONLY
# names what is no step; 128 and the signal when one ends it: what was found by then is in results.json.
#
# DDP_GPU_SECONDS=N: other than 480. DDP_GPU_ONLY='lost-KILL nccl': these steps only. DDPLAUNCH_NCCL_LIBRARY=PATH: this libnccl.so.2.
# DDP_NCCL_TESTS=PATH: this all_reduce_perf. DDP_GPU_IMAGES=N: of the trainings that compare, other than 4000.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$here/results.json
budget=${DDP_GPU_SECONDS:-480}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# The file of this name that the machine has, else nothing.
first_of() {
  local path
  for path in "$@"; do [[ ! -e $path ]] || { echo "$path"; return; }; done
}

# Our own libraries only where the machine's are too old: the driver's library belongs to the machine's.
loader=()
if ! "$here/bin/gpu_check" >"$work/out" 2>&1 && grep -q 'GLIBC\|not found' "$work/out"; then
  loader=("$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib")
fi
# The command line of one of our programs, in `program`.
of() { program=(${loader[@]+"${loader[@]}"} "$here/bin/$1" "${@:2}"); }

export DDP_GPU_LOADER="${loader[*]-}"

text() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t\r' '   ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g' | cut -c1-2000)"; }

commit=$(cat "$here/commit" 2>/dev/null || echo unknown)
# Whether this step is to be made. While they are only named none is: then `names` gets them all.
listing='' names=''
wanted() {
  [[ -z $listing ]] || { names+=" $1"; return 1; }
  [[ -z ${DDP_GPU_ONLY:-} || " $DDP_GPU_ONLY " == *" $1 "* ]]
}
steps='' ok=0 failed=0 skipped=0
# note NAME STATE REASON [FIGURES AS JSON]: of a wanted step.
note() {
  steps+="${steps:+,}"$'\n'"{\"step\":$(text "$1"),\"state\":\"$2\",\"reason\":$(text "$3"),\"seconds\":$((SECONDS - began)),\"figures\":${4:-null}}"
  case $2 in ok) ok=$((ok + 1)) ;; failed) failed=$((failed + 1)) ;; skipped) skipped=$((skipped + 1)) ;; esac
  printf '%-22s %-8s %s\n' "$1" "$2" "$3"
  printf '{"version":2,"commit":%s,"seconds":%d,"ok":%d,"failed":%d,"skipped":%d,"steps":[%s\n]}\n' \
    "$(text "$commit")" "$SECONDS" "$ok" "$failed" "$skipped" "$steps" >"$results.part" && mv "$results.part" "$results" ||
    { echo "run.sh: $results cannot be written" >&2; exit 1; }
}
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1; }

# step NAME SECONDS COMMAND…: its exit code says how it went; a first line that begins with { holds its figures.
step() {
  local name=$1 limit=$2 code figures
  shift 2
  wanted "$name" || return 0
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
  # In the background, for a trap waits for what is in the foreground.
  timeout -k 5 "$limit" "$@" >"$work/out" 2>"$work/err" </dev/null &
  current=$name child=$!
  wait "$child"
  code=$?
  current='' child=''
  figures=$(grep -m 1 '^{.*}$' "$work/out")  # a step that is cut off may leave half a line
  case $code in
    0) note "$name" ok "" "$figures" ;;
    77) note "$name" skipped "$(last_line "$work/err" | sed 's/^skipped: //')" ;;
    124 | 137) note "$name" "${late:-failed}" "not ready after $limit seconds" ;;
    *) note "$name" failed "exit code $code: $(last_line "$work/err")" "$figures" ;;
  esac
}

# ended SIGNAL NUMBER: ends the step under way and the run, not the step alone.
current='' child=''
ended() {
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    kill -TERM "$child" 2>/dev/null
    wait "$child"
    note "$current" skipped "ended by SIG$1"
  fi
  printf '%d ok, %d failed, %d skipped until SIG%s came after %d s: %s\n' "$ok" "$failed" "$skipped" "$1" "$SECONDS" "$results"
  exit $((128 + $2))
}

# tool NAME: its path, where the machine has it.
tool() {
  command -v "$1" 2>/dev/null || first_of "/usr/local/cuda/bin/$1" /opt/nvidia/nsight-compute/*/"$1"
}

# --- what the machine is ----------------------------------------------------------------------------------------------
machine() {
  timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader >"$work/gpus" || return
  printf '{"gpus":%s,"kernel":%s,"nccl":%s}\n' "$(text "$(cat "$work/gpus")")" "$(text "$(uname -sr)")" "$(text "${nccl:-of the system}")"
}
# NCCL's library: the one that is named or that the system's loader finds, else that of a PyTorch.
nccl=${DDPLAUNCH_NCCL_LIBRARY:-}
if [[ -z $nccl ]] && ! ldconfig -p 2>/dev/null | grep -q 'libnccl\.so\.2 '; then
  nccl=$(first_of "$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)/lib/libnccl.so.2" \
    {/usr/local,/usr,/opt/*,"$HOME"/.local,"$HOME"/*,/venv,/opt/venv}/lib/python3*/{site,dist}-packages/nvidia/nccl/lib/libnccl.so.2)
fi
[[ -z $nccl ]] || export DDPLAUNCH_NCCL_LIBRARY=$nccl

# known NAME SECONDS ARGUMENTS…: a step of steps.sh.
known() { step "$1" "$2" "$BASH" "$here/steps.sh" "${@:3}"; }

all_steps() {
  if wanted machine; then
    began=$SECONDS
    if ! command -v nvidia-smi >/dev/null; then
      note machine skipped "nvidia-smi is not here"
    elif machine >"$work/machine" 2>"$work/err"; then
      note machine ok "" "$(cat "$work/machine")"
    else
      note machine skipped "nvidia-smi: $(last_line "$work/err")"
    fi
  fi

  # --- the kernels ------------------------------------------------------------------------------------------------------
  of gpu_parity parity
  step parity 120 "${program[@]}"
  for check in replay train; do
    of gpu_check "$check"
    step "$check" 60 "${program[@]}"
  done
  known device-train 60 device-train
  known health 60 health
  of gpu_costs costs
  step costs 30 "${program[@]}"
  of gpu_check speed
  step speed 30 "${program[@]}"

  # --- NCCL, and ranks that are lost ------------------------------------------------------------------------------------
  known nccl 60 nccl
  for ranks in 2 4; do known "bench-$ranks" 40 bench "$ranks"; done
  known nccl-tests 40 nccl-tests 2
  for signal in KILL STOP; do
    known "lost-$signal" 40 lost "$signal"
    known "rejoin-$signal" 60 rejoin "$signal"
  done
  known nodes 60 nodes

  # --- images per second: the sides take turns ---------------------------------------------------------------------------
  for turn in 1 2; do
    # Batch, images (more than 60,000 are drawn on the host, and no GPU holds them), steps of an interval, and epochs, or intervals.
    for shape in '100 60000 200 4' '4096 57344 7 15'; do
      read -r batch images interval times <<<"$shape"
      for dtype in float32 bfloat16; do
        known "images-$batch-$dtype-$turn" 30 images "$batch" "$dtype" "$images" "$interval" "$times"
      done
      known "torch-$batch-$turn" 45 torch "$batch" "$images" "$interval" "$times"
    done
  done

  # --- tools of the toolkit: slow, and what they have not found within their time they have not found --------------------
  sanitizer=$(tool compute-sanitizer)
  for check in memcheck racecheck initcheck synccheck; do
    of gpu_parity parity
    late=skipped step "$check" 60 "${sanitizer:-compute-sanitizer}" --tool "$check" --error-exitcode 9 --print-limit 3 "${program[@]}"
  done
  profiler=$(tool ncu)
  of gpu_check replay
  late=skipped step ncu 60 "${profiler:-ncu}" --metrics gpu__time_duration.sum --launch-count 60 --csv --log-file "$here/ncu.csv" "${program[@]}"
}

listing=1
all_steps
listing=''
for name in ${DDP_GPU_ONLY:-}; do
  [[ "$names " == *" $name "* ]] || { echo "run.sh: DDP_GPU_ONLY names no step \"$name\"; the steps are$names" >&2; exit 2; }
done
rm -f "$results"
touch "$results" || { echo "run.sh: $results cannot be written" >&2; exit 1; }
trap 'ended INT 2' INT
trap 'ended TERM 15' TERM
trap 'ended HUP 1' HUP
all_steps

printf '%d ok, %d failed, %d skipped in %d s: %s\n' "$ok" "$failed" "$skipped" "$SECONDS" "$results"
((failed == 0)) || exit 1
((ok > 0)) || exit 77
