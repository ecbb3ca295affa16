#include "apps/ddplaunch/options/command_line.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "apps/options/option_table.h"
#include "base/text.h"

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

    // DeepSpeed and mpirun.
    CompatibilityOption{"--num-nodes", kValue, SupportStatus::kRenamed, "", "--nnodes"},
    CompatibilityOption{"--num-gpus", kValue, SupportStatus::kRenamed, "", "--nproc-per-node"},
    CompatibilityOption{"--num-accelerators", kValue, SupportStatus::kRenamed, "", "--nproc-per-node"},
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
    CompatibilityOption{"--mixed-precision", kValue, SupportStatus::kRefused,
                        "no ACCELERATE_MIXED_PRECISION=no",
                        "use --env ACCELERATE_MIXED_PRECISION=bf16, or --accelerate-config"},
    CompatibilityOption{"--dynamo-backend", kValue, SupportStatus::kRefused,
                        "no ACCELERATE_DYNAMO_BACKEND=NO",
                        "use --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR, or --accelerate-config"},
    CompatibilityOption{"--cpu", kFlag, SupportStatus::kRenamed, "ACCELERATE_USE_CPU=true", "--env"},
    CompatibilityOption{"--enable-cpu-affinity", kFlag, SupportStatus::kRenamed, "ACCELERATE_CPU_AFFINITY=1",
                        "--env"},
    CompatibilityOption{"--same-network", kFlag, SupportStatus::kNoted, "",
                        "nodes join over the connection that starts them"},
    CompatibilityOption{"--main-training-function", kValue, SupportStatus::kNoted, "", "it is for TPUs"},
    CompatibilityOption{"--downcast-bf16", kFlag, SupportStatus::kNoted, "", "it is for TPUs"},
    CompatibilityOption{"--deepspeed-hostfile", kValue, SupportStatus::kRenamed, "", "--hostfile"},
    CompatibilityOption{"--mpirun-hostfile", kValue, SupportStatus::kRenamed, "", "--hostfile"},
    CompatibilityOption{"--deepspeed-inclusion-filter", kValue, SupportStatus::kRenamed, "", "--include"},
    CompatibilityOption{"--deepspeed-exclusion-filter", kValue, SupportStatus::kRenamed, "", "--exclude"},

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
    CompatibilityOption{"--wdir", kValue, SupportStatus::kRenamed, "", "--chdir"},
    CompatibilityOption{"--allow-run-as-root", kFlag, SupportStatus::kNoted, "", "root may run jobs"},
    CompatibilityOption{"--bind-to", kValue, SupportStatus::kRefused, "none",
                        "bind in the worker's command: numactl -N 0 python …"},
    CompatibilityOption{"-x", kValue, SupportStatus::kRefused, "", "use --env NAME[=VALUE]"},
    CompatibilityOption{"-c", kValue, SupportStatus::kRefused, "", "give it to salloc or sbatch"},
    CompatibilityOption{"-p", kValue, SupportStatus::kRefused, "",
                        "srun's -p is the partition: give it to salloc or sbatch; ssh's -p is the port: use "
                        "port= in the hostfile; --nproc-per-node is the number of workers on each node"},
    CompatibilityOption{"--mpi", kValue, SupportStatus::kRefused, "none", "there is no MPI in ddplaunch"},
    CompatibilityOption{"--cpu-bind", kValue, SupportStatus::kRefused, "none",
                        "bind in the worker's command: numactl -N 0 python …"},
    CompatibilityOption{"--unbuffered", kFlag, SupportStatus::kNoted, "",
                        "python runs with -u, and lines are passed on at once"},
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
  const auto* const found = std::ranges::find(kCompatibilityOptions, name, &CompatibilityOption::name);
  return found == kCompatibilityOptions.end() ? nullptr : found;
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

namespace {

/// Also reads the options of other launchers.
class CommandLineScanner : public OptionScanner {
 public:
  CommandLineScanner(const std::vector<std::string>& args, const OptionTable& table, Diagnostics& diagnostics)
      : OptionScanner("ddplaunch", args, table), diagnostics_(diagnostics) {}

 protected:
  bool is_other(std::string_view name) const override { return find_compatibility_option(name) != nullptr; }
  bool other_takes_value(std::string_view name) const override {
    return find_compatibility_option(name)->takes_value;
  }
  bool read_other(WrittenOption& written) override;
  void add_names(std::vector<std::string_view>& names) const override;
  std::string unknown_hint() const override {
    return "ddplaunch --help all lists all options; the worker's options follow the worker";
  }

 private:
  void read_row(const CompatibilityOption& row, WrittenOption& written);

  Diagnostics& diagnostics_;
};

bool CommandLineScanner::read_other(WrittenOption& written) {
  const CompatibilityOption* row = find_compatibility_option(written.name);
  if (row != nullptr) read_row(*row, written);
  return row != nullptr;
}

void CommandLineScanner::read_row(const CompatibilityOption& row, WrittenOption& written) {
  if (row.takes_value && !take_value(written)) return;
  if (!row.takes_value && written.value && row.status != SupportStatus::kRefused)
    return fail(written.text + " takes no value");
  const std::string reason = row.text.empty() ? std::string() : ": " + std::string(row.text);
  switch (row.status) {
    case SupportStatus::kLater:
      if (!row.value.empty() && *written.value == row.value) return;  // as it is done anyway
      return fail(
          written.text + " is not in this release yet" +
          (row.value.empty() ? "" : " (only " + written.text + " " + std::string(row.value) + " is)") +
          reason);
    case SupportStatus::kRenamed:
      if (row.takes_value && written.value->empty() && !table_.find(row.text)->takes_empty)
        return fail(written.text + " has an empty value");
      given_.insert(given_.end(), {std::string(row.name), std::string(row.text)});
      words_.emplace_back(row.text);
      words_.push_back(row.takes_value ? *written.value : std::string(row.value));
      return;
    case SupportStatus::kNoted:
      return diagnostics_.note(written.text + " has no effect" + reason);
    case SupportStatus::kRefused:
      if (row.takes_value && !row.value.empty() &&
          lower_case(*written.value) == row.value.substr(0, row.value.find(' '))) {
        if (const std::size_t blank = row.value.find(' '); blank != std::string_view::npos)
          words_.insert(words_.end(), {"--env", std::string(row.value.substr(blank + 1))});
        return;
      }
      return fail(written.text + " is not an option of ddplaunch" + reason);
  }
}

void CommandLineScanner::add_names(std::vector<std::string_view>& names) const {
  for (const CompatibilityOption& row : compatibility_options()) {
    if (row.status != SupportStatus::kRefused) names.push_back(row.name);
  }
}

}  // namespace

CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics) {
  CommandLineScanner scanner(args, table, diagnostics);
  CommandLine line;
  line.scanned_all = scanner.scan();
  if (line.scanned_all) {
    line.separated = scanner.next() < args.size() && args[scanner.next()] == "--";
    if (line.separated) scanner.skip();
    line.worker.assign(args.begin() + static_cast<std::ptrdiff_t>(scanner.next()), args.end());
  }
  line.read_all = scanner.errors().empty();
  line.words = scanner.words();
  line.off = scanner.switched_off();
  line.given = scanner.given();
  for (const std::string& error : scanner.errors())
    diagnostics.fail(error);
  return line;
}

}  // namespace ddp
