#include "apps/ddplaunch/options/job_options.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/option_readers.h"
#include "remote/hosts/host_filter.h"
#include "remote/hosts/host_range.h"
#include "remote/hosts/hostfile.h"
#include "remote/hosts/mistake.h"

namespace ddp {

namespace {

using launcher::JobSpec;
using launcher::LauncherKind;
using launcher::ProcsPerNode;

constexpr std::size_t kMaxNamed = 10;  ///< hosts named in one message
constexpr int kElasticRestarts = 3;    ///< --max-restarts of a job that can lose a node, when none is given

void fail_all(const remote::Mistakes& mistakes, Findings& findings) {
  for (const remote::Mistake& mistake : mistakes.list)
    findings.fail(to_text(mistake));
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size() && i < kMaxNamed; ++i)
    text += (i > 0 ? ", " : "") + words[i];
  if (words.size() > kMaxNamed) text += " and " + std::to_string(words.size() - kMaxNamed) + " more";
  return text;
}

std::string listed_at(const remote::Host& host) {
  if (host.place.file.empty()) return {};
  return " (" + host.place.file +
         (host.place.line > 0 ? ':' + std::to_string(host.place.line) : std::string()) + ')';
}

bool take(remote::Checked<std::vector<remote::Host>> checked, std::vector<remote::Host>& hosts,
          Findings& findings) {
  if (!checked) {
    fail_all(checked.error(), findings);
    return false;
  }
  hosts = std::move(*checked);
  return true;
}

bool read_hostfile(const OptionValues& values, const Surroundings& surroundings,
                   std::vector<remote::Host>& hosts, Findings& findings) {
  auto text = surroundings.read_file(values.hostfile);
  if (!text) {
    findings.fail(
        "hostfile " + text.error().text +
        (text.error().sys == ENOENT
             ? "; write one host a line there (gpu01 slots=8), or leave --hostfile out to run on this machine"
             : ""));
    return false;
  }
  return take(remote::parse_hostfile(*text, values.hostfile), hosts, findings);
}

bool lists_hosts(const OptionValues& values) {
  return !values.hostfile.empty() || !values.host.empty() || !values.hosts_from.empty();
}

// The hosts as listed, this machine when none are; false when they are wrong.
bool listed_hosts(const OptionValues& values, const Surroundings& surroundings,
                  std::vector<remote::Host>& hosts, Findings& findings) {
  if (!hosts.empty()) return true;  // per-node mode: they come by themselves
  std::string given;
  int count = 0;
  for (const auto& [name, is_given] :
       {std::pair("--hostfile", !values.hostfile.empty()), std::pair("--host", !values.host.empty()),
        std::pair("--hosts-from", !values.hosts_from.empty())}) {
    if (!is_given) continue;
    given += (count++ > 0 ? " and " : "") + std::string(name);
  }
  if (count > 1) {
    findings.fail(given + " cannot be used together; --include picks hosts out of a hostfile");
    return false;
  }
  if (!values.hostfile.empty()) return read_hostfile(values, surroundings, hosts, findings);
  if (!values.hosts_from.empty()) return read_hosts_from(values.hosts_from, surroundings, hosts, findings);
  if (values.host.empty()) {
    hosts.emplace_back().name = "localhost";
    return true;
  }
  std::string list;
  for (const std::string& part : values.host)
    list += (list.empty() ? "" : ", ") + part;
  return take(remote::parse_host_list(list, "--host"), hosts, findings);
}

bool is_this_machine(const remote::Host& host) {
  const std::string& target = host.address.empty() ? host.name : host.address;
  return remote::is_localhost(host) || (target.starts_with("127.") && remote::is_ipv4(target));
}

void read_launcher(const OptionValues& values, JobSpec& spec, Findings& findings) {
  if (spec.per_node) return;
  const bool none_listed = !lists_hosts(values);
  spec.launcher = none_listed && !values.ssh_localhost ? LauncherKind::kLocal : LauncherKind::kSsh;
  if (values.launcher.empty()) return;
  if (values.launcher == "daemon") {
    spec.launcher = LauncherKind::kDaemon;
    if (none_listed) findings.fail("--launcher daemon needs hosts: --hostfile FILE or --host LIST");
    return;
  }
  if (values.launcher == "slurm") {
    spec.launcher = LauncherKind::kSlurm;
    if (!values.ssh_command.empty())
      findings.fail("--launcher slurm starts the nodes with srun, so --ssh-command has no meaning");
    return;
  }
  if (values.launcher == "ssh" || values.launcher == "pdsh") {  // DeepSpeed's name of the same
    if (none_listed && !values.ssh_localhost)
      findings.fail("--launcher " + values.launcher + " needs hosts: --hostfile FILE or --host LIST");
    return;
  }
  if (values.launcher != "local") {
    return findings.fail("--launcher " + values.launcher + ": choose ssh, slurm, daemon or local");
  }
  spec.launcher = LauncherKind::kLocal;
  if (values.ssh_localhost)
    findings.fail("--launcher local (or --standalone) and --ssh-localhost contradict each other");
  std::vector<std::string> others;
  for (const remote::Host& host : spec.hosts) {
    if (!is_this_machine(host)) others.push_back(host.name + listed_at(host));
  }
  if (!others.empty()) {
    findings.fail("--launcher local (or --standalone) starts on this machine only, not on " + joined(others) +
                  "; leave it out, or leave the hosts out");
  }
}

/// N, or MIN:MAX; nothing when it is neither.
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

/// Where the hosts are listed, for messages.
std::string list_name(const OptionValues& values) {
  return !values.hostfile.empty() ? values.hostfile : values.host.empty() ? "--hosts-from" : "--host";
}

/// --spares, when the hosts suffice for them; else 0.
std::size_t read_spares(const OptionValues& values, std::size_t nodes, bool hosts_known, const JobSpec& spec,
                        Findings& findings) {
  if (values.spares.empty()) return 0;
  const auto spares = remote::whole_number(values.spares, remote::kMaxHosts);
  if (!spares) {
    findings.fail("--spares " + values.spares + ": give a whole number, the hosts that wait for a lost one");
    return 0;
  }
  const auto wanted = static_cast<std::size_t>(*spares);
  if (wanted > 0 && hosts_known && spec.hosts.size() < nodes + wanted) {
    findings.fail(
        "--spares " + values.spares + ": with " + std::to_string(nodes) + (nodes == 1 ? " node" : " nodes") +
        " there must be " + std::to_string(nodes + wanted) + " hosts, and there " +
        (spec.hosts.size() == 1 ? "is only this one" : "are only " + std::to_string(spec.hosts.size())));
    return 0;
  }
  return wanted;
}

/// How many nodes, how many at least, and how many wait.
void read_nnodes(const OptionValues& values, bool hosts_known, JobSpec& spec, Findings& findings) {
  std::optional<NodeCounts> counts;
  if (!values.nnodes.empty()) {
    counts = read_counts(values.nnodes);
    if (!counts) {
      return findings.fail("--nnodes " + values.nnodes + ": \"" + values.nnodes +
                           "\" is not a number of nodes, nor MIN:MAX");
    }
    if (hosts_known && counts->min > spec.hosts.size()) {
      if (!lists_hosts(values) && !spec.per_node) {
        return findings.fail(
            "--nnodes " + values.nnodes +
            " needs hosts: --hostfile FILE or --host LIST names them; without, there is " +
            "only this machine; or start one ddplaunch on each node, with --node-rank and --master-addr "
            "(docs/per_node.md)");
      }
      const std::size_t count = spec.hosts.size();
      return findings.fail("--nnodes " + values.nnodes + ": there " + (count == 1 ? "is" : "are") + " only " +
                           std::to_string(count) + (count == 1 ? " host" : " hosts") + " in " +
                           list_name(values));
    }
    if (counts->min < counts->max) spec.min_nodes = static_cast<int>(counts->min);
    spec.max_nodes = static_cast<int>(counts->max);
  }
  const std::size_t spares = read_spares(values, counts ? counts->min : 1, hosts_known, spec, findings);
  spec.spares = static_cast<int>(spares);
  if (!counts && spares > 0 && spec.hosts.size() > spares)
    spec.max_nodes = static_cast<int>(spec.hosts.size() - spares);
  // Without a restart the first loss would be the end, and nobody asks for spares for that.
  if (values.max_restarts.empty() && (spares > 0 || spec.min_nodes > 0)) spec.max_restarts = kElasticRestarts;
}

/// num_processes of Accelerate's file, which counts the workers of all machines.
void share_processes(const OptionValues& values, JobSpec& spec, Findings& findings) {
  if (!values.config_processes || !values.nproc_per_node.empty() || spec.hosts.empty()) return;
  const auto& [total, place] = *values.config_processes;
  const auto nodes = static_cast<long long>(hosts_used(spec));
  const std::string what = place + "num_processes " + std::to_string(total);
  if (total % nodes != 0) {
    findings.fail(what + " is the total and cannot be divided among " + std::to_string(nodes) +
                  " machines evenly; correct it, or leave it out and give each host its slots in the "
                  "hostfile");
  } else if (const auto procs = read_procs(std::to_string(total / nodes))) {
    spec.nproc = *procs;
  } else {
    findings.fail(what + ": more than 65535 workers on each machine");
  }
}

/// gpu_ids of Accelerate's file, for the hosts that name no devices themselves.
void give_devices(const OptionValues& values, JobSpec& spec, Findings& findings) {
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
  findings.fail(values.config_devices_place + "gpu_ids names " + std::to_string(count) +
                (count == 1 ? " device" : " devices") + ", but each machine gets " +
                std::to_string(spec.nproc.number) + " workers; name one for each, or add --oversubscribe");
}

// All hosts that are short, in one message.
void check_slots(const JobSpec& spec, Findings& findings) {
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
    findings.fail(asked + " is more than the slots: " + joined(over_slots) +
                  "; ask for fewer, raise slots= there, or add --oversubscribe");
  }
  if (!over_limit.empty()) {
    findings.fail(asked + " is more than max_slots: " + joined(over_limit) +
                  "; ask for fewer, or raise it there");
  }
}

}  // namespace

void read_host_options(const OptionValues& values, const Surroundings& surroundings, JobSpec& spec,
                       Findings& findings) {
  bool known = listed_hosts(values, surroundings, spec.hosts, findings);
  if (!values.include.empty() && !values.exclude.empty()) {
    // Said even when the hosts are wrong, too.
    fail_all(remote::filter_hosts({}, values.include, values.exclude).error(), findings);
    known = false;
  } else if (known) {
    std::vector<remote::Host> kept;
    known = take(remote::filter_hosts(spec.hosts, values.include, values.exclude), kept, findings);
    if (known) spec.hosts = std::move(kept);
  }
  const std::string* home = nullptr;
  for (const auto& [name, value] : surroundings.env) {
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
      findings.fail("--nproc-per-node " + values.nproc_per_node +
                    ": give a whole number from 1 to 65535, or auto, gpu or cpu");
    }
  }
  if (!known) spec.hosts.clear();
  read_launcher(values, spec, findings);
  read_nnodes(values, known, spec, findings);
  share_processes(values, spec, findings);
  give_devices(values, spec, findings);
  check_slots(spec, findings);
}

}  // namespace ddp
