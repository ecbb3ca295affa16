#include "apps/ddplaunch/options/job_options.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "launcher/job/env_filter.h"
#include "remote/hosts/diagnostic.h"
#include "remote/hosts/hostfile.h"
#include "remote/hosts/scheduler_hosts.h"

namespace ddp {

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
