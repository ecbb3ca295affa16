#include "apps/ddplaunch/options/command_line.h"

#include <cstddef>
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

    // accelerate launch.
    {"--multi-gpu", kFlag, kNoted, "--nproc-per-node says how many"},
    {"--mixed-precision", kValue, kRefused,
     "use --env ACCELERATE_MIXED_PRECISION=bf16, or --accelerate-config",
     "no --env ACCELERATE_MIXED_PRECISION=no"},
    {"--dynamo-backend", kValue, kRefused,
     "use --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR, or --accelerate-config",
     "no --env ACCELERATE_DYNAMO_BACKEND=NO"},
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

CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics, const std::string& origin) {
  OptionScanner scanner("ddplaunch", args, table, kCompatibilityOptions,
                        "ddplaunch --help all lists all options; the worker's options follow the worker");
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
  for (const std::string& note : scanner.notes())
    diagnostics.note(note);
  return line;
}

}  // namespace ddp
