#!/usr/bin/env bash
# Runs one step of run.sh on a machine with a GPU: steps.sh NAME [ARGUMENTS]. Prints the figures as one line of JSON. Exit code: 0;
# 1 failed; 77 skipped; the reason is the last line of standard error. run.sh sets DDP_GPU_BIN, a folder of programs that start here.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${DDP_GPU_BIN:-$here/bin}
train=("$bin/train")
launch=("$bin/ddplaunch" --agent "$bin/ddplaunchd" --label none)

work=$(mktemp -d) || exit 1
pids=()
# A stopped process reacts only to SIGKILL.
end() {
  exec 2>/dev/null  # the shell would report each killed process
  ((${#pids[@]} == 0)) || kill -KILL "${pids[@]}"
  [[ ! -d $work/nodes ]] || "$here/nodes" down "$work/nodes"
  rm -rf "$work"
}
trap end EXIT
trap 'exit 143' TERM

skip() { printf 'skipped: %s\n' "$*" >&2; exit 77; }
fail() { printf '%s\n' "$*" >&2; exit 1; }
text() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t\r' '   ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g' | cut -c1-2000)"; }
last_line() { grep -v '^[[:space:]]*$\|^Run with --help' "$1" | tail -n 1; }
now_ms() { local now=${EPOCHREALTIME/[.,]/}; echo "${now%???}"; }

# refused REASON: handles train's exit code 2, which has two causes. Either this machine lacks a requirement, so the step is
# skipped, or train rejects the options, which is a failure. The plainest use of the resource in `needs` shows which.
needs=gpu
refused() {
  local plain=(health 1ms --memory 1 --device gpu) code=0
  [[ $needs != nccl ]] || plain=(bench allreduce --comm nccl -e 8 -n 1 -w 0)
  "${train[@]}" "${plain[@]}" >"$work/plain" 2>&1 || code=$?
  ((code != 2)) || skip "$1"
  fail "exit code 2: $1"
}
# done_by CODE FILE-OF-ERRORS
done_by() {
  (($1 != 2)) || refused "$(last_line "$2")"
  (($1 == 0)) || fail "exit code $1: $(last_line "$2")"
}
# said_by_rank: prints the last message of a rank of the job.
said_by_rank() { grep -ho 'train: .*' "$work/err" "$work/out" | tail -n 1; }
# waited CONDITION…: polls a condition. Returns false if rank 0 or the launcher, pids[0], has ended before.
waited() {
  until "$@"; do
    [[ -d /proc/${pids[0]} ]] || { "$@"; return; }
    sleep 0.02
  done
}

# --- trainings --------------------------------------------------------------------------------------------------------
data=(--model convnet --data synthetic --bar never)
few=("${data[@]}" --limit "${DDP_GPU_IMAGES:-4000}" --batch-size 50)
# Sets `shared` if there are fewer GPUs than ranks. Ranks then take turns, about 10 ms for an operation, so speed is not shown.
share() {
  local gpus
  gpus=$(timeout 20 nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
  shared=()
  ((gpus >= $1)) || shared=(--share-gpu)
}
# start RANKS ARGUMENTS…: starts ranks of one node, in `pids`, in the background. Output is in $work/out.RANK and err.RANK.
start() {
  local ranks=$1 rank port=$((6100 + RANDOM % 900))
  shift
  pids=()
  for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$ranks GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      "${train[@]}" "$@" >"$work/out.$rank" 2>"$work/err.$rank" &
    pids+=($!)
  done
}
ranks() {
  start "$@"
  local rank code worst=0 loudest=0
  for rank in "${!pids[@]}"; do
    code=0
    wait "${pids[rank]}" || code=$?
    ((worst != 0 || code == 0)) || { worst=$code loudest=$rank; }
  done
  pids=()
  done_by "$worst" "$work/err.$loudest"
}
# Prints the hash that all ranks of a training share.
weights() { sed -n 's/^weights equal on [0-9]* ranks*: //p' "$1"; }
steps_made() { [[ $(grep -c '"kind":"step"' "$work/metrics" 2>/dev/null) -ge $1 ]]; }
# Prints the time stamps of step records, in ms since 1970, or of step N only.
step_times() {
  grep "\"kind\":\"step\".*\"step\":${1:-[0-9]*}," "$work/metrics" | sed 's/.*"time":"\([^"]*\)".*/\1/' | date -f - +%s%3N
}

# In float64 GPU and CPU add in different orders, but after one epoch both have learned the same.
device_train() {
  local device
  for device in gpu cpu; do
    ranks 1 "${few[@]}" --device $device --dtype float64
    grep '^test accuracy' "$work/out.0" >"$work/$device"
  done
  printf '{"gpu":%s,"cpu":%s}\n' "$(text "$(cat "$work/gpu")")" "$(text "$(cat "$work/cpu")")"
  cmp -s "$work/gpu" "$work/cpu" || fail "other accuracy on the GPU"
}

# The sum of two is the same in any order, and the GPU's update rounds like the CPU's. So the weights must not depend on the
# transport: over NCCL the all-reduce is in the captured graph, over TCP the host adds and updates.
equal_weights() {
  local nccl tcp
  share 2
  ranks 2 "${few[@]}" --device gpu --comm nccl "${shared[@]}"
  nccl=$(weights "$work/out.0")
  ranks 2 "${few[@]}" --device gpu --comm tcp
  tcp=$(weights "$work/out.0")
  printf '{"nccl":%s,"tcp":%s}\n' "$(text "$nccl")" "$(text "$tcp")"
  [[ -n $nccl && $nccl == "$tcp" ]] || fail "other weights over NCCL than over TCP"
}

# images BATCH DTYPE IMAGES INTERVAL EPOCHS [OPTIONS]: measures a training without the tests between epochs. The first epoch warms up.
images() {
  "${train[@]}" "${data[@]}" --device gpu --batch-size "$1" --dtype "$2" --limit "$3" --log-interval "$4" --epochs "$5" \
    "${@:6}" --metrics-file "$work/metrics" >"$work/out" 2>"$work/err"
  done_by $? "$work/err"
  grep '"kind":"interval"' "$work/metrics" | grep -v '"epoch":1,' | sed 's/.*"images_per_second":\([0-9.]*\).*/\1/' | sort -n >"$work/rates"
  local count products
  count=$(wc -l <"$work/rates")
  ((count > 0)) || fail "no interval was measured"
  products=$(sed -n 's/^matrix products by //p' "$work/out")
  printf '{"batch":%d,"dtype":"%s","images_per_second":%s,"least":%s,"most":%s,"intervals":%d%s}\n' "$1" "$2" \
    "$(sed -n "$(((count + 1) / 2))p" "$work/rates")" "$(head -n 1 "$work/rates")" "$(tail -n 1 "$work/rates")" "$count" \
    "${products:+,\"products\":$(text "$products")}"
}

# mlp float32|tf32|bfloat16 BATCH IMAGES INTERVAL EPOCHS: the same for an MLP of 2048 x 7, with products of these numbers.
mlp() {
  local dtype=$1 precision=()
  [[ $1 != tf32 ]] || { dtype=float32 precision=(--matmul-precision high); }
  images "$2" "$dtype" "${@:3}" --model mlp --mlp-width 2048 --mlp-depth 7 "${precision[@]}"
}

# --- the device and NCCL ----------------------------------------------------------------------------------------------
health() {
  "${train[@]}" health 10s --device gpu --json "$work/health" >"$work/out" 2>"$work/err"
  local code=$?
  cat "$work/health" 2>/dev/null
  done_by $code "$work/err"
}

sizes=(-b 4 -e 64M -f 4 -n 10 -w 2 -c 1)
# bench RANKS: all-reduce of float32, 4 bytes to 64 MiB. Each element of the results is compared.
bench() {
  share "$1"
  start "$1" bench allreduce --comm nccl "${shared[@]}" "${sizes[@]}" --json "$work/bench"
  local rank code=0 one
  for rank in "${!pids[@]}"; do
    one=0
    wait "${pids[rank]}" || one=$?
    ((code != 0)) || code=$one
  done
  pids=()
  cat "$work/bench" 2>/dev/null
  done_by "$code" "$work/err.0"
}

# nccl_tests RANKS: all_reduce_perf over the same library and sizes, in place. On one GPU ranks meet as with --share-gpu.
nccl_tests() {
  local program=${DDP_NCCL_TESTS:-$here/bin/all_reduce_perf} code=0
  [[ -x $program ]] || program=$(command -v all_reduce_perf) || skip "nccl-tests' all_reduce_perf is not here"
  [[ -z ${DDPLAUNCH_NCCL_LIBRARY:-} ]] || export LD_LIBRARY_PATH="${DDPLAUNCH_NCCL_LIBRARY%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  share "$1"
  if ((${#shared[@]} == 0)); then
    "$program" -g "$1" "${sizes[@]}" >"$work/out" 2>"$work/err" || code=$?
  else
    command -v mpirun >/dev/null || skip "two ranks of nccl-tests on one GPU need its build with MPI, and mpirun is not here"
    export NCCL_TESTS_DEVICE=0 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_NET=Socket \
      NCCL_IB_DISABLE=1 NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=1 NCCL_SOCKET_IFNAME=lo
    local root=()
    ((EUID != 0)) || ! mpirun --version | grep -q 'Open MPI' || root=(--allow-run-as-root --oversubscribe)
    # A program without MPI would run twice separately; its list of ranks shows that.
    # shellcheck disable=SC2016 # the rank's shell shall read them
    mpirun "${root[@]}" -np "$1" bash -c 'NCCL_HOSTID=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:?}} exec "$@"' - "$program" -g 1 "${sizes[@]}" >"$work/out" 2>"$work/err" || code=$?
    ((code != 0)) || grep -q '^# *Rank *1 ' "$work/out" || skip "nccl-tests was built without MPI, which two ranks on one GPU need"
  fi
  ((code == 0)) || fail "exit code $code: $(last_line "$work/err") $(last_line "$work/out")"
  local rows
  rows=$(awk '$1 ~ /^[0-9]+$/ && NF >= 13 {
    printf "%s{\"bytes\":%s,\"mean_us\":%s,\"busbw_gbps\":%s,\"wrong\":%s}", n++ ? "," : "", $1, $10, $12, $13 == "N/A" ? "null" : $13 }' "$work/out")
  [[ -n $rows ]] || fail "no row could be read: $(last_line "$work/out")"
  printf '{"ranks":%d,"rows":[%s]}\n' "$1" "$rows"
}

# --- the loss of ranks ------------------------------------------------------------------------------------------------
long=("${data[@]}" --limit 3000 --batch-size 10 --epochs 100000 --log-interval 1 --device gpu --comm nccl --comm-timeout 5s)

first_step_begun() { [[ -s $work/samples/rank-1 ]]; }
# lost SIGNAL [first]: measures what the other of two ranks reports, and when. NCCL reports no stopped rank, so our deadline must.
# The signal comes after 20 steps or, with `first`, when the rank begins its first step.
lost() {
  share 2
  mkdir "$work/samples" || fail "no folder could be made"
  start 2 "${long[@]}" "${shared[@]}" --metrics-file "$work/metrics" --sample-log "$work/samples"
  local until=(steps_made 20)
  [[ -z ${2:-} ]] || until=(first_step_begun)
  if ! waited "${until[@]}"; then
    local code=0
    wait "${pids[0]}" || code=$?
    done_by "$code" "$work/err.0"
    fail "rank 0 ended before it was time"
  fi
  local hit after said code=0
  hit=$(now_ms)
  kill "-$1" "${pids[1]}"
  wait "${pids[0]}" || code=$?
  after=$(($(now_ms) - hit))
  said=$(last_line "$work/err.0")
  printf '{"signal":"%s","ended_after_ms":%d,"exit_code":%d,"said":%s}\n' "$1" "$after" "$code" "$(text "$said")"
  [[ $code == 1 && $said == *'over NCCL: '*' during '* ]] || fail "the other rank ended with $code and said: $said"
  # The time has the deadline, 5 s for NCCL's abort, and some for the end of the process.
  ((after < 13000)) || fail "the other rank ended after $after ms"
  if [[ $1 == STOP ]]; then
    [[ $said == *'did not join the operation within 5 s'* ]] || fail "not by the deadline: $said"
    ((after >= 4500)) || fail "the deadline of 5 s was over after $after ms"
  fi
}

attempt_goes_on() { grep -q 'attempt 1: .* continue from step' "$work/err"; }
# This is the first step of the new attempt. A killed rank 0 may have reported a step that no other rank had made.
first_new_step_made() { [[ $(step_times "$1" | tail -n 1) -gt $2 ]]; }
# rejoin SIGNAL: measures from the signal to the end of the first step that a new rank and the two survivors make together.
rejoin() {
  share 3
  local hit said first at before library=()
  [[ -z ${DDPLAUNCH_NCCL_LIBRARY:-} ]] || library=(--env "DDPLAUNCH_NCCL_LIBRARY=$DDPLAUNCH_NCCL_LIBRARY")
  # A shell writes its pid before it becomes the rank.
  # shellcheck disable=SC2016 # the rank's shell shall read them
  "${launch[@]}" --job-dir "$work/job" --nproc-per-node 3 --max-restarts 3 --restart-backoff 0s "${library[@]}" --no-python \
    bash -c 'echo $$ >"$0.$RANK"; exec "$@"' "$work/pid" "${train[@]}" "${long[@]}" "${shared[@]}" --on-peer-loss rejoin \
    --metrics-file "$work/metrics" >"$work/out" 2>"$work/err" &
  pids=($!)
  if ! waited steps_made 20; then
    ! grep -q 'exit 2:' "$work/err" || refused "$(said_by_rank)"
    fail "the job did not begin: $(last_line "$work/err")"
  fi
  before=$(step_times | awk 'NR > 1 { n++; sum += $1 - last } { last = $1 } END { printf "%.1f", sum / n }')
  hit=$(now_ms)
  kill "-$1" "$(cat "$work/pid.1")"
  waited attempt_goes_on || fail "the job did not go on: $(last_line "$work/err")"
  said=$(grep 'attempt 1: ' "$work/err" | tail -n 1)
  first=${said##*continue from step }
  first=$((${first%% *} + 1))
  waited first_new_step_made "$first" "$hit" || fail "no step was made after: $said"
  at=$(step_times "$first" | tail -n 1)
  kill -TERM "${pids[0]}"
  wait "${pids[0]}"
  pids=()
  printf '{"signal":"%s","first_new_step_ms":%d,"step_ms":%s,"launcher":%s,"nccl":%s}\n' "$1" $((at - hit)) "$before" "$(text "$said")" \
    "$(text "$(grep -h '^NCCL' "$work/out" | tail -n 1)")"
}

# profile NCU BATCH: measures the kernels of a few replayed steps. The clocks are a setting of the GPU, so they stay as they are.
profile() {
  command -v "$1" >/dev/null || skip "$(basename "$1") is not here"
  local code=0 kernels
  # The first step is not a graph.
  "$1" --clock-control none --metrics gpu__time_duration.sum --launch-skip 20 --launch-count 60 --csv --log-file "$work/ncu" \
    "${train[@]}" "${data[@]}" --device gpu --batch-size "$2" --limit $((8 * $2)) --max-steps 6 >"$work/out" 2>"$work/err" || code=$?
  ! grep -q ERR_NVGPUCTRPERM "$work/ncu" "$work/err" "$work/out" || skip "the driver lets this user read no counters (ERR_NVGPUCTRPERM)"
  done_by "$code" "$work/err"
  kernels=$(awk -F '","' '
    $1 == "\"ID" { for (i = 1; i <= NF; i++) { name = $i; gsub(/"/, "", name); column[name] = i } next }
    column["Kernel Name"] && NF >= column["Metric Value"] {
      value = $column["Metric Value"]; gsub(/[",]/, "", value)
      unit = substr($column["Metric Unit"], 1, 1)
      kernel = $column["Kernel Name"]; gsub(/["\\]|void |ddp::train::kernels::device::/, "", kernel)
      if (!(kernel in launches)) order[++count] = kernel
      launches[kernel]++
      us[kernel] += value * (unit == "n" ? 0.001 : unit == "m" ? 1000 : 1)
    }
    END { for (i = 1; i <= count; i++) printf "%s{\"name\":\"%s\",\"launches\":%d,\"us\":%.2f}", (i > 1 ? "," : ""),
      substr(order[i], 1, 100), launches[order[i]], us[order[i]] / launches[order[i]] }' "$work/ncu")
  [[ -n $kernels ]] || fail "ncu listed no kernel: $(last_line "$work/ncu")"
  printf '{"batch":%d,"kernels":[%s]}\n' "$2" "$kernels"
}

# Emulates two nodes: over SSH if this machine can run an sshd for the test, else as two launchers that meet.
nodes() {
  share 2
  local way code=0 node library=() job=("${train[@]}" "${data[@]}" --limit 400 --batch-size 10 --device gpu --comm nccl --share-gpu)
  [[ -z ${DDPLAUNCH_NCCL_LIBRARY:-} ]] || library=(--env "DDPLAUNCH_NCCL_LIBRARY=$DDPLAUNCH_NCCL_LIBRARY")
  if "$here/nodes" up 2 "$work/nodes" >/dev/null 2>"$work/err"; then
    way=SSH
    "${launch[@]}" --hostfile "$work/nodes/hostfile" --ssh-config "$work/nodes/ssh_config" --job-dir "$work/job" --nproc-per-node 1 \
      "${library[@]}" --no-python "${job[@]}" >"$work/out" 2>"$work/err" || code=$?
  else
    way='two launchers'
    local token port=$((6100 + RANDOM % 900))
    token=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
    for node in 0 1; do
      DDPLAUNCH_TOKEN=$token "${launch[@]}" --nnodes 2 --node-rank $node --master-addr 127.0.0.1 --master-port $port \
        --job-dir "$work/job.$node" --nproc-per-node 1 "${library[@]}" --no-python "${job[@]}" >"$work/out.$node" 2>"$work/err.$node" &
      pids+=($!)
    done
    wait "${pids[0]}" || code=$?
    wait "${pids[1]}" || ((code != 0)) || code=$?
    pids=()
    mv "$work/out.0" "$work/out"
    mv "$work/err.0" "$work/err"
  fi
  ((code != 2)) || refused "$(said_by_rank)"
  done_by "$code" "$work/err"
  printf '{"way":"%s","weights":%s}\n' "$way" "$(text "$(weights "$work/out")")"
  grep -q '^weights equal on 2 ranks: ' "$work/out" || fail "the two ranks did not say that their weights are equal"
}

# --- PyTorch ----------------------------------------------------------------------------------------------------------
# Trains the same net on the same GPU with any python3 that has torch.
peer() {
  local python real seen=''
  for python in python3 /usr/bin/python3 /opt/conda/bin/python3; do
    real=$(realpath "$(command -v "$python")" 2>/dev/null) || continue
    [[ $seen != *" $real "* ]] || continue  # importing torch takes seconds
    seen+=" $real "
    "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null || continue
    "$python" "$here/torch_gpu_peer.py" "$@" 2>"$work/err"
    local code=$?
    ((code == 0)) || fail "exit code $code: $(last_line "$work/err")"
    return
  done
  skip "no python3 here has a torch that sees a GPU"
}

name=${1:?usage: steps.sh NAME [ARGUMENTS]}
shift
case $name in
  device-train) device_train ;;
  nccl) needs=nccl && equal_weights ;;
  images) images "$@" ;;
  mlp) mlp "$@" ;;
  health) health ;;
  bench) needs=nccl && bench "$@" ;;
  nccl-tests) nccl_tests "$@" ;;
  lost) needs=nccl && lost "$@" ;;
  rejoin) needs=nccl && rejoin "$@" ;;
  nodes) needs=nccl && nodes ;;
  torch) peer "$@" ;;
  profile) profile "$@" ;;
  *) fail "steps.sh: no step \"$name\"" ;;
esac
