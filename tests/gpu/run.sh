#!/usr/bin/env bash
# Runs the checks of `./dev gpu` on a machine with a GPU. An early failure makes later results meaningless, so the order matters.
# Needs only bash and coreutils, no network and no root. Takes at most eight minutes. The first steps are a smoke test of at most
# 90 seconds. Writes results.json and results.txt beside itself after each step: each step is ok, failed or skipped, with the reason
# and its figures. Exit code: 0; 1 a step failed; 77 all steps were skipped; 2 DDP_GPU_ONLY names an unknown step; 128 and the
# signal's number after a signal. The files then have the results up to that moment.
#
# DDP_GPU_ONLY='lost-KILL nccl': only these steps; smoke: those of the smoke test. DDP_GPU_SECONDS=N and DDP_GPU_SMOKE_SECONDS=N:
# limits other than 480 and 90. DDPLAUNCH_NCCL_LIBRARY=PATH and DDP_NCCL_TESTS=PATH: a libnccl.so.2 and an all_reduce_perf.
# DDPLAUNCH_CUBLASLT_LIBRARY=PATH: a libcublasLt.so.13; else train searches for it.
# DDP_GPU_IMAGES=N: images of a compared training, other than 4000. DDP_GPU_PATIENCE=N: each step may take N times as long as on a GPU.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$here/results.json
table=$here/results.txt
budget=${DDP_GPU_SECONDS:-480}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Prints the first of the paths that exists on this machine.
first_of() {
  local path
  for path in "$@"; do [[ ! -e $path ]] || { echo "$path"; return; }; done
}

# starts PROGRAM: returns whether the machine's loader and libraries can start it. Its exit code does not count.
starts() {
  local code=0
  timeout 10 "$1" --help >"$work/out" 2>&1 </dev/null || code=$?
  ((code != 126 && code != 127)) && ! grep -q 'GLIBC\|cannot open shared object' "$work/out"
}

# DDP_GPU_BIN has each packed program under its name: a link, or a script that starts it with the packed loader and libraries where
# the machine's are too old or missing. Each program is tried by itself: the checks need the C library only, ddplaunch needs more.
# The libraries of LD_LIBRARY_PATH stay behind the packed ones, because the driver's may be there.
# The folder is beside this script, since programs may not be run from the folder for temporary files.
DDP_GPU_BIN=$(mktemp -d "$here/bin.XXXXXX") || exit 1
export DDP_GPU_BIN
trap 'rm -rf "$work" "$DDP_GPU_BIN"' EXIT
packed=''
for program in "$here"/bin/*; do
  name=${program##*/}
  if [[ $name == all_reduce_perf ]] || starts "$program"; then
    ln -s "$program" "$DDP_GPU_BIN/$name"
  else
    packed+="${packed:+ }$name"
    # shellcheck disable=SC2016 # the script reads the variable
    printf '#!/bin/bash\nexec %q --library-path %q"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" %q "$@"\n' \
      "$here/lib/ld-linux-x86-64.so.2" "$here/lib" "$program" >"$DDP_GPU_BIN/$name" && chmod +x "$DDP_GPU_BIN/$name" || exit 1
  fi
done
[[ -z $packed ]] || echo "with the packed libraries: $packed"

# Stores the command line of a packed program in `program`.
of() { program=("$DDP_GPU_BIN/$1" "${@:2}"); }

text() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t\r' '   ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g' | cut -c1-2000)"; }

commit=$(cat "$here/commit" 2>/dev/null || echo unknown)
# Returns whether to run this step. While the steps are listed, none runs, and `names` collects all of them.
listing='' names='' group=''
wanted() {
  [[ -z $listing ]] || { names+=" $1"; return 1; }
  [[ -z ${DDP_GPU_ONLY:-} || " $DDP_GPU_ONLY " == *" $1 "* || -n $group && " $DDP_GPU_ONLY " == *" $group "* ]]
}
steps='' ok=0 failed=0 skipped=0
# note NAME STATE REASON [FIGURES AS JSON]: records the result of a wanted step.
note() {
  steps+="${steps:+,}"$'\n'"{\"step\":$(text "$1"),\"state\":\"$2\",\"reason\":$(text "$3"),\"seconds\":$((SECONDS - began)),\"figures\":${4:-null}}"
  case $2 in ok) ok=$((ok + 1)) ;; failed) failed=$((failed + 1)) ;; skipped) skipped=$((skipped + 1)) ;; esac
  printf '%-22s %-8s %s\n' "$1" "$2" "$3"
  # The text has one line for each step, and one for each row of its figures.
  local figures=${4:-}
  figures=${figures//'},{'/$'},\n      {'}
  if ! printf '{"version":2,"commit":%s,"seconds":%d,"ok":%d,"failed":%d,"skipped":%d,"steps":[%s\n]}\n' \
    "$(text "$commit")" "$SECONDS" "$ok" "$failed" "$skipped" "$steps" >"$results.part" || ! mv "$results.part" "$results" ||
    ! printf '%-22s %-8s %4d s  %s\n%s' "$1" "$2" $((SECONDS - began)) "$3" "${figures:+    $figures$'\n'}" >>"$table"; then
    echo "run.sh: $results and $table cannot be written" >&2
    exit 1
  fi
}
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1; }

# step NAME SECONDS COMMAND…: runs a step. Its exit code gives the state; its first line that begins with { holds the figures.
step() {
  local name=$1 limit=$2 code figures
  shift 2
  wanted "$name" || return 0
  began=$SECONDS
  local end=$budget of_what="$budget seconds"
  [[ $group != smoke ]] || ((smoke_end > end)) || { end=$smoke_end of_what="$smoke_seconds seconds of the smoke test"; }
  if ((SECONDS >= end)); then
    note "$name" skipped "the $of_what are over"
    return
  fi
  if ! command -v "$1" >/dev/null; then
    note "$name" skipped "$(basename "$1") is not here"
    return
  fi
  ((limit *= ${DDP_GPU_PATIENCE:-1}))
  ((limit <= end - SECONDS)) || limit=$((end - SECONDS))
  # The command runs in the background, because a trap waits for a foreground command.
  timeout -k 5 "$limit" "$@" >"$work/out" 2>"$work/err" </dev/null &
  current=$name child=$!
  wait "$child"
  code=$?
  current='' child=''
  figures=$(grep -m 1 '^{.*}$' "$work/out")  # an interrupted step may leave half a line
  case $code in
    0) note "$name" ok "" "$figures" ;;
    77) note "$name" skipped "$(last_line "$work/err" | sed 's/^skipped: //')" ;;
    124 | 137) note "$name" "${late:-failed}" "not ready after $limit seconds" ;;
    *) note "$name" failed "exit code $code: $(last_line "$work/err")" "$figures" ;;
  esac
}

# ended SIGNAL NUMBER: ends the running step and the whole run.
current='' child=''
ended() {
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    kill -TERM "$child" 2>/dev/null
    # A wait that a trap has interrupted may return early, so the loop asks for the process itself.
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
    # A timeout that gets the signal in its fork ends without its command. Both are in one process group.
    local tries=100
    while ((tries-- > 0)) && kill -KILL -- "-$child" 2>/dev/null; do sleep 0.05; done
    note "$current" skipped "ended by SIG$1"
  fi
  printf '%d ok, %d failed, %d skipped until SIG%s came after %d s: %s\n' "$ok" "$failed" "$skipped" "$1" "$SECONDS" "$results"
  exit $((128 + $2))
}

# tool NAME: prints its path if the machine has it.
tool() {
  command -v "$1" 2>/dev/null || first_of "/usr/local/cuda/bin/$1" /opt/nvidia/nsight-compute/*/"$1"
}

# --- the machine ------------------------------------------------------------------------------------------------------
machine() {
  timeout 10 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader >"$work/gpus" || return
  printf '{"gpus":%s,"kernel":%s,"nccl":%s}\n' "$(text "$(cat "$work/gpus")")" "$(text "$(uname -sr)")" "$(text "${nccl:-of the system}")"
}
# NCCL's library is the one that is named or that the system's loader finds, else that of a PyTorch.
nccl=${DDPLAUNCH_NCCL_LIBRARY:-}
if [[ -z $nccl ]] && ! ldconfig -p 2>/dev/null | grep -q 'libnccl\.so\.2 '; then
  nccl=$(first_of "$(timeout 10 python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)/lib/libnccl.so.2" \
    {/usr/local,/usr,/opt/*,"$HOME"/.local,"$HOME"/*,/venv,/opt/venv}/lib/python3*/{site,dist}-packages/nvidia/nccl/lib/libnccl.so.2)
fi
[[ -z $nccl ]] || export DDPLAUNCH_NCCL_LIBRARY=$nccl

# known NAME SECONDS ARGUMENTS…: a step of steps.sh.
known() { step "$1" "$2" "$BASH" "$here/steps.sh" "${@:3}"; }

all_steps() {
  # --- the smoke test: what a first run on a new machine would break --------------------------------------------------
  smoke_seconds=${DDP_GPU_SMOKE_SECONDS:-90}
  smoke_end=$((SECONDS + smoke_seconds))
  group=smoke
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

  of gpu_check replay
  step replay 60 "${program[@]}"
  known nccl 60 nccl
  # CUDA loads a kernel at its first launch or, if it is told so, all at the start. Neither may wait for a lost peer.
  known lost-first 40 lost KILL first
  known lost-KILL 40 lost KILL
  CUDA_MODULE_LOADING=EAGER known lost-first-eager 40 lost KILL first
  group=

  # --- the kernels ----------------------------------------------------------------------------------------------------
  of gpu_parity parity
  step parity 120 "${program[@]}"
  of gpu_check train
  step train 60 "${program[@]}"
  known device-train 60 device-train
  known health 60 health
  of gpu_costs costs
  step costs 30 "${program[@]}"
  of gpu_check speed
  step speed 30 "${program[@]}"

  # --- NCCL, and the loss of ranks ------------------------------------------------------------------------------------
  for ranks in 2 4; do known "bench-$ranks" 90 bench "$ranks"; done  # 13 sizes, each timed twice
  known nccl-tests 40 nccl-tests 2
  known lost-STOP 40 lost STOP
  for signal in KILL STOP; do known "rejoin-$signal" 60 rejoin "$signal"; done
  known nodes 60 nodes

  # --- images per second: the sides take turns ------------------------------------------------------------------------
  for turn in 1 2; do
    # Batch size, images (more than 60,000 are made on the host, and no GPU holds them), steps per interval, and epochs or
    # intervals.
    for shape in '100 60000 200 4' '4096 57344 7 15'; do
      read -r batch images interval times <<<"$shape"
      for dtype in float32 bfloat16; do
        known "images-$batch-$dtype-$turn" 30 images "$batch" "$dtype" "$images" "$interval" "$times"
      done
      known "torch-$batch-$turn" 45 torch "$batch" "$images" "$interval" "$times"
    done
    for numbers in float32 tf32 bfloat16; do known "mlp-$numbers-$turn" 30 mlp "$numbers" 4096 57344 7 6; done
    known "torch-mlp-$turn" 45 torch 4096 57344 7 10 mlp
  done

  # --- tools of the toolkit: they are slow, and skipped when their time is over ---------------------------------------
  sanitizer=$(tool compute-sanitizer)
  for check in memcheck racecheck initcheck synccheck; do
    of gpu_parity parity
    late=skipped step "$check" 60 "${sanitizer:-compute-sanitizer}" --tool "$check" --error-exitcode 9 --print-limit 3 "${program[@]}"
  done
  profiler=$(tool ncu)
  for batch in 100 4096; do late=skipped known "ncu-$batch" 60 profile "${profiler:-ncu}" "$batch"; done
}

listing=1
all_steps
listing=''
for name in ${DDP_GPU_ONLY:-}; do
  [[ "$names smoke " == *" $name "* ]] || { echo "run.sh: DDP_GPU_ONLY names no step \"$name\"; the steps are$names, and smoke has the first ones" >&2; exit 2; }
done
rm -f "$results" "$table"
touch "$results" "$table" || { echo "run.sh: $results and $table cannot be written" >&2; exit 1; }
trap 'ended INT 2' INT
trap 'ended TERM 15' TERM
trap 'ended HUP 1' HUP
all_steps

printf '%d ok, %d failed, %d skipped in %d s: %s\n' "$ok" "$failed" "$skipped" "$SECONDS" "$results"
((failed == 0)) || exit 1
((ok > 0)) || exit 77
