#include "apps/ddplaunch/options/job_options.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/option_readers.h"
#include "remote/hosts/diagnostic.h"
#include "remote/hosts/host_filter.h"
#include "remote/hosts/host_range.h"
#include "remote/hosts/hostfile.h"

namespace ddp {

namespace {

using launcher::JobSpec;
using launcher::LauncherKind;
using launcher::ProcsPerNode;

constexpr std::size_t kMaxNamed = 10;  ///< hosts named in one message
constexpr int kElasticRestarts = 3;    ///< default of --max-restarts for a job that can lose a node

void fail_all(const remote::DiagnosticList& errors, Diagnostics& diagnostics) {
  for (const remote::Diagnostic& problem : errors.list)
    diagnostics.fail(to_text(problem));
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size() && i < kMaxNamed; ++i)
    text += (i > 0 ? ", " : "") + words[i];
  if (words.size() > kMaxNamed) text += " and " + std::to_string(words.size() - kMaxNamed) + " more";
  return text;
}

std::string listed_at(const remote::Host& host) {
  if (host.location.file.empty()) return {};
  return " (" + host.location.file +
         (host.location.line > 0 ? ':' + std::to_string(host.location.line) : std::string()) + ')';
}

bool take(remote::Validated<std::vector<remote::Host>> checked, std::vector<remote::Host>& hosts,
          Diagnostics& diagnostics) {
  if (!checked) {
    fail_all(checked.error(), diagnostics);
    return false;
  }
  hosts = std::move(*checked);
  return true;
}

bool read_hostfile(const OptionValues& values, const ProcessContext& context,
                   std::vector<remote::Host>& hosts, Diagnostics& diagnostics) {
  auto text = context.read_file(values.hostfile);
  if (!text) {
    diagnostics.fail(
        "hostfile " + text.error().text +
        (text.error().sys == ENOENT
             ? "; write one host per line (gpu01 slots=8), or omit --hostfile to run on this machine"
             : ""));
    return false;
  }
  return take(remote::parse_hostfile(*text, values.hostfile), hosts, diagnostics);
}

bool lists_hosts(const OptionValues& values) {
  return !values.hostfile.empty() || !values.host.empty() || !values.hosts_from.empty();
}

// Fills `hosts` with the listed hosts, or this machine if none are listed. Returns false if the list is
// wrong.
bool listed_hosts(const OptionValues& values, const ProcessContext& context, std::vector<remote::Host>& hosts,
                  Diagnostics& diagnostics) {
  if (!hosts.empty()) return true;  // per-node mode: the hosts join by themselves
  std::string given;
  int count = 0;
  for (const auto& [name, is_given] :
       {std::pair("--hostfile", !values.hostfile.empty()), std::pair("--host", !values.host.empty()),
        std::pair("--hosts-from", !values.hosts_from.empty())}) {
    if (!is_given) continue;
    given += (count++ > 0 ? " and " : "") + std::string(name);
  }
  if (count > 1) {
    diagnostics.fail(given + " cannot be used together; --include selects hosts of a hostfile");
    return false;
  }
  if (!values.hostfile.empty()) return read_hostfile(values, context, hosts, diagnostics);
  if (!values.hosts_from.empty()) return read_hosts_from(values.hosts_from, context, hosts, diagnostics);
  if (values.host.empty()) {
    hosts.emplace_back().name = "localhost";
    return true;
  }
  std::string list;
  for (const std::string& part : values.host)
    list += (list.empty() ? "" : ", ") + part;
  return take(remote::parse_host_list(list, "--host"), hosts, diagnostics);
}

bool is_this_machine(const remote::Host& host) {
  const std::string& target = host.address.empty() ? host.name : host.address;
  return remote::is_localhost(host) || (target.starts_with("127.") && remote::is_ipv4(target));
}

void read_launcher(const OptionValues& values, JobSpec& spec, Diagnostics& diagnostics) {
  if (spec.per_node) return;
  const bool none_listed = !lists_hosts(values);
  spec.launcher = none_listed && !values.ssh_localhost ? LauncherKind::kLocal : LauncherKind::kSsh;
  if (values.launcher.empty()) return;
  if (values.launcher == "daemon") {
    spec.launcher = LauncherKind::kDaemon;
    if (none_listed) diagnostics.fail("--launcher daemon needs hosts: --hostfile FILE or --host LIST");
    return;
  }
  if (values.launcher == "slurm") {
    spec.launcher = LauncherKind::kSlurm;
    if (!values.ssh_command.empty())
      diagnostics.fail(
          "--ssh-command cannot be used with --launcher slurm, which starts the nodes with srun");
    return;
  }
  if (values.launcher == "ssh" || values.launcher == "pdsh") {  // DeepSpeed's name of the same
    if (none_listed && !values.ssh_localhost)
      diagnostics.fail("--launcher " + values.launcher + " needs hosts: --hostfile FILE or --host LIST");
    return;
  }
  if (values.launcher != "local") {
    return diagnostics.fail("--launcher " + values.launcher + ": choose ssh, slurm, daemon or local");
  }
  spec.launcher = LauncherKind::kLocal;
  if (values.ssh_localhost)
    diagnostics.fail("--launcher local (or --standalone) and --ssh-localhost contradict each other");
  std::vector<std::string> others;
  for (const remote::Host& host : spec.hosts) {
    if (!is_this_machine(host)) others.push_back(host.name + listed_at(host));
  }
  if (!others.empty()) {
    diagnostics.fail("--launcher local (or --standalone) starts on this machine only, not on " +
                     joined(others) + "; omit it, or omit the hosts");
  }
}

/// N, or MIN:MAX; read_counts() returns nullopt for any other text.
struct NodeCounts {
  std::size_t min = 0;
  std::size_t max = 0;
};
std::optional<NodeCounts> read_counts(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto min = remote::whole_number(text.substr(0, colon), remote::kMaxHosts);
  const auto max =
      colon < text.size() ? remote::whole_number(text.substr(colon + 1), remote::kMaxHosts) : min;
  if (!min || !max || *min == 0 || *max < *min) return {};
  return NodeCounts{static_cast<std::size_t>(*min), static_cast<std::size_t>(*max)};
}

/// Returns the option or file that lists the hosts, for messages.
std::string list_name(const OptionValues& values) {
  return !values.hostfile.empty() ? values.hostfile : values.host.empty() ? "--hosts-from" : "--host";
}

/// Returns --spares if there are enough hosts, else 0.
std::size_t read_spares(const OptionValues& values, std::size_t nodes, bool hosts_known, const JobSpec& spec,
                        Diagnostics& diagnostics) {
  if (values.spares.empty()) return 0;
  const auto spares = remote::whole_number(values.spares, remote::kMaxHosts);
  if (!spares) {
    diagnostics.fail("--spares " + values.spares + ": give a whole number of spare hosts");
    return 0;
  }
  const auto wanted = static_cast<std::size_t>(*spares);
  if (wanted > 0 && hosts_known && spec.hosts.size() < nodes + wanted) {
    diagnostics.fail(
        "--spares " + values.spares + ": with " + std::to_string(nodes) + (nodes == 1 ? " node" : " nodes") +
        " there must be " + std::to_string(nodes + wanted) + " hosts, and there " +
        (spec.hosts.size() == 1 ? "is only this one" : "are only " + std::to_string(spec.hosts.size())));
    return 0;
  }
  return wanted;
}

/// Reads the number of nodes, its minimum, and the number of spares.
void read_nnodes(const OptionValues& values, bool hosts_known, JobSpec& spec, Diagnostics& diagnostics) {
  std::optional<NodeCounts> counts;
  if (!values.nnodes.empty()) {
    counts = read_counts(values.nnodes);
    if (!counts) {
      return diagnostics.fail("--nnodes " + values.nnodes + ": \"" + values.nnodes +
                              "\" is not a number of nodes, nor MIN:MAX");
    }
    if (hosts_known && counts->min > spec.hosts.size()) {
      if (!lists_hosts(values) && !spec.per_node) {
        return diagnostics.fail(
            "--nnodes " + values.nnodes +
            " needs hosts: --hostfile FILE or --host LIST names them; without, there is " +
            "only this machine; or start one ddplaunch on each node, with --node-rank and --master-addr "
            "(docs/users/per_node.md)");
      }
      const std::size_t count = spec.hosts.size();
      return diagnostics.fail("--nnodes " + values.nnodes + ": there " + (count == 1 ? "is" : "are") +
                              " only " + std::to_string(count) + (count == 1 ? " host" : " hosts") + " in " +
                              list_name(values));
    }
    if (counts->min < counts->max) spec.min_nodes = static_cast<int>(counts->min);
    spec.max_nodes = static_cast<int>(counts->max);
  }
  const std::size_t spares = read_spares(values, counts ? counts->min : 1, hosts_known, spec, diagnostics);
  spec.spares = static_cast<int>(spares);
  if (!counts && spares > 0 && spec.hosts.size() > spares)
    spec.max_nodes = static_cast<int>(spec.hosts.size() - spares);
  // A job with spares needs restarts: without them the first loss would end it.
  if (values.max_restarts.empty() && (spares > 0 || spec.min_nodes > 0)) spec.max_restarts = kElasticRestarts;
}

/// Applies num_processes of Accelerate's file, which counts the workers of all machines.
void share_processes(const OptionValues& values, JobSpec& spec, Diagnostics& diagnostics) {
  if (!values.config_processes || !values.nproc_per_node.empty() || spec.hosts.empty()) return;
  const auto& [total, location] = *values.config_processes;
  const auto nodes = static_cast<long long>(hosts_used(spec));
  const std::string what = location + "num_processes " + std::to_string(total);
  if (total % nodes != 0) {
    diagnostics.fail(what + " is the total and cannot be divided evenly among " + std::to_string(nodes) +
                     " machines; correct it, or remove it and give each host slots= in the hostfile");
  } else if (const auto procs = read_procs(std::to_string(total / nodes))) {
    spec.nproc = *procs;
  } else {
    diagnostics.fail(what + ": more than 65535 workers on each machine");
  }
}

/// Applies gpu_ids of Accelerate's file to the hosts without their own devices.
void give_devices(const OptionValues& values, JobSpec& spec, Diagnostics& diagnostics) {
  const std::size_t count = values.config_devices.size();
  if (count == 0) return;
  bool used = false;
  for (remote::Host& host : spec.hosts) {
    if (!host.devices.empty()) continue;
    host.devices = values.config_devices;
    used = true;
  }
  if (!used || spec.oversubscribe || spec.nproc.kind != ProcsPerNode::Kind::kNumber) return;
  if (spec.nproc.number <= static_cast<int>(count)) return;
  diagnostics.fail(values.config_devices_place + "gpu_ids names " + std::to_string(count) +
                   (count == 1 ? " device" : " devices") + ", but each machine gets " +
                   std::to_string(spec.nproc.number) + " workers; name one for each, or add --oversubscribe");
}

// Reports all hosts with too few slots in one message.
void check_slots(const JobSpec& spec, Diagnostics& diagnostics) {
  if (spec.nproc.kind != ProcsPerNode::Kind::kNumber) return;
  const std::size_t used = hosts_used(spec);
  std::vector<std::string> over_slots;
  std::vector<std::string> over_limit;
  for (std::size_t i = 0; i < used; ++i) {
    const remote::Host& host = spec.hosts[i];
    if (host.max_slots && spec.nproc.number > *host.max_slots) {
      over_limit.push_back(host.name + listed_at(host) + " has " + std::to_string(*host.max_slots));
    } else if (host.slots && spec.nproc.number > *host.slots && !spec.oversubscribe) {
      over_slots.push_back(host.name + listed_at(host) + " has " + std::to_string(*host.slots));
    }
  }
  const std::string asked = "--nproc-per-node " + std::to_string(spec.nproc.number);
  if (!over_slots.empty()) {
    diagnostics.fail(asked + " is more than the slots: " + joined(over_slots) +
                     "; ask for fewer, raise slots= there, or add --oversubscribe");
  }
  if (!over_limit.empty()) {
    diagnostics.fail(asked + " is more than max_slots: " + joined(over_limit) +
                     "; ask for fewer, or raise it there");
  }
}

}  // namespace

void read_host_options(const OptionValues& values, const ProcessContext& context, JobSpec& spec,
                       Diagnostics& diagnostics) {
  bool known = listed_hosts(values, context, spec.hosts, diagnostics);
  if (!values.include.empty() && !values.exclude.empty()) {
    // Report this even if the hosts are wrong as well.
    fail_all(remote::filter_hosts({}, values.include, values.exclude).error(), diagnostics);
    known = false;
  } else if (known) {
    std::vector<remote::Host> kept;
    known = take(remote::filter_hosts(spec.hosts, values.include, values.exclude), kept, diagnostics);
    if (known) spec.hosts = std::move(kept);
  }
  const std::string* home = nullptr;
  for (const auto& [name, value] : context.env) {
    if (name == "HOME") home = &value;
  }
  for (remote::Host& host : spec.hosts) {
    if (home != nullptr && host.identity.starts_with("~/")) host.identity = *home + host.identity.substr(1);
  }
  spec.oversubscribe = values.oversubscribe;
  if (!values.nproc_per_node.empty()) {
    if (const auto procs = read_procs(values.nproc_per_node)) {
      spec.nproc = *procs;
    } else {
      diagnostics.fail("--nproc-per-node " + values.nproc_per_node +
                       ": give a whole number from 1 to 65535, or auto, gpu or cpu");
    }
  }
  if (!known) spec.hosts.clear();
  read_launcher(values, spec, diagnostics);
  read_nnodes(values, known, spec, diagnostics);
  share_processes(values, spec, diagnostics);
  give_devices(values, spec, diagnostics);
  check_slots(spec, diagnostics);
}

}  // namespace ddp
