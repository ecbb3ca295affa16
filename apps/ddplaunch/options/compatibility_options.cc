#include "apps/ddplaunch/options/compatibility_options.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "base/format_text.h"
#include "base/parse_text.h"

namespace ddp {

namespace {

constexpr bool kValue = true;
constexpr bool kFlag = false;

constexpr std::array kCompatibilityOptions = {
    // These are options of train and a verb of ddplaunch.
    CompatibilityOption{"--on-peer-loss", kValue, SupportStatus::kRefused, "",
                        "train has it, behind its name"},
    CompatibilityOption{"--dashboard", kFlag, SupportStatus::kRefused, "",
                        "ddplaunch dashboard shows a job that runs"},

    // torchrun and torch.distributed.launch.
    CompatibilityOption{"--use-env", kFlag, SupportStatus::kNoted, "",
                        "LOCAL_RANK is always in the environment"},
    CompatibilityOption{"--standalone", kFlag, SupportStatus::kRenamed, "local", "--launcher"},
    CompatibilityOption{"--rdzv-id", kValue, SupportStatus::kRenamed, "", "--job-id"},
    CompatibilityOption{"--shutdown-timeout", kValue, SupportStatus::kRenamed, "", "--stop-grace"},
    CompatibilityOption{"--rdzv-backend", kValue, SupportStatus::kNoted, "",
                        "ddplaunch has one rendezvous of its own"},
    CompatibilityOption{"--rdzv-conf", kValue, SupportStatus::kNoted, "",
                        "--start-timeout is the only start limit"},
    CompatibilityOption{"--monitor-interval", kValue, SupportStatus::kNoted, "",
                        "the end of a worker is seen at once"},
    CompatibilityOption{"--start-method", kValue, SupportStatus::kNoted, "",
                        "workers are programs, never forked functions"},
    CompatibilityOption{"--run-path", kFlag, SupportStatus::kNoted, "",
                        "a .py file always runs in a process of its own"},
    CompatibilityOption{"--signals-to-handle", kValue, SupportStatus::kNoted, "",
                        "SIGINT, SIGTERM and SIGHUP stop the job"},
    CompatibilityOption{"--event-log-handler", kValue, SupportStatus::kNoted, "",
                        "there are no event plug-ins"},
    CompatibilityOption{"--role", kValue, SupportStatus::kLater, "default", ""},
    CompatibilityOption{"--local-addr", kValue, SupportStatus::kRefused, "",
                        "use --network CIDR|IFACE, or address= in the hostfile"},
    CompatibilityOption{
        "--virtual-local-rank", kFlag, SupportStatus::kRefused, "",
        "LOCAL_RANK stays the index into CUDA_VISIBLE_DEVICES, which gpus= in the hostfile chooses"},
    CompatibilityOption{"--numa-binding", kValue, SupportStatus::kRefused, "",
                        "bind in the worker's command: numactl -N 0 python …"},
    CompatibilityOption{"--logs-specs", kValue, SupportStatus::kRefused, "",
                        "there are no log plug-ins; files are in --job-dir"},
    CompatibilityOption{"--duplicate-stdout-filters", kValue, SupportStatus::kRefused, "",
                        "pipe the output through grep"},
    CompatibilityOption{"--duplicate-stderr-filters", kValue, SupportStatus::kRefused, "",
                        "pipe the output through grep"},
    CompatibilityOption{"--log-line-prefix-template", kValue, SupportStatus::kRefused, "",
                        "use --label '[{host}:{rank}] '"},
    CompatibilityOption{"--print-completion", kValue, SupportStatus::kRefused, "",
                        "the completion of bash, zsh and fish is in configs/completion"},

    // DeepSpeed and mpirun.
    CompatibilityOption{"--num-nodes", kValue, SupportStatus::kRenamed, "", "--nnodes"},
    CompatibilityOption{"--num-gpus", kValue, SupportStatus::kRenamed, "", "--nproc-per-node"},
    CompatibilityOption{"--num-accelerators", kValue, SupportStatus::kRenamed, "", "--nproc-per-node"},
    CompatibilityOption{"--no-ssh", kFlag, SupportStatus::kRefused, "",
                        "omit it: with --node-rank and --master-addr each node has its own ddplaunch"},
    CompatibilityOption{"--launcher-args", kValue, SupportStatus::kRefused, "",
                        "use --ssh-config or --ssh-command"},
    CompatibilityOption{"--ssh-port", kValue, SupportStatus::kRefused, "",
                        "use port= in the hostfile, or Port in --ssh-config"},
    CompatibilityOption{"-i", kValue, SupportStatus::kRenamed, "", "--include"},
    CompatibilityOption{"-e", kValue, SupportStatus::kRenamed, "", "--exclude"},
    CompatibilityOption{"--enable-each-rank-log", kValue, SupportStatus::kRenamed, "", "--log-dir"},
    CompatibilityOption{"--no-local-rank", kFlag, SupportStatus::kNoted, "",
                        "LOCAL_RANK is in the environment, and never an argument"},
    CompatibilityOption{"--no-ssh-check", kFlag, SupportStatus::kNoted, "",
                        "there is no check besides the start itself"},
    CompatibilityOption{"--force-multi", kFlag, SupportStatus::kNoted, "",
                        "hosts are reached over SSH however many they are; localhost with --ssh-localhost"},
    CompatibilityOption{"--save-pid", kFlag, SupportStatus::kNoted, "",
                        "ddplaunch.log in --job-dir has all pids"},
    CompatibilityOption{"--log-level", kValue, SupportStatus::kNoted, "", "--verbose and --quiet choose"},
    CompatibilityOption{"-q", kFlag, SupportStatus::kRefused, "", "use --quiet"},
    CompatibilityOption{"--venv-script", kValue, SupportStatus::kRefused, "", "use --setup '. FILE'"},
    CompatibilityOption{"--bind-cores-to-rank", kFlag, SupportStatus::kRefused, "",
                        "bind in the worker's command: numactl -N 0 python …"},
    CompatibilityOption{"--bind-core-list", kValue, SupportStatus::kRefused, "",
                        "bind in the worker's command: numactl -C 0-7 python …"},
    CompatibilityOption{"--autotuning", kValue, SupportStatus::kRefused, "",
                        "run DeepSpeed's autotuner with its own launcher"},
    CompatibilityOption{"--elastic-training", kFlag, SupportStatus::kLater, "", ""},
    CompatibilityOption{"--min-elastic-nodes", kValue, SupportStatus::kLater, "", ""},
    CompatibilityOption{"--max-elastic-nodes", kValue, SupportStatus::kLater, "", ""},

    // accelerate launch.
    CompatibilityOption{"--config-file", kValue, SupportStatus::kRenamed, "", "--accelerate-config"},
    CompatibilityOption{"--num-machines", kValue, SupportStatus::kRenamed, "", "--nnodes"},
    CompatibilityOption{"--main-process-port", kValue, SupportStatus::kRenamed, "", "--master-port"},
    CompatibilityOption{"--num-processes", kValue, SupportStatus::kRenamed, "", "--ntasks"},
    CompatibilityOption{"--machine-rank", kValue, SupportStatus::kRenamed, "", "--node-rank"},
    CompatibilityOption{"--main-process-ip", kValue, SupportStatus::kRenamed, "", "--master-addr"},
    CompatibilityOption{"--multi-gpu", kFlag, SupportStatus::kNoted, "", "--nproc-per-node says how many"},
    CompatibilityOption{"--gpu-ids", kValue, SupportStatus::kRefused, "", "use gpus= in the hostfile"},
    CompatibilityOption{"--mixed-precision", kValue, SupportStatus::kRefused,
                        "no ACCELERATE_MIXED_PRECISION=no",
                        "use --env ACCELERATE_MIXED_PRECISION=bf16, or --accelerate-config"},
    CompatibilityOption{"--use-deepspeed", kFlag, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE, or --env ACCELERATE_USE_DEEPSPEED=true"},
    CompatibilityOption{"--use-fsdp", kFlag, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE, or --env ACCELERATE_USE_FSDP=true"},
    CompatibilityOption{"--dynamo-backend", kValue, SupportStatus::kRefused,
                        "no ACCELERATE_DYNAMO_BACKEND=NO",
                        "use --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR, or --accelerate-config"},
    CompatibilityOption{"--cpu", kFlag, SupportStatus::kRenamed, "ACCELERATE_USE_CPU=true", "--env"},
    CompatibilityOption{"--enable-cpu-affinity", kFlag, SupportStatus::kRenamed, "ACCELERATE_CPU_AFFINITY=1",
                        "--env"},
    CompatibilityOption{"--debug", kFlag, SupportStatus::kRefused, "",
                        "use --verbose; accelerate's own is --env ACCELERATE_DEBUG_MODE=true"},
    CompatibilityOption{"--same-network", kFlag, SupportStatus::kNoted, "",
                        "nodes join over the connection that starts them"},
    CompatibilityOption{"--main-training-function", kValue, SupportStatus::kNoted, "", "it is for TPUs"},
    CompatibilityOption{"--downcast-bf16", kFlag, SupportStatus::kNoted, "", "it is for TPUs"},
    CompatibilityOption{"--tpu", kFlag, SupportStatus::kRefused, "",
                        "TPUs are launched by accelerate itself"},
    CompatibilityOption{"--num-cpu-threads-per-process", kValue, SupportStatus::kRefused, "",
                        "use --env OMP_NUM_THREADS=N"},
    CompatibilityOption{"--gradient-accumulation-steps", kValue, SupportStatus::kRefused, "",
                        "use --env ACCELERATE_GRADIENT_ACCUMULATION_STEPS=N, or --accelerate-config FILE"},
    CompatibilityOption{"--gradient-clipping", kValue, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--zero-stage", kValue, SupportStatus::kRefused, "", "use --accelerate-config FILE"},
    CompatibilityOption{"--zero3-", kValue, SupportStatus::kRefused, "", "use --accelerate-config FILE"},
    CompatibilityOption{"--offload-", kValue, SupportStatus::kRefused, "", "use --accelerate-config FILE"},
    CompatibilityOption{"--deepspeed-config-file", kValue, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--deepspeed-moe-layer-cls-names", kValue, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--deepspeed-hostfile", kValue, SupportStatus::kRenamed, "", "--hostfile"},
    CompatibilityOption{"--mpirun-hostfile", kValue, SupportStatus::kRenamed, "", "--hostfile"},
    CompatibilityOption{"--deepspeed-inclusion-filter", kValue, SupportStatus::kRenamed, "", "--include"},
    CompatibilityOption{"--deepspeed-exclusion-filter", kValue, SupportStatus::kRenamed, "", "--exclude"},
    CompatibilityOption{"--deepspeed-multinode-launcher", kValue, SupportStatus::kRefused, "",
                        "use --launcher ssh or slurm"},
    CompatibilityOption{"--use-megatron-lm", kFlag, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--use-parallelism-config", kFlag, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--fsdp-", kValue, SupportStatus::kRefused, "", "use --accelerate-config FILE"},
    CompatibilityOption{"--megatron-lm-", kValue, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--parallelism-config-", kValue, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--fp8-", kValue, SupportStatus::kRefused, "", "use --accelerate-config FILE"},
    CompatibilityOption{"--dynamo-mode", kValue, SupportStatus::kRefused, "",
                        "use --env ACCELERATE_DYNAMO_MODE=default, or --accelerate-config FILE"},
    CompatibilityOption{"--dynamo-use-fullgraph", kFlag, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--dynamo-use-dynamic", kFlag, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--dynamo-use-regional-compilation", kFlag, SupportStatus::kRefused, "",
                        "use --accelerate-config FILE"},
    CompatibilityOption{"--mpirun-ccl", kValue, SupportStatus::kRefused, "", "use --env CCL_WORKER_COUNT=N"},

    // mpirun and srun.
    CompatibilityOption{"-np", kValue, SupportStatus::kRenamed, "", "--ntasks"},
    CompatibilityOption{"--np", kValue, SupportStatus::kRenamed, "", "--ntasks"},
    CompatibilityOption{"-N", kValue, SupportStatus::kRefused, "",
                        "srun's -N is the number of nodes, here --nnodes; mpirun's -N is the number of "
                        "workers on each node, here --nproc-per-node"},
    CompatibilityOption{"-H", kValue, SupportStatus::kRefused, "", "use --hostfile FILE or --host LIST"},
    CompatibilityOption{"-ppn", kValue, SupportStatus::kRenamed, "", "--nproc-per-node"},
    CompatibilityOption{"-host", kValue, SupportStatus::kRenamed, "", "--host"},
    CompatibilityOption{"-npernode", kValue, SupportStatus::kRenamed, "", "--nproc-per-node"},
    CompatibilityOption{"--npernode", kValue, SupportStatus::kRenamed, "", "--nproc-per-node"},
    CompatibilityOption{"--ntasks-per-node", kValue, SupportStatus::kRenamed, "", "--nproc-per-node"},
    CompatibilityOption{"--nodes", kValue, SupportStatus::kRenamed, "", "--nnodes"},
    CompatibilityOption{"--nodelist", kValue, SupportStatus::kRenamed, "", "--host"},
    CompatibilityOption{"-w", kValue, SupportStatus::kRefused, "", "use --host LIST"},
    CompatibilityOption{"--export", kValue, SupportStatus::kRefused, "",
                        "use --env NAME[=VALUE]; most of the environment is forwarded by default"},
    CompatibilityOption{"--wdir", kValue, SupportStatus::kRenamed, "", "--chdir"},
    CompatibilityOption{"--allow-run-as-root", kFlag, SupportStatus::kNoted, "", "root may run jobs"},
    CompatibilityOption{"--bind-to", kValue, SupportStatus::kRefused, "none",
                        "bind in the worker's command: numactl -N 0 python …"},
    CompatibilityOption{"--map-by", kValue, SupportStatus::kRefused, "",
                        "ranks follow the order of the hosts"},
    CompatibilityOption{"--mca", kValue, SupportStatus::kRefused, "", "there is no MPI in ddplaunch"},
    CompatibilityOption{"-x", kValue, SupportStatus::kRefused, "", "use --env NAME[=VALUE]"},
    CompatibilityOption{"--gpus", kValue, SupportStatus::kRefused, "",
                        "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    CompatibilityOption{"--gpus-per-node", kValue, SupportStatus::kRefused, "",
                        "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    CompatibilityOption{"--gpus-per-task", kValue, SupportStatus::kRefused, "",
                        "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    CompatibilityOption{"--gres", kValue, SupportStatus::kRefused, "",
                        "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    CompatibilityOption{"-G", kValue, SupportStatus::kRefused, "",
                        "give it to salloc or sbatch; --nproc-per-node says how many workers a node gets"},
    CompatibilityOption{"--cpus-per-task", kValue, SupportStatus::kRefused, "",
                        "give it to salloc or sbatch"},
    CompatibilityOption{"--partition", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"--account", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"--time", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"--mem", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"--qos", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"--constraint", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"-c", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"-p", kValue, SupportStatus::kRefused, "",
                        "srun's -p is the partition: give it to salloc or sbatch; ssh's -p is the port: use "
                        "port= in the hostfile; --nproc-per-node is the number of workers on each node"},
    CompatibilityOption{"-A", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"--exclusive", kFlag, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"--job-name", kValue, SupportStatus::kRefused, "", "use --job-id"},
    CompatibilityOption{"-J", kValue, SupportStatus::kRefused, "", "use --job-id"},
    CompatibilityOption{"--mpi", kValue, SupportStatus::kRefused, "none", "there is no MPI in ddplaunch"},
    CompatibilityOption{"--cpu-bind", kValue, SupportStatus::kRefused, "none",
                        "bind in the worker's command: numactl -N 0 python …"},
    CompatibilityOption{"--kill-on-bad-exit", kFlag, SupportStatus::kRefused, "",
                        "omit it: the first failure ends the job"},
    CompatibilityOption{"--unbuffered", kFlag, SupportStatus::kNoted, "",
                        "python runs with -u, and lines are passed on at once"},
    CompatibilityOption{"--output", kValue, SupportStatus::kRefused, "", "use --log-dir DIR"},
    CompatibilityOption{"--error", kValue, SupportStatus::kRefused, "", "use --log-dir DIR"},
    CompatibilityOption{"--output-filename", kValue, SupportStatus::kRefused, "", "use --log-dir DIR"},
    CompatibilityOption{"--machinefile", kValue, SupportStatus::kRenamed, "", "--hostfile"},
    CompatibilityOption{"-machinefile", kValue, SupportStatus::kRenamed, "", "--hostfile"},
    CompatibilityOption{"-hostfile", kValue, SupportStatus::kRenamed, "", "--hostfile"},
    CompatibilityOption{"--hosts", kValue, SupportStatus::kRenamed, "", "--host"},
    CompatibilityOption{"-hosts", kValue, SupportStatus::kRenamed, "", "--host"},
    CompatibilityOption{"--wd", kValue, SupportStatus::kRenamed, "", "--chdir"},
    CompatibilityOption{"-wd", kValue, SupportStatus::kRenamed, "", "--chdir"},
    CompatibilityOption{"-wdir", kValue, SupportStatus::kRenamed, "", "--chdir"},
    CompatibilityOption{"--tag-output", kFlag, SupportStatus::kNoted, "",
                        "each line has its host and rank in front (--label)"},
    CompatibilityOption{"--timestamp-output", kFlag, SupportStatus::kRefused, "",
                        "use --label '{time} [{rank}] '"},
    CompatibilityOption{"--display-map", kFlag, SupportStatus::kRefused, "",
                        "use --dry-run, or ddplaunch hosts"},
    CompatibilityOption{"--report-bindings", kFlag, SupportStatus::kRefused, "",
                        "nothing is bound; bind in the worker's command: numactl -N 0 python …"},
    CompatibilityOption{"--rankfile", kValue, SupportStatus::kRefused, "",
                        "ranks follow the order of the hosts"},
    CompatibilityOption{"--prefix", kValue, SupportStatus::kRefused, "",
                        "use --agent PATH, and --env PATH=… for the workers"},
    CompatibilityOption{"--timeout", kValue, SupportStatus::kRefused, "",
                        "run it as timeout TIME ddplaunch …"},
};

struct PetOption {
  std::string_view name;    ///< torchrun's long name
  bool is_flag = false;     ///< its variable is 0 or 1
  std::string_view ours{};  ///< another name with the same meaning on the command line
};

// The options of torch/distributed/run.py with the actions `env` and `check_env`.
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

/// Options by which the pods of a job are described to each other.
constexpr std::array<std::string_view, 4> kOfNodes = {"--nnodes", "--node-rank", "--master-addr",
                                                      "--master-port"};

std::string variable_of(std::string_view option) {
  std::string name = "PET_";
  for (const char c : option.substr(2))
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

}  // namespace

std::span<const CompatibilityOption> compatibility_options() {
  return kCompatibilityOptions;
}

const CompatibilityOption* find_compatibility_option(std::string_view name) {
  const auto found = std::find_if(
      kCompatibilityOptions.begin(), kCompatibilityOptions.end(), [&](const CompatibilityOption& row) {
        return row.name == name || (row.name.ends_with('-') && name.starts_with(row.name));
      });
  return found == kCompatibilityOptions.end() ? nullptr : &*found;
}

PetOptions read_pet_options(const launcher::EnvVars& env, const std::vector<std::string>& given, bool alone,
                            Diagnostics& diagnostics) {
  PetOptions options;
  const auto is_given = [&](std::string_view name) {
    return !name.empty() && std::find(given.begin(), given.end(), name) != given.end();
  };
  const std::string* nodes = launcher::find_env(env, "PET_NNODES");
  const bool only_node = nodes != nullptr && (*nodes == "1" || *nodes == "1:1");
  for (const PetOption& option : kPetOptions) {
    // A job's only pod needs no master address: the ranks meet at its own name.
    if (only_node && option.name == "--master-addr") continue;
    if (alone && std::find(kOfNodes.begin(), kOfNodes.end(), option.name) != kOfNodes.end()) continue;
    const std::string variable = variable_of(option.name);
    const std::string* value = launcher::find_env(env, variable);
    if (value == nullptr || value->empty() || is_given(option.name) || is_given(option.ours)) continue;
    if (!option.is_flag) {
      options.words.push_back(std::string(option.name) + '=' + *value);
    } else if (!is_digits(*value)) {
      diagnostics.fail(variable + '=' + *value + ": give 1 for " + std::string(option.name) +
                       ", or 0; torchrun expects a number as well");
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
  return "options taken from the environment, as torchrun takes them: " + join(options.variables, ", ");
}

}  // namespace ddp
