#include "apps/ddplaunch/options/foreign_options.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace ddp {

namespace {

constexpr bool kValue = true;
constexpr bool kFlag = false;

constexpr std::array kForeign = {
    // Ours, in a later release: refused, but for a value that is what happens anyway.
    ForeignOption{"--on-peer-loss", kValue, Standing::kLater, "", ""},
    ForeignOption{"--detach", kFlag, Standing::kLater, "",
                  "nohup ddplaunch … & keeps a job alive after logout"},
    ForeignOption{"--dashboard", kFlag, Standing::kLater, "", ""},

    // torchrun's, and torch.distributed.launch's.
    ForeignOption{"--use-env", kFlag, Standing::kNoted, "", "LOCAL_RANK is always in the environment"},
    ForeignOption{"--standalone", kFlag, Standing::kRenamed, "local", "--launcher"},
    ForeignOption{"--rdzv-id", kValue, Standing::kRenamed, "", "--job-id"},
    ForeignOption{"--shutdown-timeout", kValue, Standing::kRenamed, "", "--stop-grace"},
    ForeignOption{"--rdzv-backend", kValue, Standing::kNoted, "", "ddplaunch has one rendezvous of its own"},
    ForeignOption{"--rdzv-conf", kValue, Standing::kNoted, "",
                  "the one limit of the start is --start-timeout"},
    ForeignOption{"--monitor-interval", kValue, Standing::kNoted, "", "the end of a worker is seen at once"},
    ForeignOption{"--start-method", kValue, Standing::kNoted, "",
                  "workers are programs, never forked functions"},
    ForeignOption{"--run-path", kFlag, Standing::kNoted, "",
                  "a .py file always runs in a process of its own"},
    ForeignOption{"--signals-to-handle", kValue, Standing::kNoted, "",
                  "SIGINT, SIGTERM and SIGHUP stop the job"},
    ForeignOption{"--event-log-handler", kValue, Standing::kNoted, "", "there are no event plug-ins"},
    ForeignOption{"--role", kValue, Standing::kLater, "default", ""},
    ForeignOption{"--local-addr", kValue, Standing::kRefused, "",
                  "use --network CIDR|IFACE, or address= in the hostfile"},
    ForeignOption{
        "--virtual-local-rank", kFlag, Standing::kRefused, "",
        "LOCAL_RANK stays the index into CUDA_VISIBLE_DEVICES, which gpus= in the hostfile chooses"},
    ForeignOption{"--numa-binding", kValue, Standing::kRefused, "",
                  "bind in the worker's command: numactl -N 0 python …"},
    ForeignOption{"--logs-specs", kValue, Standing::kRefused, "",
                  "there are no log plug-ins; files are in --job-dir"},
    ForeignOption{"--duplicate-stdout-filters", kValue, Standing::kRefused, "",
                  "pipe the output through grep"},
    ForeignOption{"--duplicate-stderr-filters", kValue, Standing::kRefused, "",
                  "pipe the output through grep"},
    ForeignOption{"--log-line-prefix-template", kValue, Standing::kRefused, "",
                  "use --label '[{host}:{rank}] '"},
    ForeignOption{"--print-completion", kValue, Standing::kRefused, "", "--help lists all options"},

    // DeepSpeed's and mpirun's, where people come from.
    ForeignOption{"--num-nodes", kValue, Standing::kRenamed, "", "--nnodes"},
    ForeignOption{"--num-gpus", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--num-accelerators", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--no-ssh", kFlag, Standing::kRefused, "",
                  "leave it out: with --node-rank and --master-addr each node has a ddplaunch of its own"},
    ForeignOption{"--launcher-args", kValue, Standing::kRefused, "", "use --ssh-config or --ssh-command"},
    ForeignOption{"--ssh-port", kValue, Standing::kRefused, "",
                  "use port= in the hostfile, or Port in --ssh-config"},
    ForeignOption{"-i", kValue, Standing::kRenamed, "", "--include"},
    ForeignOption{"-e", kValue, Standing::kRenamed, "", "--exclude"},
    ForeignOption{"--enable-each-rank-log", kValue, Standing::kRenamed, "", "--log-dir"},
    ForeignOption{"--no-local-rank", kFlag, Standing::kNoted, "",
                  "LOCAL_RANK is in the environment, and never an argument"},
    ForeignOption{"--no-ssh-check", kFlag, Standing::kNoted, "",
                  "there is no check besides the start itself"},
    ForeignOption{"--force-multi", kFlag, Standing::kNoted, "",
                  "hosts are reached over SSH however many they are; localhost with --ssh-localhost"},
    ForeignOption{"--save-pid", kFlag, Standing::kNoted, "", "ddplaunch.log in --job-dir has all pids"},
    ForeignOption{"--log-level", kValue, Standing::kNoted, "", "--verbose and --quiet choose"},
    ForeignOption{"-q", kFlag, Standing::kRefused, "", "use --quiet"},
    ForeignOption{"--venv-script", kValue, Standing::kRefused, "", "use --setup '. FILE'"},
    ForeignOption{"--bind-cores-to-rank", kFlag, Standing::kRefused, "",
                  "bind in the worker's command: numactl -N 0 python …"},
    ForeignOption{"--bind-core-list", kValue, Standing::kRefused, "",
                  "bind in the worker's command: numactl -C 0-7 python …"},
    ForeignOption{"--autotuning", kValue, Standing::kRefused, "",
                  "run DeepSpeed's autotuner with its own launcher"},
    ForeignOption{"--elastic-training", kFlag, Standing::kLater, "", ""},
    ForeignOption{"--min-elastic-nodes", kValue, Standing::kLater, "", ""},
    ForeignOption{"--max-elastic-nodes", kValue, Standing::kLater, "", ""},

    // accelerate launch's.
    ForeignOption{"--config-file", kValue, Standing::kRenamed, "", "--accelerate-config"},
    ForeignOption{"--num-machines", kValue, Standing::kRenamed, "", "--nnodes"},
    ForeignOption{"--main-process-port", kValue, Standing::kRenamed, "", "--master-port"},
    ForeignOption{"--num-processes", kValue, Standing::kRefused, "",
                  "it is a total; use --nproc-per-node, the workers on each node"},
    ForeignOption{"--machine-rank", kValue, Standing::kRenamed, "", "--node-rank"},
    ForeignOption{"--main-process-ip", kValue, Standing::kRenamed, "", "--master-addr"},
    ForeignOption{"--multi-gpu", kFlag, Standing::kNoted, "", "--nproc-per-node says how many"},
    ForeignOption{"--gpu-ids", kValue, Standing::kRefused, "", "use gpus= in the hostfile"},
    ForeignOption{"--mixed-precision", kValue, Standing::kRefused, "",
                  "use --env ACCELERATE_MIXED_PRECISION=bf16, or --accelerate-config"},
    ForeignOption{"--use-deepspeed", kFlag, Standing::kRefused, "",
                  "use --accelerate-config FILE, or --env ACCELERATE_USE_DEEPSPEED=true"},
    ForeignOption{"--use-fsdp", kFlag, Standing::kRefused, "",
                  "use --accelerate-config FILE, or --env ACCELERATE_USE_FSDP=true"},
    ForeignOption{"--dynamo-backend", kValue, Standing::kRefused, "",
                  "use --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR, or --accelerate-config"},
    ForeignOption{"--cpu", kFlag, Standing::kRenamed, "ACCELERATE_USE_CPU=true", "--env"},
    ForeignOption{"--enable-cpu-affinity", kFlag, Standing::kRenamed, "ACCELERATE_CPU_AFFINITY=1", "--env"},
    ForeignOption{"--debug", kFlag, Standing::kRefused, "",
                  "use --verbose; accelerate's own is --env ACCELERATE_DEBUG_MODE=true"},
    ForeignOption{"--same-network", kFlag, Standing::kNoted, "",
                  "nodes join over the connection that starts them"},
    ForeignOption{"--main-training-function", kValue, Standing::kNoted, "", "it is for TPUs"},
    ForeignOption{"--downcast-bf16", kFlag, Standing::kNoted, "", "it is for TPUs"},
    ForeignOption{"--tpu", kFlag, Standing::kRefused, "", "TPUs are launched by accelerate itself"},
    ForeignOption{"--num-cpu-threads-per-process", kValue, Standing::kRefused, "",
                  "use --env OMP_NUM_THREADS=N"},
    ForeignOption{"--gradient-accumulation-steps", kValue, Standing::kRefused, "",
                  "use --env ACCELERATE_GRADIENT_ACCUMULATION_STEPS=N, or --accelerate-config FILE"},
    ForeignOption{"--gradient-clipping", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--zero-stage", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--zero3-", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--offload-", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--deepspeed-config-file", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--deepspeed-moe-layer-cls-names", kValue, Standing::kRefused, "",
                  "use --accelerate-config FILE"},
    ForeignOption{"--deepspeed-hostfile", kValue, Standing::kRenamed, "", "--hostfile"},
    ForeignOption{"--mpirun-hostfile", kValue, Standing::kRenamed, "", "--hostfile"},
    ForeignOption{"--deepspeed-inclusion-filter", kValue, Standing::kRenamed, "", "--include"},
    ForeignOption{"--deepspeed-exclusion-filter", kValue, Standing::kRenamed, "", "--exclude"},
    ForeignOption{"--deepspeed-multinode-launcher", kValue, Standing::kRefused, "",
                  "use --launcher ssh or slurm"},
    ForeignOption{"--use-megatron-lm", kFlag, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--use-parallelism-config", kFlag, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--fsdp-", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--megatron-lm-", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--parallelism-config-", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--fp8-", kValue, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--dynamo-mode", kValue, Standing::kRefused, "",
                  "use --env ACCELERATE_DYNAMO_MODE=default, or --accelerate-config FILE"},
    ForeignOption{"--dynamo-use-fullgraph", kFlag, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--dynamo-use-dynamic", kFlag, Standing::kRefused, "", "use --accelerate-config FILE"},
    ForeignOption{"--dynamo-use-regional-compilation", kFlag, Standing::kRefused, "",
                  "use --accelerate-config FILE"},
    ForeignOption{"--mpirun-ccl", kValue, Standing::kRefused, "", "use --env CCL_WORKER_COUNT=N"},

    // mpirun's and srun's.
    ForeignOption{"-n", kValue, Standing::kRefused, "", "use --nproc-per-node, the workers on each node"},
    ForeignOption{"-np", kValue, Standing::kRefused, "", "use --nproc-per-node, the workers on each node"},
    ForeignOption{"-N", kValue, Standing::kRefused, "", "use --nproc-per-node"},
    ForeignOption{"-H", kValue, Standing::kRefused, "", "use --hostfile FILE or --host LIST"},
    ForeignOption{"-ppn", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--npernode", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--ntasks-per-node", kValue, Standing::kRenamed, "", "--nproc-per-node"},
    ForeignOption{"--ntasks", kValue, Standing::kRefused, "",
                  "use --nproc-per-node, the workers on each node"},
    ForeignOption{"--nodes", kValue, Standing::kRenamed, "", "--nnodes"},
    ForeignOption{"--nodelist", kValue, Standing::kRenamed, "", "--host"},
    ForeignOption{"-w", kValue, Standing::kRefused, "", "use --host LIST"},
    ForeignOption{"--export", kValue, Standing::kRefused, "",
                  "use --env NAME[=VALUE]; most of the environment goes along anyway"},
    ForeignOption{"--wdir", kValue, Standing::kRenamed, "", "--chdir"},
    ForeignOption{"--allow-run-as-root", kFlag, Standing::kNoted, "", "root may run jobs"},
    ForeignOption{"--bind-to", kValue, Standing::kRefused, "",
                  "bind in the worker's command: numactl -N 0 python …"},
    ForeignOption{"--map-by", kValue, Standing::kRefused, "", "ranks follow the order of the hosts"},
    ForeignOption{"--mca", kValue, Standing::kRefused, "", "there is no MPI in ddplaunch"},
    ForeignOption{"-x", kValue, Standing::kRefused, "", "use --env NAME[=VALUE]"},
    ForeignOption{"--gpus", kValue, Standing::kRefused, "",
                  "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    ForeignOption{"--gpus-per-node", kValue, Standing::kRefused, "",
                  "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    ForeignOption{"--gpus-per-task", kValue, Standing::kRefused, "",
                  "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    ForeignOption{"--gres", kValue, Standing::kRefused, "",
                  "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    ForeignOption{"-G", kValue, Standing::kRefused, "",
                  "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    ForeignOption{"--cpus-per-task", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"--partition", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"--account", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"--time", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"--mem", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"--qos", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"--constraint", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"-c", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"-p", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"-A", kValue, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"--exclusive", kFlag, Standing::kRefused, "", "give it to salloc or sbatch"},
    ForeignOption{"--job-name", kValue, Standing::kRefused, "", "use --job-id, another one for each run"},
    ForeignOption{"-J", kValue, Standing::kRefused, "", "use --job-id, another one for each run"},
    ForeignOption{"--mpi", kValue, Standing::kRefused, "", "there is no MPI in ddplaunch"},
    ForeignOption{"--cpu-bind", kValue, Standing::kRefused, "",
                  "bind in the worker's command: numactl -N 0 python …"},
    ForeignOption{"--kill-on-bad-exit", kFlag, Standing::kRefused, "",
                  "leave it out: the first failure ends the job"},
    ForeignOption{"--unbuffered", kFlag, Standing::kNoted, "",
                  "python runs with -u, and lines are passed on at once"},
    ForeignOption{"--output", kValue, Standing::kRefused, "", "use --log-dir DIR"},
    ForeignOption{"--error", kValue, Standing::kRefused, "", "use --log-dir DIR"},
    ForeignOption{"--output-filename", kValue, Standing::kRefused, "", "use --log-dir DIR"},
    ForeignOption{"--machinefile", kValue, Standing::kRenamed, "", "--hostfile"},
    ForeignOption{"-machinefile", kValue, Standing::kRenamed, "", "--hostfile"},
    ForeignOption{"-hostfile", kValue, Standing::kRenamed, "", "--hostfile"},
    ForeignOption{"--hosts", kValue, Standing::kRenamed, "", "--host"},
    ForeignOption{"-hosts", kValue, Standing::kRenamed, "", "--host"},
    ForeignOption{"--wd", kValue, Standing::kRenamed, "", "--chdir"},
    ForeignOption{"-wd", kValue, Standing::kRenamed, "", "--chdir"},
    ForeignOption{"-wdir", kValue, Standing::kRenamed, "", "--chdir"},
    ForeignOption{"--tag-output", kFlag, Standing::kNoted, "",
                  "each line has its host and rank in front (--label)"},
    ForeignOption{"--timestamp-output", kFlag, Standing::kRefused, "", "use --label '{time} [{rank}] '"},
    ForeignOption{"--display-map", kFlag, Standing::kRefused, "", "use --dry-run, or ddplaunch hosts"},
    ForeignOption{"--report-bindings", kFlag, Standing::kRefused, "",
                  "nothing is bound; bind in the worker's command: numactl -N 0 python …"},
    ForeignOption{"--rankfile", kValue, Standing::kRefused, "", "ranks follow the order of the hosts"},
    ForeignOption{"--np", kValue, Standing::kRefused, "", "use --nproc-per-node, the workers on each node"},
    ForeignOption{"--prefix", kValue, Standing::kRefused, "",
                  "use --agent PATH, and --env PATH=… for the workers"},
    ForeignOption{"--timeout", kValue, Standing::kRefused, "", "run it as timeout TIME ddplaunch …"},
};

struct PetOption {
  std::string_view name;    ///< torchrun's long name
  bool is_flag = false;     ///< its variable is 0 or 1
  std::string_view ours{};  ///< another name that means the same on the command line
};

// Of torch/distributed/run.py those with the actions `env` and `check_env`.
constexpr std::array kPetOptions = {
    PetOption{"--nnodes", false, "--num-nodes"},
    PetOption{"--nproc-per-node", false, "--num-gpus"},
    PetOption{"--rdzv-backend"},
    PetOption{"--rdzv-endpoint", false, "--master-addr"},
    PetOption{"--rdzv-id", false, "--job-id"},
    PetOption{"--rdzv-conf"},
    PetOption{"--standalone", true, "--launcher"},
    PetOption{"--max-restarts"},
    PetOption{"--monitor-interval"},
    PetOption{"--start-method"},
    PetOption{"--event-log-handler"},
    PetOption{"--role"},
    PetOption{"--module", true, "-m"},
    PetOption{"--no-python", true},
    PetOption{"--run-path", true},
    PetOption{"--log-dir"},
    PetOption{"--redirects", false, "-r"},
    PetOption{"--tee", false, "-t"},
    PetOption{"--log-line-prefix-template", false, "--label"},
    PetOption{"--local-ranks-filter"},
    PetOption{"--duplicate-stdout-filters"},
    PetOption{"--duplicate-stderr-filters"},
    PetOption{"--node-rank"},
    PetOption{"--master-addr", false, "--rdzv-endpoint"},
    PetOption{"--master-port"},
    PetOption{"--local-addr"},
    PetOption{"--logs-specs"},
    PetOption{"--numa-binding"},
    PetOption{"--signals-to-handle"},
    PetOption{"--shutdown-timeout", false, "--stop-grace"},
    PetOption{"--virtual-local-rank", true},
};

/// What the pods of a job are told of each other.
constexpr std::array<std::string_view, 4> kOfNodes = {"--nnodes", "--node-rank", "--master-addr",
                                                      "--master-port"};

std::string variable_of(std::string_view option) {
  std::string name = "PET_";
  for (const char c : option.substr(2))
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

// As int() of Python reads the usual spellings; torchrun takes any number but zero for yes.
bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::span<const ForeignOption> foreign_options() {
  return kForeign;
}

const ForeignOption* find_foreign(std::string_view name) {
  const auto found = std::find_if(kForeign.begin(), kForeign.end(), [&](const ForeignOption& row) {
    return row.name == name || (row.name.ends_with('-') && name.starts_with(row.name));
  });
  return found == kForeign.end() ? nullptr : &*found;
}

PetOptions read_pet_options(const launcher::EnvVars& env, const std::vector<std::string>& given, bool alone,
                            Findings& findings) {
  PetOptions options;
  const auto is_given = [&](std::string_view name) {
    return !name.empty() && std::find(given.begin(), given.end(), name) != given.end();
  };
  const std::string* nodes = launcher::find_env(env, "PET_NNODES");
  const bool only_node = nodes != nullptr && (*nodes == "1" || *nodes == "1:1");
  for (const PetOption& option : kPetOptions) {
    // The only pod of its job: its own name is where the ranks meet anyway.
    if (only_node && option.name == "--master-addr") continue;
    if (alone && std::find(kOfNodes.begin(), kOfNodes.end(), option.name) != kOfNodes.end()) continue;
    const std::string variable = variable_of(option.name);
    const std::string* value = launcher::find_env(env, variable);
    if (value == nullptr || value->empty() || is_given(option.name) || is_given(option.ours)) continue;
    if (!option.is_flag) {
      options.words.push_back(std::string(option.name) + '=' + *value);
    } else if (!is_number(*value)) {
      findings.fail(variable + '=' + *value + ": give 1 for " + std::string(option.name) +
                    ", or 0; torchrun reads a number there, too");
      continue;
    } else if (value->find_first_not_of('0') == std::string::npos) {
      continue;
    } else {
      options.words.emplace_back(option.name);
    }
    options.variables.push_back(variable);
  }
  return options;
}

std::string pet_text(const PetOptions& options) {
  std::string text;
  for (const std::string& name : options.variables)
    text += (text.empty() ? "" : ", ") + name;
  return "options taken from the environment, as torchrun takes them: " + text;
}

}  // namespace ddp
