#include "apps/ddplaunch/options/scheduler_options.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/ddplaunch/options/job_options.h"
#include "base/text.h"
#include "launcher/job/worker_env.h"
#include "remote/hosts/host.h"
#include "remote/hosts/hostfile.h"
#include "remote/hosts/scheduler_hosts.h"

namespace ddp {

namespace {

constexpr unsigned long long kMaxTasks = 1'000'000;
constexpr unsigned long long kMaxId = std::numeric_limits<std::uint32_t>::max();
constexpr char kNodeList[] = "SLURM_STEP_NODELIST";

std::string value(const launcher::EnvVars& env, const char* name) {
  const std::string* found = launcher::find_env(env, name);
  return found == nullptr ? std::string() : *found;
}

Error other_step(std::string text) {
  text +=
      "; the variables belong to different jobs or steps. Unset SLURM_STEP_NUM_TASKS if srun has not started "
      "this program";
  return Error{ErrorCode::kUsage, std::move(text)};
}

}  // namespace

SlurmStep::SlurmStep(const launcher::EnvVars& env)
    : job(value(env, "SLURM_JOB_ID")),
      id(value(env, "SLURM_STEP_ID")),
      tasks(whole_number(value(env, "SLURM_STEP_NUM_TASKS"), kMaxTasks).value_or(0)),
      nodes(whole_number(value(env, "SLURM_STEP_NUM_NODES"), kMaxTasks).value_or(0)),
      tasks_per_node(value(env, "SLURM_TASKS_PER_NODE")),
      node_id(value(env, "SLURM_NODEID")),
      node_list(value(env, kNodeList)),
      job_node_list(value(env, "SLURM_JOB_NODELIST")),
      node_name(value(env, "SLURMD_NODENAME")),
      terminal(!value(env, "SLURM_PTY_PORT").empty()) {
  if (node_list.empty()) node_list = job_node_list;
}

std::optional<int> SlurmStep::node_rank() const {
  const auto number = whole_number(node_id, kMaxTasks);
  if (!number || *number >= nodes) return std::nullopt;
  return static_cast<int>(*number);
}

Result<std::string> SlurmStep::first_node() const {
  if (node_list.empty()) return Error{ErrorCode::kUsage, std::string(kNodeList) + " is not set"};
  auto names = remote::expand_node_list(node_list, kNodeList);
  if (!names) return Error{ErrorCode::kUsage, to_text(names.error().list.front())};
  const std::string list = std::string(kNodeList) + '=' + node_list;
  if (names->size() != nodes)
    return other_step(list + " names " + std::to_string(names->size()) +
                      " nodes, but SLURM_STEP_NUM_NODES is " + std::to_string(nodes));
  const auto rank = node_rank();
  if (rank && !node_name.empty() && (*names)[static_cast<std::size_t>(*rank)] != node_name)
    return other_step("SLURMD_NODENAME=" + node_name + " is not node " + node_id + " of " + list);
  return std::move(names->front());
}

std::optional<std::uint16_t> SlurmStep::port() const {
  // The factor is near the golden section of kPorts and has no divisor in common with it. So the ports of
  // jobs with neighboring ids lie far apart, with space for the steps of each.
  constexpr unsigned long long kJobDistance = 4943;
  const auto job_number = whole_number(job, kMaxId);
  const auto step_number = whole_number(id, kMaxId);
  if (!job_number || !step_number) return std::nullopt;
  return static_cast<std::uint16_t>(kFirstPort + (*job_number * kJobDistance + *step_number) % kPorts);
}

namespace {

using launcher::LauncherKind;

constexpr char kAlone[] = "; --launcher local runs on this machine only";

/// Returns why several tasks of a step cannot each be a ddplaunch with these options.
std::string tasks_text(const SlurmStep& step, std::optional<LauncherKind> chosen) {
  std::string text = "srun has started " + std::to_string(step.tasks) + " copies of this program, but ";
  if (step.one_per_node() && !chosen)
    return text +
           "LOCAL_RANK is set, as in a worker of another launcher; unset it to run one ddplaunch per node";
  const std::string option = chosen == LauncherKind::kSsh ? "--launcher ssh" : "--launcher slurm";
  if (step.one_per_node())
    return text + "with " + option + " one ddplaunch starts all nodes: omit srun or " + option;
  return text +
         "one ddplaunch starts all nodes: omit srun, or use srun --ntasks-per-node=1 for one ddplaunch per "
         "node";
}

}  // namespace

void heed_scheduler(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  const SlurmStep step(context.env);
  std::optional<LauncherKind>& chosen = options.written.launcher;
  if (chosen == LauncherKind::kSlurm && !step.in_job()) {
    return diagnostics.fail(
        "--launcher slurm needs a Slurm job, but SLURM_JOB_ID or SLURM_JOB_NODELIST is not set; run salloc "
        "-N 2 ddplaunch …, or use a script for sbatch");
  }
  const std::string* mpi = launcher::find_env(context.env, "OMPI_COMM_WORLD_SIZE");
  if (mpi != nullptr && *mpi != "1") {
    diagnostics.note(
        "warning: mpirun has started " + *mpi +
        " copies of this program, and each starts a job of its own: omit mpirun, or give each its "
        "--node-rank and --master-addr (docs/users/per_node.md)");
  }
  const bool none_listed = !options.lists_hosts();
  const bool of_job =
      none_listed && (!chosen || chosen == LauncherKind::kSlurm || chosen == LauncherKind::kSsh);
  if (step.tasks > 1 && (of_job || chosen == LauncherKind::kSlurm))
    return diagnostics.fail(tasks_text(step, chosen) + kAlone);
  if (!step.in_job() || !none_listed || options.job.spec.ssh_localhost) return;
  const bool more_nodes = options.written.nnodes && options.written.nnodes->max > 1;
  if (!chosen && step.alone() && !more_nodes) {
    chosen = LauncherKind::kLocal;
    if (step.node_list == step.job_node_list) return;
    return diagnostics.note("srun has started one ddplaunch as Slurm step " + step.name() +
                            ": it runs on this machine only; --launcher slurm uses all nodes of the job");
  }
  if (of_job) options.written.hosts_from = "slurm";
  if (chosen) return;
  chosen = LauncherKind::kSlurm;
  diagnostics.note("in Slurm job " + step.job + ": its nodes are started with srun" + kAlone);
}

namespace {

using ParsedHosts = remote::Validated<std::vector<remote::Host>>;

/// A variable by which a scheduler names the hosts of a job: the list itself, or a file with the list.
struct SchedulerSource {
  const char* variable;
  bool is_file;
  ParsedHosts (*read)(std::string_view text, const std::string& name);
};

/// Searched in this order. LSF's file has all hosts; its variables have a limited number.
constexpr std::array kSources = {
    SchedulerSource{"PBS_NODEFILE", true, remote::repeated_hosts},
    SchedulerSource{"LSB_DJOB_HOSTFILE", true, remote::repeated_hosts},
    SchedulerSource{"LSB_MCPU_HOSTS", false, remote::parse_host_counts},
    SchedulerSource{"LSB_HOSTS", false, remote::parse_repeated_hosts},
    SchedulerSource{"PE_HOSTFILE", true, remote::grid_engine_hosts},
    SchedulerSource{"COBALT_NODEFILE", true, remote::repeated_hosts},
    SchedulerSource{"DLTS_HOSTFILE", true, remote::parse_hostfile},
};
constexpr char kSlurmList[] = "SLURM_JOB_NODELIST";

class SchedulerReader {
 public:
  SchedulerReader(const ProcessContext& context, std::vector<remote::Host>& hosts, Diagnostics& diagnostics)
      : context_(context), hosts_(hosts), diagnostics_(diagnostics) {}

  bool from_slurm();
  bool from_environment();
  bool from_file(const std::string& path);
  bool from_stdin();

 private:
  /// Returns an empty text for an unset variable, which means the same as an empty value here.
  std::string variable(const char* name) const {
    const std::string* value = launcher::find_env(context_.env, name);
    return value == nullptr ? std::string() : *value;
  }
  bool take(ParsedHosts hosts) {
    if (!hosts) {
      for (const remote::Diagnostic& problem : hosts.error().list)
        diagnostics_.fail(to_text(problem));
      return false;
    }
    hosts_ = std::move(*hosts);
    return true;
  }

  const ProcessContext& context_;
  std::vector<remote::Host>& hosts_;
  Diagnostics& diagnostics_;
};

bool SchedulerReader::from_slurm() {
  remote::SlurmVariables slurm;
  slurm.job_nodelist = variable(kSlurmList);
  if (slurm.job_nodelist.empty()) {
    diagnostics_.fail(
        "--hosts-from slurm: SLURM_JOB_NODELIST is not set; run ddplaunch inside a job (salloc, sbatch)");
    return false;
  }
  slurm.tasks_per_node = variable("SLURM_TASKS_PER_NODE");
  // In a step of one task this is the step's value, and that of the job is unknown.
  if (slurm.tasks_per_node == "1") slurm.tasks_per_node.clear();
  slurm.gpus_per_node = variable("SLURM_GPUS_PER_NODE");
  slurm.gpus_on_node = variable("SLURM_GPUS_ON_NODE");
  if (!take(remote::slurm_hosts(slurm))) return false;
  const auto tasks = remote::expand_counts(slurm.tasks_per_node.empty() ? "1" : slurm.tasks_per_node, "");
  const bool launchers = std::all_of(tasks->begin(), tasks->end(), [](int count) { return count == 1; });
  if (launchers && hosts_.size() > 1 && slurm.gpus_per_node.empty() && !slurm.gpus_on_node.empty()) {
    diagnostics_.note(
        "assuming that every node has " + slurm.gpus_on_node +
        " GPUs, the SLURM_GPUS_ON_NODE of this node; --gpus-per-node in the job sets it for all nodes");
  }
  return true;
}

bool SchedulerReader::from_environment() {
  if (!variable(kSlurmList).empty()) return from_slurm();
  std::string wanted = kSlurmList;
  for (const SchedulerSource& source : kSources) {
    wanted += std::string(", ") + source.variable;
    const std::string value = variable(source.variable);
    if (value.empty()) continue;
    if (!source.is_file) return take(source.read(value, source.variable));
    auto text = context_.read_file(value);
    if (!text) {
      diagnostics_.fail(std::string("--hosts-from env: the file that ") + source.variable +
                        " names: " + text.error().text);
      return false;
    }
    return take(source.read(*text, value));
  }
  diagnostics_.fail("--hosts-from env: no variable of a scheduler names hosts; searched for " + wanted);
  return false;
}

bool SchedulerReader::from_file(const std::string& path) {
  auto text = context_.read_file(path);
  if (text) return take(remote::parse_hostfile(*text, path));
  diagnostics_.fail("--hosts-from " + text.error().text +
                    "; give slurm, env, - for standard input, or the name of a hostfile");
  return false;
}

bool SchedulerReader::from_stdin() {
  auto text = context_.read_stdin();
  if (text) return take(remote::parse_hostfile(*text, "standard input"));
  diagnostics_.fail("--hosts-from -: " + text.error().text);
  return false;
}

}  // namespace

bool read_hosts_from(const std::string& source, const ProcessContext& context,
                     std::vector<remote::Host>& hosts, Diagnostics& diagnostics) {
  SchedulerReader reader(context, hosts, diagnostics);
  if (source == "slurm") return reader.from_slurm();
  if (source == "env") return reader.from_environment();
  if (source == "-") return reader.from_stdin();
  return reader.from_file(source);
}

}  // namespace ddp
