#include "apps/ddplaunch/options/command_line.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

#include "apps/options/option_table.h"
#include "base/text.h"

namespace ddp {

namespace {

using enum SupportStatus;
constexpr bool kValue = true;
constexpr bool kFlag = false;

// Options that only have another name here stand with that option (Option::other_names).
constexpr CompatibilityOption kCompatibilityOptions[] = {
    // These are options of train and a verb of ddplaunch.
    {"--on-peer-loss", kValue, kRefused, "train has it, behind its name"},
    {"--dashboard", kFlag, kRefused, "ddplaunch dashboard shows a job that runs"},

    // torchrun and torch.distributed.launch.
    {"--use-env", kFlag, kNoted, "LOCAL_RANK is always in the environment"},
    {"--standalone", kFlag, kRenamed, "--launcher", "local"},
    {"--rdzv-backend", kValue, kNoted, "ddplaunch has one rendezvous of its own"},
    {"--rdzv-conf", kValue, kNoted, "--start-timeout is the only start limit"},
    {"--monitor-interval", kValue, kNoted, "the end of a worker is seen at once"},
    {"--start-method", kValue, kNoted, "workers are programs, never forked functions"},
    {"--run-path", kFlag, kNoted, "a .py file always runs in a process of its own"},
    {"--signals-to-handle", kValue, kNoted, "SIGINT, SIGTERM and SIGHUP stop the job"},
    {"--event-log-handler", kValue, kNoted, "there are no event plug-ins"},
    {"--role", kValue, kRefused, "all workers have the role default", "default"},

    // DeepSpeed.
    {"--no-local-rank", kFlag, kNoted, "LOCAL_RANK is in the environment, and never an argument"},
    {"--no-ssh-check", kFlag, kNoted, "there is no check besides the start itself"},
    {"--force-multi", kFlag, kNoted,
     "hosts are reached over SSH however many they are; localhost with --ssh-localhost"},
    {"--save-pid", kFlag, kNoted, "ddplaunch.log in --job-dir has all pids"},
    {"--log-level", kValue, kNoted, "--verbose and --quiet choose"},
    {"--elastic-training", kFlag, kRefused, "use --nnodes MIN:MAX"},
    {"--min-elastic-nodes", kValue, kRefused, "use --nnodes MIN:MAX"},
    {"--max-elastic-nodes", kValue, kRefused, "use --nnodes MIN:MAX"},

    // accelerate launch.
    {"--multi-gpu", kFlag, kNoted, "--nproc-per-node says how many"},
    {"--mixed-precision", kValue, kRefused,
     "use --env ACCELERATE_MIXED_PRECISION=bf16, or --accelerate-config", "no ACCELERATE_MIXED_PRECISION=no"},
    {"--dynamo-backend", kValue, kRefused,
     "use --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR, or --accelerate-config",
     "no ACCELERATE_DYNAMO_BACKEND=NO"},
    {"--cpu", kFlag, kRenamed, "--env", "ACCELERATE_USE_CPU=true"},
    {"--enable-cpu-affinity", kFlag, kRenamed, "--env", "ACCELERATE_CPU_AFFINITY=1"},
    {"--same-network", kFlag, kNoted, "nodes join over the connection that starts them"},
    {"--main-training-function", kValue, kNoted, "it is for TPUs"},
    {"--downcast-bf16", kFlag, kNoted, "it is for TPUs"},

    // mpirun and srun.
    {"-N", kValue, kRefused,
     "srun's -N is the number of nodes, here --nnodes; mpirun's -N is the number of workers on each node, "
     "here --nproc-per-node"},
    {"-H", kValue, kRefused, "use --hostfile FILE or --host LIST"},
    {"-w", kValue, kRefused, "use --host LIST"},
    {"--allow-run-as-root", kFlag, kNoted, "root may run jobs"},
    {"--bind-to", kValue, kRefused, "bind in the worker's command: numactl -N 0 python …", "none"},
    {"-x", kValue, kRefused, "use --env NAME[=VALUE]"},
    {"-c", kValue, kRefused, "give it to salloc or sbatch"},
    {"-p", kValue, kRefused,
     "srun's -p is the partition: give it to salloc or sbatch; ssh's -p is the port: use port= in the "
     "hostfile; --nproc-per-node is the number of workers on each node"},
    {"--mpi", kValue, kRefused, "there is no MPI in ddplaunch", "none"},
    {"--cpu-bind", kValue, kRefused, "bind in the worker's command: numactl -N 0 python …", "none"},
    {"--unbuffered", kFlag, kNoted, "python runs with -u, and lines are passed on at once"},
    {"--tag-output", kFlag, kNoted, "each line has its host and rank in front (--label)"},
};

}  // namespace

std::span<const CompatibilityOption> compatibility_options() {
  return kCompatibilityOptions;
}

const CompatibilityOption* find_compatibility_option(std::string_view name) {
  const auto* const found = std::ranges::find(kCompatibilityOptions, name, &CompatibilityOption::name);
  return found == std::end(kCompatibilityOptions) ? nullptr : found;
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
  if (!row.takes_value && written.value && row.status != kRefused)
    return fail(written.text + " takes no value");
  const std::string reason = row.text.empty() ? std::string() : ": " + std::string(row.text);
  switch (row.status) {
    case kRenamed:
      given_.emplace_back(row.text);
      words_.insert(words_.end(), {std::string(row.text), std::string(row.value)});
      return;
    case kNoted:
      return diagnostics_.note(written.text + " has no effect" + reason);
    case kRefused:
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
    if (row.status != kRefused) names.push_back(row.name);
  }
}

}  // namespace

CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics, const std::string& origin) {
  CommandLineScanner scanner(args, table, diagnostics);
  CommandLine line;
  line.scanned_all = scanner.scan();
  if (line.scanned_all) {
    line.separated = scanner.next() < args.size() && args[scanner.next()] == "--";
    if (line.separated) scanner.skip();
    line.worker.assign(args.begin() + static_cast<std::ptrdiff_t>(scanner.next()), args.end());
  }
  line.read_all = scanner.errors().empty();
  line.given = scanner.given();
  const std::vector<std::string>& words = scanner.words();
  for (std::size_t i = 0; i < words.size(); ++i) {
    GivenOption& option =
        line.options.emplace_back(GivenOption{.name = words[i], .value = "", .origin = origin});
    if (table.takes_value(option.name)) option.value = words.at(++i);
  }
  for (const std::string& name : scanner.switched_off())
    line.options.push_back({.name = name, .value = "", .origin = origin, .is_false = true});
  for (const std::string& error : scanner.errors())
    diagnostics.fail(error);
  return line;
}

}  // namespace ddp
