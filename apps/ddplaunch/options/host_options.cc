#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/job_options.h"
#include "base/text.h"
#include "remote/hosts/host.h"
#include "remote/hosts/hostfile.h"

namespace ddp {

namespace {

using launcher::JobSpec;
using launcher::LauncherKind;
using rendezvous::ProcsRule;

constexpr std::size_t kMaxNamed = 10;  ///< hosts named in one message
constexpr char kFewer[] = "; ask for fewer, raise slots= there, or add --oversubscribe";

/// Returns "gpu01 (hosts:3)", the name and where it is listed.
std::string listed(const remote::Host& host) {
  if (host.location.file.empty()) return host.name;
  return host.name + " (" + host.location.file +
         (host.location.line > 0 ? ':' + std::to_string(host.location.line) : std::string()) + ')';
}

using ParsedHosts = remote::Validated<std::vector<remote::Host>>;

/// A variable by which a scheduler names the hosts of a job: the list itself, or a file with the list.
struct SchedulerSource {
  const char* variable;
  bool is_file;
  ParsedHosts (*read)(std::string_view text, const std::string& name);
};

/// Searched in this order, behind Slurm's. LSF's file has all hosts; its variables have a limited number.
constexpr SchedulerSource kSources[] = {
    {"PBS_NODEFILE", true, remote::repeated_hosts},       {"LSB_DJOB_HOSTFILE", true, remote::repeated_hosts},
    {"LSB_MCPU_HOSTS", false, remote::parse_host_counts}, {"LSB_HOSTS", false, remote::parse_repeated_hosts},
    {"PE_HOSTFILE", true, remote::grid_engine_hosts},     {"COBALT_NODEFILE", true, remote::repeated_hosts},
    {"DLTS_HOSTFILE", true, remote::parse_hostfile}};
constexpr char kSlurmList[] = "SLURM_JOB_NODELIST";

/// Returns an error of an option as the only error of its hosts.
remote::DiagnosticList no_hosts(std::string text) {
  return {{{{}, std::move(text)}}};
}

/// Reads the hostfile of an option, "-" from standard input. `advice` ends the message about a missing file.
ParsedHosts hosts_in_file(const std::string& option, const std::string& path, const char* advice,
                          const ProcessContext& context) {
  const bool is_input = path == "-";
  const auto text = is_input ? context.read_stdin() : context.read_file(path);
  if (text) return remote::parse_hostfile(*text, is_input ? "standard input" : path);
  return no_hosts(option + (is_input ? " -: " : " ") + text.error().text +
                  (text.error().sys == ENOENT ? advice : ""));
}

/// --hosts-from slurm
ParsedHosts hosts_of_slurm(const ProcessContext& context, Diagnostics& diagnostics) {
  remote::SlurmVariables slurm;
  slurm.job_nodelist = context.variable(kSlurmList);
  if (slurm.job_nodelist.empty()) {
    return no_hosts(
        "--hosts-from slurm: SLURM_JOB_NODELIST is not set; run ddplaunch inside a job (salloc, sbatch)");
  }
  slurm.tasks_per_node = context.variable("SLURM_TASKS_PER_NODE");
  // In a step of one task this is the step's value, and that of the job is unknown.
  if (slurm.tasks_per_node == "1") slurm.tasks_per_node.clear();
  slurm.gpus_per_node = context.variable("SLURM_GPUS_PER_NODE");
  slurm.gpus_on_node = context.variable("SLURM_GPUS_ON_NODE");
  auto hosts = remote::slurm_hosts(slurm);
  if (!hosts) return hosts;
  const auto tasks = remote::expand_counts(slurm.tasks_per_node.empty() ? "1" : slurm.tasks_per_node, "");
  const bool launchers = std::ranges::all_of(*tasks, [](int count) { return count == 1; });
  if (launchers && hosts->size() > 1 && slurm.gpus_per_node.empty() && !slurm.gpus_on_node.empty()) {
    diagnostics.note(
        "assuming that every node has " + slurm.gpus_on_node +
        " GPUs, the SLURM_GPUS_ON_NODE of this node; --gpus-per-node in the job sets it for all nodes");
  }
  return hosts;
}

/// --hosts-from env
ParsedHosts hosts_of_scheduler(const ProcessContext& context, Diagnostics& diagnostics) {
  if (!context.variable(kSlurmList).empty()) return hosts_of_slurm(context, diagnostics);
  std::string wanted = kSlurmList;
  for (const SchedulerSource& source : kSources) {
    wanted += concat(", ", source.variable);
    const std::string value = context.variable(source.variable);
    if (value.empty()) continue;
    if (!source.is_file) return source.read(value, source.variable);
    const auto text = context.read_file(value);
    if (text) return source.read(*text, value);
    return no_hosts(
        concat("--hosts-from env: the file that ", source.variable, " names: ", text.error().text));
  }
  return no_hosts("--hosts-from env: no variable of a scheduler names hosts; searched for " + wanted);
}

/// Returns the listed hosts, or this machine if none are listed.
ParsedHosts listed_hosts(const JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  const WrittenValues& written = options.written;
  const std::vector<remote::Host>& hosts = options.job.spec.hosts;
  if (!hosts.empty()) return hosts;  // per-node mode: the hosts join by themselves
  if (!written.hostfile.empty())
    return hosts_in_file(
        "--hostfile", written.hostfile,
        "; write one host per line (gpu01 slots=8), or omit --hostfile to run on this machine", context);
  if (written.hosts_from == "slurm") return hosts_of_slurm(context, diagnostics);
  if (written.hosts_from == "env") return hosts_of_scheduler(context, diagnostics);
  if (!written.hosts_from.empty())
    return hosts_in_file("--hosts-from", written.hosts_from,
                         "; give slurm, env, - for standard input, or the name of a hostfile", context);
  if (!written.host.empty()) return remote::parse_host_list(join(written.host, ", "), "--host");
  remote::Host here;
  here.name = "localhost";
  return std::vector{here};
}

bool is_this_machine(const remote::Host& host) {
  const std::string& target = host.address.empty() ? host.name : host.address;
  return remote::is_localhost(host) || (target.starts_with("127.") && remote::is_ipv4(target));
}

void read_launcher(JobOptions& options, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  if (spec.per_node) return;
  const std::optional<LauncherKind> chosen = options.written.launcher;
  const bool none_listed = !options.lists_hosts();
  const bool alone = none_listed && !spec.ssh_localhost;
  spec.launcher = chosen.value_or(alone ? LauncherKind::kLocal : LauncherKind::kSsh);
  if (chosen == LauncherKind::kDaemon && none_listed)
    diagnostics.fail("--launcher daemon needs hosts: --hostfile FILE or --host LIST");
  if (chosen == LauncherKind::kSsh && alone)
    diagnostics.fail("--launcher ssh (or pdsh) needs hosts: --hostfile FILE or --host LIST");
  if (chosen != LauncherKind::kLocal) return;
  std::vector<std::string> others;
  for (const remote::Host& host : spec.hosts) {
    if (!is_this_machine(host)) others.push_back(listed(host));
  }
  if (!others.empty()) {
    diagnostics.fail("--launcher local (or --standalone) starts on this machine only, not on " +
                     join_some(others, kMaxNamed) + "; omit it, or omit the hosts");
  }
}

/// Returns the option or file that lists the hosts, for messages.
std::string list_name(const WrittenValues& written) {
  if (written.hostfile == "-") return "standard input";
  return !written.hostfile.empty() ? written.hostfile : written.host.empty() ? "--hosts-from" : "--host";
}

/// Checks that there are enough hosts for --spares, with at least `nodes` nodes.
void check_spares(std::size_t nodes, JobSpec& spec, Diagnostics& diagnostics) {
  const auto spares = static_cast<std::size_t>(spec.spares);
  if (spares == 0 || spec.hosts.size() >= nodes + spares) return;
  diagnostics.fail(
      "--spares ", spares, ": with ", counted(nodes, "node"), " there must be ", nodes + spares,
      " hosts, and there ",
      spec.hosts.size() == 1 ? "is only this one" : "are only " + std::to_string(spec.hosts.size()));
  spec.spares = 0;
}

/// Checks that there are enough hosts for --nnodes.
bool check_nnodes(const JobOptions& options, Diagnostics& diagnostics) {
  const std::size_t count = options.job.spec.hosts.size();
  if (options.written.nnodes->min <= count) return true;
  const std::string asked = nnodes_text(*options.written.nnodes);
  if (!options.lists_hosts() && !options.job.spec.per_node) {
    diagnostics.fail(
        asked,
        " needs hosts: --hostfile FILE or --host LIST names them; without, there is only this machine; or "
        "start one ddplaunch on each node, with --node-rank and --master-addr (docs/users/per_node.md)");
  } else {
    diagnostics.fail(asked + ": there " + (count == 1 ? "is" : "are") + " only " + counted(count, "host") +
                     " in " + list_name(options.written));
  }
  return false;
}

/// Applies the number of nodes, its minimum, and the number of spares.
void read_nnodes(JobOptions& options, bool hosts_known, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  const std::optional<NodeCounts>& counts = options.written.nnodes;
  if (counts && hosts_known && !check_nnodes(options, diagnostics)) return;
  if (counts && counts->min < counts->max) spec.min_nodes = static_cast<int>(counts->min);
  if (counts) spec.max_nodes = static_cast<int>(counts->max);
  if (hosts_known) check_spares(counts ? counts->min : 1, spec, diagnostics);
  const auto hosts = static_cast<int>(spec.hosts.size());
  if (!counts && spec.spares > 0 && hosts > spec.spares) spec.max_nodes = hosts - spec.spares;
  // A job with spares needs restarts: without them the first loss would end it.
  const bool elastic = spec.spares > 0 || spec.min_nodes > 0;
  if (elastic && !options.given("--max-restarts")) spec.max_restarts = kElasticRestarts;
}

std::string total_text(const WrittenValues& written) {
  return "-n " + std::to_string(*written.ntasks);
}

/// Gives each host the same part of `total` workers. `what` names the total in messages: "-n 6".
void share_evenly(long long total, const std::string& what, JobSpec& spec, Diagnostics& diagnostics) {
  const auto nodes = static_cast<long long>(hosts_used(spec));
  if (total % nodes != 0) {
    diagnostics.fail(what, " is the total and cannot be divided evenly among ", nodes,
                     " machines; correct it, or remove it and give each host slots= in the hostfile");
  } else if (!procs_into(spec.nproc)(std::to_string(total / nodes)).empty()) {
    diagnostics.fail(what + ": more than 65535 workers on each machine");
  }
}

/// Fills the slots of the hosts in their order. Hosts that get no worker are not used.
void fill_slots(long long total, const std::string& what, JobSpec& spec, Diagnostics& diagnostics) {
  std::vector<std::string> without, full;
  long long rest = total;
  int used = 0;
  for (remote::Host& host : spec.hosts) {
    const std::optional<int> slots = usable_slots(host);
    if (!slots) without.push_back(listed(host));
    if (!slots || rest == 0) continue;
    full.push_back(concat(listed(host), " has ", *slots));
    host.slots = static_cast<int>(std::min<long long>(rest, *slots));
    rest -= *host.slots;
    ++used;
  }
  if (!without.empty()) {
    diagnostics.fail(what + " fills the slots of the hosts, but these have no slots=: " +
                     join_some(without, kMaxNamed) + "; give each host slots=, or none");
  } else if (rest > 0) {
    diagnostics.fail(what, " is more than the ", total - rest,
                     " slots of the hosts: ", join_some(full, kMaxNamed), kFewer);
  }
  spec.max_nodes = used;
}

/// Applies -n, or num_processes of Accelerate's file. Both count the workers of all hosts together.
void share_total(JobOptions& options, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  const bool each_given = options.given("--nproc-per-node");
  if (!options.written.ntasks) {
    if (!options.config.processes || each_given || spec.hosts.empty()) return;
    const long long total = *options.config.processes;
    const std::string what = concat(options.config.processes_place, "num_processes ", total);
    return share_evenly(total, what, spec, diagnostics);
  }
  const std::string what = total_text(options.written);
  if (spec.spares > 0 || spec.min_nodes > 0) {
    return diagnostics.fail(what +
                            " cannot be used with --spares or --nnodes MIN:MAX: the number of workers "
                            "changes with the nodes; use --nproc-per-node");
  }
  if (spec.hosts.empty() || each_given) return;
  const bool has_slots = std::ranges::any_of(
      spec.hosts, [](const remote::Host& host) { return usable_slots(host).has_value(); });
  if (has_slots && !options.written.nnodes && !spec.nproc.oversubscribe)
    return fill_slots(*options.written.ntasks, what, spec, diagnostics);
  share_evenly(*options.written.ntasks, what, spec, diagnostics);
}

/// Applies gpu_ids of Accelerate's file to the hosts without their own devices.
void give_devices(const AccelerateConfig& config, JobSpec& spec, Diagnostics& diagnostics) {
  const std::size_t count = config.devices.size();
  if (count == 0) return;
  bool used = false;
  for (remote::Host& host : spec.hosts) {
    if (!host.devices.empty()) continue;
    host.devices = config.devices;
    used = true;
  }
  if (!used || spec.nproc.oversubscribe || spec.nproc.rule != ProcsRule::kNumber) return;
  if (spec.nproc.number <= static_cast<int>(count)) return;
  diagnostics.fail(config.devices_place, "gpu_ids names ", counted(count, "device"),
                   ", but each machine gets ", spec.nproc.number,
                   " workers; name one for each, or add --oversubscribe");
}

// Reports all hosts with too few slots in one message.
void check_slots(const JobOptions& options, Diagnostics& diagnostics) {
  const JobSpec& spec = options.job.spec;
  if (spec.nproc.rule != ProcsRule::kNumber) return;
  const std::size_t used = hosts_used(spec);
  std::vector<std::string> over_slots;
  std::vector<std::string> over_limit;
  for (std::size_t i = 0; i < used; ++i) {
    const remote::Host& host = spec.hosts[i];
    if (host.max_slots && spec.nproc.number > *host.max_slots) {
      over_limit.push_back(concat(listed(host), " has ", *host.max_slots));
    } else if (host.slots && spec.nproc.number > *host.slots && !spec.nproc.oversubscribe) {
      over_slots.push_back(concat(listed(host), " has ", *host.slots));
    }
  }
  const int number = spec.nproc.number;
  const std::string asked = options.written.ntasks
                                ? concat(total_text(options.written), ", ", number, " on each host,")
                                : concat("--nproc-per-node ", number);
  if (!over_slots.empty()) {
    diagnostics.fail(asked + " is more than the slots: " + join_some(over_slots, kMaxNamed) + kFewer);
  }
  if (!over_limit.empty()) {
    diagnostics.fail(asked + " is more than max_slots: " + join_some(over_limit, kMaxNamed) +
                     "; ask for fewer, or raise it there");
  }
}

}  // namespace

void read_host_options(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  const std::string& include = options.written.include;
  const std::string& exclude = options.written.exclude;
  ParsedHosts hosts = listed_hosts(options, context, diagnostics);
  // With both, an error is reported already.
  if (hosts) hosts = remote::filter_hosts(std::move(*hosts), include, include.empty() ? exclude : "");
  const bool known = hosts.has_value();
  spec.hosts = known ? std::move(*hosts) : std::vector<remote::Host>();
  if (known) {
    read_host_history(options, context, diagnostics);
  } else {
    for (const remote::Diagnostic& problem : hosts.error().list)
      diagnostics.fail(to_text(problem));
  }
  const std::string home = context.variable("HOME");
  for (remote::Host& host : spec.hosts) {
    if (!home.empty() && host.identity.starts_with("~/")) host.identity = home + host.identity.substr(1);
  }
  if (!options.line.read_all) return;  // the misspelled option may be the one that names hosts or counts
  read_launcher(options, diagnostics);
  read_nnodes(options, known, diagnostics);
  share_total(options, diagnostics);
  give_devices(options.config, spec, diagnostics);
  check_slots(options, diagnostics);
}

namespace {

/// Returns how many hosts of the list the job needs; the others are spares, or are not used.
std::size_t hosts_needed(const JobOptions& options) {
  const std::size_t hosts = options.job.spec.hosts.size();
  const auto spares = static_cast<std::size_t>(options.job.spec.spares);
  if (options.written.nnodes) return std::min(hosts, options.written.nnodes->max);
  // Their slots decide how many of them -n needs.
  return options.written.ntasks ? 0 : hosts - std::min(hosts, spares);
}

/// Returns where the job's host at `index` runs, behind a semicolon.
std::string history_use(const JobSpec& spec, std::size_t index) {
  const std::size_t used = hosts_used(spec);
  if (index >= used) return "; it is not used";
  if (index + static_cast<std::size_t>(spec.spares) >= used) return "; it is a spare";
  return "; it is used, since no other host is left";
}

}  // namespace

void read_host_history(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  const std::string& given = options.written.host_history;
  const std::string state = xdg_directory(context, "XDG_STATE_HOME", ".local/state");
  if (given.empty() && !state.empty()) spec.host_history = state + "/hosts";
  if (!given.empty() && given != "none") {
    spec.host_history = given;
    if (const auto usable = context.can_write(given + "/file"); !usable)
      return diagnostics.fail("--host-history " + usable.error().text +
                              "; make the directory first, for several users with chmod 1777");
  }
  const bool asked = options.written.avoid_bad_hosts || options.job.history || !options.job.forget.empty();
  if (asked && spec.host_history.empty())
    diagnostics.fail("there is no host history: ",
                     given.empty() ? "HOME is not set" : "--host-history is none");
  // The nodes of per-node mode come by themselves, and have no names before.
  if (spec.host_history.empty() || spec.per_node) return;
  const auto history = context.read_host_history(spec.host_history);
  if (!history) {
    if (given.empty() && !asked) return diagnostics.note("host history: " + history.error().text);
    return diagnostics.fail("--host-history " + history.error().text);
  }
  const std::vector<launcher::HostRecord> records = history->records();
  std::map<std::string, const launcher::HostRecord*> by_name;
  for (const launcher::HostRecord& record : records)
    if (record.failures > 0) by_name[record.host] = &record;
  const auto record_of = [&](const remote::Host& host) {
    const auto found = by_name.find(remote::is_localhost(host) ? context.host_name : host.name);
    return found == by_name.end() ? nullptr : found->second;
  };
  if (options.written.avoid_bad_hosts && hosts_needed(options) < spec.hosts.size()) {
    // Among bad hosts, the one that failed least often comes first.
    std::ranges::stable_sort(spec.hosts, {}, [&](const remote::Host& host) {
      const launcher::HostRecord* record = record_of(host);
      const bool is_bad = record != nullptr && record->is_bad();
      return is_bad ? std::pair(record->hardware, record->failures) : std::pair(0, 0);
    });
  }
  for (const remote::Host& host : spec.hosts) {
    const launcher::HostRecord* record = record_of(host);
    if (record == nullptr) continue;
    options.job.bad_record.push_back(*record);
    options.job.bad_record.back().host = host.name;
  }
}

void note_host_history(const JobOptions& options, Diagnostics& diagnostics) {
  const JobSpec& spec = options.job.spec;
  if (options.job.verb != Verb::kRun) return;  // the others print it as a finding
  const std::vector<launcher::HostRecord>& records = options.job.bad_record;
  std::size_t noted = 0;
  for (std::size_t i = 0; i < spec.hosts.size() && noted < records.size(); ++i) {
    const launcher::HostRecord& record = records[noted];  // they have the order of the hosts
    if (spec.hosts[i].name != record.host) continue;
    if (noted++ == kMaxNamed) {
      return diagnostics.note(counted(records.size() - kMaxNamed, "more host") +
                              " failed lately; ddplaunch hosts --history lists them");
    }
    const bool avoided = options.written.avoid_bad_hosts && record.is_bad();
    diagnostics.note(record.host + ": " + record.text() + (avoided ? history_use(spec, i) : ""));
  }
}

void check_daemon_hosts(launcher::JobSpec& spec, Diagnostics& diagnostics) {
  if (spec.launcher != LauncherKind::kDaemon) return;
  spec.push = false;  // only over SSH
  std::string wrapped;
  bool of_ssh = false;
  for (const remote::Host& host : spec.hosts) {
    if (!host.wrapper.empty() && wrapped.empty()) wrapped = host.name;
    of_ssh = of_ssh || !host.user.empty() || !host.identity.empty() || !host.jump.empty();
  }
  if (!wrapped.empty()) {
    diagnostics.fail("a daemon starts no wrapper (host " + wrapped +
                     "): run ddplaunchd --listen inside the container, or use --launcher ssh");
  }
  if (of_ssh) diagnostics.note("user, identity and jump of the hosts have no effect with --launcher daemon");
}

}  // namespace ddp
