#include "launcher/check/check_diagnosis.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "launcher/job/worker_env.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/host_texts.h"
#include "remote/hosts/host.h"

namespace ddp::launcher {

namespace {

using rendezvous::Interface;
using rendezvous::NodeChecked;
using Severity = CheckDiagnostic::Severity;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
/// The usual soft limit of a system; with less, data loaders and stores are the first to run out of
/// descriptors.
constexpr std::uint64_t kUsualNofile = 1024;
/// Descriptors that a process has open before it communicates with other ranks.
constexpr std::uint64_t kOwnNofile = 64;
/// Docker's default is 64 MiB, which is too small for the loaders of one worker.
constexpr std::uint64_t kSmallShm = kGiB;
constexpr std::uint64_t kSmallDisk = kGiB;
/// InfiniBand registers its buffers, which take some gigabytes in a process of a job.
constexpr std::uint64_t kSmallMemlock = kGiB;
constexpr std::chrono::seconds kClocksApart{1};
/// Threads of one worker and its loaders in a usual training.
constexpr std::uint64_t kTasksPerWorker = 64;

/// In the order in which a user fixes them; diagnostics are sorted by the index.
constexpr std::array kItems = {"reach",       "agent",   "plan", "network",    "port",     "directory",
                               "environment", "program", "gpus", "gpu_memory", "versions", "infiniband",
                               "limits",      "shm",     "disk", "clock",      "history",  "timeouts"};

/// Collects diagnostics. An equal diagnostic of another host only adds that host.
class DiagnosticCollector {
 public:
  void add(Severity level, std::string item, std::vector<std::size_t> nodes, std::string text,
           std::string advice) {
    for (CheckDiagnostic& known : list_) {
      if (known.level != level || known.item != item || known.text != text || known.advice != advice)
        continue;
      known.nodes.insert(known.nodes.end(), nodes.begin(), nodes.end());
      return;
    }
    list_.push_back({level, std::move(item), std::move(nodes), std::move(text), std::move(advice)});
  }
  void error(const char* item, std::size_t node, std::string text, std::string advice) {
    add(Severity::kError, item, {node}, std::move(text), std::move(advice));
  }
  void warn(const char* item, std::size_t node, std::string text, std::string advice) {
    add(Severity::kWarning, item, {node}, std::move(text), std::move(advice));
  }
  std::vector<CheckDiagnostic> take() {
    for (CheckDiagnostic& diagnostic : list_)
      std::sort(diagnostic.nodes.begin(), diagnostic.nodes.end());
    std::stable_sort(list_.begin(), list_.end(), [](const CheckDiagnostic& a, const CheckDiagnostic& b) {
      if (a.level != b.level) return a.level == Severity::kError;
      return location(a) < location(b);
    });
    return std::move(list_);
  }

 private:
  static std::ptrdiff_t location(const CheckDiagnostic& diagnostic) {
    return std::find(kItems.begin(), kItems.end(), diagnostic.item) - kItems.begin();
  }
  std::vector<CheckDiagnostic> list_;
};

std::vector<std::string_view> listed(std::string_view value) {
  std::vector<std::string_view> names = split(value, ',');
  std::erase(names, "");
  return names;
}

bool sees_gpu(const CheckedNode& node) {
  return node.up && node.hello.gpus > 0;
}

/// Splits a text from its advice, which follows the first ';' as in the agent's refusals.
std::pair<std::string, std::string> advice_apart(const std::string& text) {
  const std::size_t semicolon = text.find("; ");
  if (semicolon == std::string::npos) return {text, ""};
  return {text.substr(0, semicolon), text.substr(semicolon + 2)};
}

/// The part of diagnose_nodes that concerns the network between the nodes.
class NetworkEvaluator {
 public:
  NetworkEvaluator(const JobSpec& spec, const CheckResult& result, DiagnosticCollector& collector)
      : spec_(spec), result_(result), collector_(collector) {}

  void evaluate() {
    diagnose_names();
    diagnose_machines();
    if (!result_.network) return;
    if (!*result_.network) {
      auto [text, advice] = advice_apart(result_.network->error().text);
      collector_.add(Severity::kError, "network", {}, std::move(text), std::move(advice));
      return;
    }
    diagnose_interfaces();
    diagnose_rejected_networks();
    diagnose_ports();
  }

 private:
  void diagnose_interfaces();
  void diagnose_rejected_networks();
  void diagnose_names();
  void diagnose_machines();
  void diagnose_ports();
  const std::string* given(std::size_t node, std::string_view name) const;

  const JobSpec& spec_;
  const CheckResult& result_;
  DiagnosticCollector& collector_;
};

void NetworkEvaluator::diagnose_interfaces() {
  const NetChoice& choice = **result_.network;
  for (std::size_t k = 0; k < result_.networked.size() && !choice.one_machine; ++k) {
    const CheckedNode& node = result_.nodes[result_.networked[k]];
    const std::string& local = result_.networked[k] == 0 ? result_.master_addr : node.local;
    if (choice.route(result_.master_addr).interfaces[k].empty() &&
        interface_of(node.hello.interfaces, local).empty()) {
      collector_.add(Severity::kWarning, "network", {result_.networked[k]},
                     "the workers' interface is ambiguous", "name the network with --network");
    }
  }
}

void NetworkEvaluator::diagnose_machines() {
  std::vector<NodeNetwork> networks;
  for (std::size_t i = 0; i < result_.nodes.size(); ++i) {
    const CheckedNode& node = result_.nodes[i];
    networks.push_back(
        node_network(spec_, spec_.hosts[i], node.up ? node.hello : rendezvous::Hello(), node.connected));
  }
  if (auto twins = repeated_machine(networks); !twins.empty()) {
    collector_.add(Severity::kWarning, "network", std::move(twins), "these are one machine",
                   "list it once, with slots=N, or its ranks share LOCAL_RANK and GPU");
  }
}

/// Checks the interfaces that the user names for NCCL and Gloo. ddplaunch leaves these variables alone.
void NetworkEvaluator::diagnose_names() {
  for (std::size_t i = 0; i < result_.nodes.size(); ++i) {
    const CheckedNode& node = result_.nodes[i];
    if (!node.up) continue;
    const std::string advice = "correct it, or remove it to let ddplaunch set the node's interface";
    if (const std::string* value = given(i, "NCCL_SOCKET_IFNAME");
        value != nullptr && !nccl_finds(node.hello.interfaces, *value)) {
      collector_.add(Severity::kWarning, "network", {i},
                     "NCCL_SOCKET_IFNAME=" + *value + " matches no interface of this host", advice);
    }
    const std::string* value = given(i, "GLOO_SOCKET_IFNAME");
    const std::string lacking = value == nullptr ? "" : gloo_lacks(node.hello.interfaces, *value);
    if (!lacking.empty()) {
      collector_.add(Severity::kWarning, "network", {i},
                     "GLOO_SOCKET_IFNAME=" + *value + ", but there is no interface " + lacking, advice);
    }
  }
}

/// The value of --env, or of env: in the hostfile, which takes precedence; null: neither sets it.
const std::string* NetworkEvaluator::given(std::size_t node, std::string_view name) const {
  const std::string* found = nullptr;
  for (const auto* list : {&spec_.explicit_env, &spec_.hosts[node].env}) {
    for (const auto& [variable, value] : *list) {
      if (variable == name) found = &value;
    }
  }
  return found;
}

void NetworkEvaluator::diagnose_rejected_networks() {
  for (const CheckResult::RejectedNetwork& passed : result_.rejected_networks) {
    collector_.add(Severity::kWarning, "network", passed.nodes,
                   "it cannot reach " + spec_.hosts[0].name + " at " + passed.master_addr +
                       (passed.network.empty() ? "" : " (" + passed.network + ")") + ", so all nodes use " +
                       result_.master_addr,
                   "fix that network, or choose one with --network");
  }
}

void NetworkEvaluator::diagnose_ports() {
  const CheckedNode& first = result_.nodes[0];
  if (first.reach == CheckedNode::Reach::kFailed) {
    constexpr std::string_view kStore = "store: ";
    const bool named = first.reach_text.starts_with(kStore);
    auto [text, advice] = advice_apart(named ? first.reach_text.substr(kStore.size()) : first.reach_text);
    collector_.add(Severity::kError, "port", {0}, "the store could not be opened there: " + text,
                   std::move(advice));
  }
  for (std::size_t i = 1; i < result_.nodes.size(); ++i) {
    if (result_.nodes[i].reach != CheckedNode::Reach::kFailed) continue;
    collector_.add(
        Severity::kError, "port", {i},
        "it cannot reach " + spec_.hosts[0].name + " (" + result_.nodes[i].reach_text + ")",
        "open the ports between the nodes (--port-range bounds them), or choose a network with --network");
  }
}

class NodeEvaluator {
 public:
  NodeEvaluator(const JobSpec& spec, const CheckResult& result) : spec_(spec), result_(result) {}

  std::vector<CheckDiagnostic> evaluate() {
    for (std::size_t i = 0; i < result_.nodes.size(); ++i) {
      const CheckedNode& node = result_.nodes[i];
      if (node.error) diagnose_error(i, *node.error);
      if (node.facts) diagnose_facts(i, *node.facts);
      diagnose_clock(i, node);
    }
    for (const ErrorGroup& errors : errors_)
      collector_.add(Severity::kError, std::string(errors.item), errors.nodes, reason_text(errors.reason),
                     "");
    diagnose_plan();
    NetworkEvaluator(spec_, result_, collector_).evaluate();
    diagnose_gpus();
    diagnose_versions();
    return collector_.take();
  }

 private:
  void diagnose_error(std::size_t i, const Error& error);
  void diagnose_facts(std::size_t i, const NodeChecked& facts);
  void diagnose_limits(std::size_t i, const NodeChecked& facts);
  void diagnose_memory(std::size_t i, const NodeChecked& facts);
  void diagnose_clock(std::size_t i, const CheckedNode& node);
  void diagnose_plan();
  void diagnose_gpus();
  void diagnose_gpus_of(std::size_t i, const NodeChecked& facts);
  void diagnose_versions();
  void diagnose_equal(const std::string& name, const std::map<std::string, std::vector<std::size_t>>& values);
  bool any_gpu() const { return std::ranges::any_of(result_.nodes, sees_gpu); }
  std::optional<int> workers(std::size_t i) const {
    const rendezvous::RankPlan* plan = result_.planned();
    return plan ? std::optional(plan->assignments[i].local_world_size) : std::nullopt;
  }
  std::string names(const std::vector<std::size_t>& nodes) const {
    std::vector<std::string> all;
    for (const std::size_t i : nodes)
      all.push_back(spec_.hosts[i].name);
    return remote::fold_ranges(all);
  }

  /// Nodes that could not be reached for reasons that differ only in words about the host.
  struct ErrorGroup {
    std::string_view item;
    StartGroup reason;
    std::vector<std::size_t> nodes;
  };

  const JobSpec& spec_;
  const CheckResult& result_;
  std::vector<ErrorGroup> errors_;
  DiagnosticCollector collector_;
};

void NodeEvaluator::diagnose_error(std::size_t i, const Error& error) {
  if (error.code == ErrorCode::kCancelled && result_.stop_signal != 0) return;
  const bool agent = error.code == ErrorCode::kAgentMissing || error.code == ErrorCode::kAgentMismatch;
  const std::string& host = spec_.hosts[i].name;
  const std::string prefix = host + ": ";  // a diagnostic starts with its hosts in any case
  const std::string text = error.text.starts_with(prefix) ? error.text.substr(prefix.size()) : error.text;
  const std::string_view item = agent ? "agent" : "reach";
  const auto same = std::ranges::find_if(
      errors_, [&](ErrorGroup& known) { return known.item == item && join_group(known.reason, host, text); });
  if (same != errors_.end())
    same->nodes.push_back(i);
  else
    errors_.push_back({item, make_group(host, text), {i}});
}

void NodeEvaluator::diagnose_facts(std::size_t i, const NodeChecked& facts) {
  const std::pair<const char*, const std::string&> troubles[] = {{"system", facts.system_trouble},
                                                                 {"directory", facts.directory_trouble},
                                                                 {"environment", facts.environment_trouble},
                                                                 {"program", facts.program_trouble}};
  for (const auto& [item, trouble] : troubles) {
    if (trouble.empty()) continue;
    auto [text, advice] = advice_apart(trouble);
    // If the program was found nevertheless, the trouble is only a doubt.
    const bool doubt = &trouble == &facts.program_trouble && !facts.program.empty();
    collector_.add(doubt ? Severity::kWarning : Severity::kError, item, {i}, std::move(text),
                   std::move(advice));
  }
  diagnose_limits(i, facts);
  diagnose_memory(i, facts);
}

void NodeEvaluator::diagnose_limits(std::size_t i, const NodeChecked& facts) {
  const auto world = static_cast<std::uint64_t>(result_.planned() ? result_.planned()->world_size
                                                                  : static_cast<int>(result_.nodes.size()));
  const std::uint64_t need = kOwnNofile + 2 * world;
  const std::string nofile = "a worker may have only " + counted(facts.nofile, "file") + " open (ulimit -n)";
  const std::string raise =
      "raise nofile in /etc/security/limits.conf there, or in the service that starts sshd";
  if (facts.nofile < need) {
    collector_.error("limits", i, nofile + ", and needs about " + std::to_string(need), raise);
  } else if (facts.nofile < kUsualNofile) {
    collector_.warn("limits", i, nofile, raise);
  }
  if (!facts.infiniband.empty() && facts.memlock < kSmallMemlock) {
    collector_.warn(
        "limits", i,
        "workers may lock only " + format_bytes(facts.memlock) + " (ulimit -l), which " +
            "InfiniBand needs for its buffers",
        "set memlock to unlimited in /etc/security/limits.conf there, or in the service that starts sshd");
  }
  const auto count = workers(i);
  if (!count) return;
  const std::size_t files = agent_files(static_cast<std::size_t>(*count));
  if (facts.most_files < files) {
    collector_.error("limits", i,
                     "the agent needs " + std::to_string(files) + " open files for " +
                         counted(*count, "worker") + ", but the hard limit is " +
                         std::to_string(facts.most_files),
                     raise);
  }
  if (facts.processes < kTasksPerWorker * static_cast<unsigned>(*count)) {
    collector_.warn("limits", i,
                    "the user may have only " + counted(facts.processes, "process", "processes") +
                        " and threads (ulimit -u)",
                    "raise nproc in /etc/security/limits.conf there");
  }
}

void NodeEvaluator::diagnose_memory(std::size_t i, const NodeChecked& facts) {
  const std::string more = "in a container start it with --shm-size=8g or --ipc=host";
  if (facts.shm_size == 0) {
    collector_.warn("shm", i, "/dev/shm is missing; data loaders and NCCL need it for shared memory", more);
  } else if (facts.shm_free < kMiB) {
    collector_.error("shm", i, "/dev/shm is full (" + format_bytes(facts.shm_size) + ")",
                     "remove the files there that dead jobs left");
  } else if (facts.shm_size < kSmallShm) {
    collector_.warn("shm", i, "/dev/shm has only " + format_bytes(facts.shm_size), more);
  } else if (facts.shm_free < kSmallShm) {
    collector_.warn("shm", i, "/dev/shm has only " + format_bytes(facts.shm_free) + " free",
                    "remove the files there that dead jobs left");
  }
  for (const rendezvous::NodeDisk& disk : facts.disks) {
    if (!disk.trouble.empty()) {
      collector_.warn("disk", i, disk.path + ": " + disk.trouble, "");
    } else if (disk.free < kSmallDisk) {
      collector_.warn("disk", i, disk.path + " has only " + format_bytes(disk.free) + " free",
                      "free space there");
    } else if (!disk.writable && disk.path != facts.directory) {
      collector_.warn("disk", i, disk.path + " cannot be written to", "set TMPDIR to a writable directory");
    }
  }
}

void NodeEvaluator::diagnose_clock(std::size_t i, const CheckedNode& node) {
  if (!node.wall_ahead) return;
  const auto apart = *node.wall_ahead < std::chrono::nanoseconds(0) ? -*node.wall_ahead : *node.wall_ahead;
  if (apart <= kClocksApart + node.wall_error) return;
  const std::string text =
      format_text("its clock is %.1f s %s the master's", std::chrono::duration<double>(apart).count(),
                  *node.wall_ahead < std::chrono::nanoseconds(0) ? "behind" : "ahead of");
  collector_.warn("clock", i, text, "start chrony or another time service there");
}

void NodeEvaluator::diagnose_plan() {
  if (result_.plan && !*result_.plan)
    collector_.add(Severity::kError, "plan", {}, result_.plan->error().text, "");
}

void NodeEvaluator::diagnose_gpus() {
  std::map<std::string, std::vector<std::size_t>> models;
  const bool any = any_gpu();
  for (std::size_t i = 0; i < result_.nodes.size(); ++i) {
    const CheckedNode& node = result_.nodes[i];
    if (!node.facts) continue;
    const auto count = workers(i);
    const auto gpus = static_cast<int>(node.hello.gpus);
    const int usable =
        spec_.hosts[i].devices.empty() ? gpus : static_cast<int>(spec_.hosts[i].devices.size());
    if (any && count && *count > usable && spec_.nproc.rule != rendezvous::ProcsRule::kCpu) {
      collector_.add(spec_.nproc.oversubscribe ? Severity::kWarning : Severity::kError, "gpus", {i},
                     counted(static_cast<std::uint64_t>(*count), "worker") + ", but " +
                         counted(static_cast<std::uint64_t>(usable), "GPU"),
                     "lower slots= or --nproc-per-node, or check why the driver shows no more GPUs");
    }
    diagnose_gpus_of(i, *node.facts);
    for (const rendezvous::NodeGpu& gpu : node.facts->gpus) {
      auto& nodes = models[gpu.name];
      if (nodes.empty() || nodes.back() != i) nodes.push_back(i);
    }
  }
  if (models.size() > 1) diagnose_equal("GPU model", models);
}

void NodeEvaluator::diagnose_gpus_of(std::size_t i, const NodeChecked& facts) {
  if (!facts.gpus_trouble.empty()) collector_.warn("gpus", i, facts.gpus_trouble, "");
  const std::vector<std::string>& wanted = spec_.hosts[i].devices;
  const bool none = facts.gpus.empty() && result_.nodes[i].hello.gpus == 0;
  if (none && !wanted.empty() && spec_.nproc.rule != rendezvous::ProcsRule::kCpu) {
    // If no host has GPUs, the numbers only count workers, and the job runs.
    const bool missing = any_gpu() || !facts.gpus_trouble.empty();
    collector_.add(
        missing ? Severity::kError : Severity::kWarning, "gpus", {i},
        "gpus= or --include names " + counted(wanted.size(), "GPU") + ", but it has none",
        "correct gpus= or --include, check why the driver shows none, or use --nproc-per-node cpu");
  }
  for (const std::string& device : wanted) {
    const auto number = whole_number(device, 65'535);
    if (number && !facts.gpus.empty() && *number >= facts.gpus.size()) {
      collector_.error("gpus", i,
                       "gpus= names GPU " + device + ", but it has " + counted(facts.gpus.size(), "GPU") +
                           ", numbered from 0",
                       "correct gpus= or --include");
    }
  }
  for (std::size_t k = 0; k < facts.gpus.size(); ++k) {
    const rendezvous::NodeGpu& gpu = facts.gpus[k];
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), std::to_string(k)) == wanted.end())
      continue;
    const std::string name = "GPU " + std::to_string(k);
    const std::string room = format_bytes(gpu.memory_free) + " of " + format_bytes(gpu.memory) + " are free";
    if (gpu.processes > 0) {
      collector_.warn("gpu_memory", i, name + " is in use by " + gpu.holders + "; " + room,
                      "end that process, or exclude the GPU with --exclude");
    } else if (gpu.memory > 0 && gpu.memory_free < gpu.memory - gpu.memory / 10) {
      collector_.warn("gpu_memory", i, name + ": only " + room + ", although no process is visible on it",
                      "another container may use it; run nvidia-smi on the host itself");
    }
  }
}

void NodeEvaluator::diagnose_versions() {
  std::map<std::string, std::map<std::string, std::vector<std::size_t>>> versions;
  for (std::size_t i = 0; i < result_.nodes.size(); ++i) {
    if (!result_.nodes[i].facts) continue;
    for (const auto& [name, value] : result_.nodes[i].facts->versions)
      versions[name][value].push_back(i);
  }
  for (const auto& [name, values] : versions) {
    if (values.size() > 1) diagnose_equal(name, values);
  }
}

/// The majority counts as right, and the others are named. In a tie, the first host's value counts as right.
void NodeEvaluator::diagnose_equal(const std::string& name,
                                   const std::map<std::string, std::vector<std::size_t>>& values) {
  auto most = values.begin();
  for (auto it = values.begin(); it != values.end(); ++it) {
    const auto& best = most->second;
    if (it->second.size() > best.size() ||
        (it->second.size() == best.size() && it->second.front() < best.front()))
      most = it;
  }
  for (auto it = values.begin(); it != values.end(); ++it) {
    if (it == most) continue;
    // Ranks with different versions of NCCL refuse each other. Other differences may work.
    const bool breaks = name == "NCCL";
    collector_.add(breaks ? Severity::kError : Severity::kWarning, "versions", it->second,
                   name + " " + it->first + ", but " + most->first + " on " + names(most->second),
                   name == "GPU model"
                       ? "the slowest GPU sets the pace; choose hosts with --include or --exclude"
                       : "install the same version on all hosts");
  }
}

}  // namespace

std::vector<CheckDiagnostic> diagnose_nodes(const JobSpec& spec, const CheckResult& result) {
  return NodeEvaluator(spec, result).evaluate();
}

std::vector<CheckDiagnostic> history_diagnostics(const JobSpec& spec, const CheckResult& result,
                                                 const std::vector<HostRecord>& records) {
  DiagnosticCollector collector;
  auto record = records.begin();  // they have the order of the hosts
  for (std::size_t i = 0; i < result.nodes.size() && record != records.end(); ++i) {
    if (spec.hosts[i].name != record->host) continue;
    collector.warn("history", i, record->text(),
                   record->is_bad() ? "leave it to the spares with --avoid-bad-hosts, or after a repair "
                                      "forget them (ddplaunch hosts --forget)"
                                    : "");
    ++record;
  }
  return collector.take();
}

int check_exit_code(const CheckResult& result, const std::vector<CheckDiagnostic>& diagnostics) {
  if (result.stop_signal != 0) return 128 + result.stop_signal;
  for (const CheckedNode& node : result.nodes) {
    if (node.error) return exit_code_of(*node.error);
  }
  const bool broken = std::any_of(diagnostics.begin(), diagnostics.end(),
                                  [](const CheckDiagnostic& f) { return f.level == Severity::kError; });
  return broken ? exit_code_of(Error{ErrorCode::kRefused, "", 0}) : 0;
}

bool nccl_finds(const std::vector<Interface>& interfaces, std::string_view value) {
  const bool except = value.starts_with('^');
  if (except) value.remove_prefix(1);
  const bool whole = value.starts_with('=');
  if (whole) value.remove_prefix(1);
  const std::vector<std::string_view> names = listed(value);
  if (names.empty()) return true;  // NCCL treats that as unset
  return std::any_of(interfaces.begin(), interfaces.end(), [&](const Interface& interface) {
    const auto fits = [&](std::string_view name) {
      // "eth0:1" contains a port, too.
      name = name.substr(0, name.find(':'));
      return whole ? interface.name == name : interface.name.starts_with(name);
    };
    return std::any_of(names.begin(), names.end(), fits) != except;
  });
}

std::string gloo_lacks(const std::vector<Interface>& interfaces, std::string_view value) {
  std::string lacking;
  for (const std::string_view name : listed(value)) {
    const auto is_it = [&](const Interface& interface) { return interface.name == name; };
    if (std::any_of(interfaces.begin(), interfaces.end(), is_it)) continue;
    lacking += (lacking.empty() ? "" : ", ") + std::string(name);
  }
  return lacking;
}

bool one_of_several(const CheckResult& result) {
  return result.networked.size() == 1 && result.nodes.size() > 1;
}

std::string network_reason(const CheckResult& result) {
  const NetChoice& choice = **result.network;
  if (result.rejected_networks.empty()) return choice.reason;
  const std::string& network = choice.route(result.master_addr).network;
  return (network.empty() ? "" : network + ": ") + result.master_addr + ", which all nodes reach";
}

namespace {

using Json = nlohmann::json;
using Severity = CheckDiagnostic::Severity;

constexpr std::string_view kSchema = "ddp-train-record/1";

std::string use_of(DeepTest test) {
  return test == DeepTest::kHealth ? "health" : "bench";
}

const char* item_of(DeepTest test) {
  return test == DeepTest::kHealth ? "health" : "collectives";
}

/// The words of the command if they are this test's. Else the test's own, on the device that they ask for.
std::vector<std::string> trainer_options(const WorkerCommand& command, DeepTest test, bool gpus) {
  const bool is_train = command.kind == WorkerCommand::Kind::kTrain;
  const std::vector<std::string>& words = command.argv;
  const std::string first = words.empty() ? "" : words.front();
  if (is_train && (first == use_of(test) || first == "--" + use_of(test))) return words;
  std::vector<std::string> device;
  for (std::size_t i = 0; is_train && i < words.size(); ++i) {
    if (words[i].starts_with("--device=")) device = {words[i]};
    if (words[i] == "--device" && i + 1 < words.size()) device = {words[i], words[i + 1]};
  }
  gpus = gpus && (device.empty() || !device.back().ends_with("cpu"));
  std::vector<std::string> options{"health"};
  if (test != DeepTest::kHealth)
    options = {"bench", "allreduce", "-b", "64K", "-e", gpus ? "1G" : "16M",
               "-f",    "4",         "-n", "10",  "-w", "2"};
  options.insert(options.end(), device.begin(), device.end());
  return options;
}

/// The trainer's record in `output`; unset if no line holds one.
std::optional<Json> record_of(const std::string& output) {
  for (const std::string_view line : split_lines(output)) {
    if (!line.starts_with('{')) continue;
    Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && json.value("schema", "") == kSchema && json.contains("passed")) return json;
  }
  return std::nullopt;
}

/// Returns ddplaunch's last line on stderr, and the last one of a worker behind it.
std::string last_lines(const std::string& text) {
  std::string own;
  std::string worker;
  for (const std::string_view line : split_lines(text)) {
    if (line.empty() || line.starts_with(' ')) continue;  // a report is indented
    (line.starts_with("ddplaunch: ") ? own : worker) = line;
  }
  return own + (own.empty() || worker.empty() ? "" : "; ") + worker;
}

std::string advice_of(const std::string& item) {
  static const std::map<std::string, std::string> kAdvice = {
      {"gemm", "exclude the host with --exclude; its processor, GPU or power is faulty"},
      {"gradient", "exclude the host with --exclude; its processor, GPU or memory is faulty"},
      {"memory", "exclude the host with --exclude, and have its memory tested"},
      {"left out", "install cuBLAS (libcublasLt) there, or end what holds the GPU, and test again"},
      {"ecc", "have the GPU's memory tested"},
      {"xid", "find the Xid in NVIDIA's list, and read the kernel log of that host"},
      {"pair", "check cables, network card and MTU of both hosts"},
      {"sum", "exclude the host with --exclude; its memory or network is faulty"},
      {"slow", "check other load, power settings and cooling of that host"},
      {"pause",
       "find what stops the process on that host: other load, a debugger, a limit of its control group"},
      {"link", "check the seat and the cables of that GPU"},
      {"throttle", "check its cooling and power"}};
  const auto found = kAdvice.find(item);
  return found == kAdvice.end() ? "" : found->second;
}

/// The node on which a rank ran; empty if there is no plan.
std::vector<std::size_t> nodes_of(const CheckResult& result, int rank) {
  if (!result.planned()) return {};
  const auto& nodes = result.planned()->assignments;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (rank >= nodes[i].first_rank && rank < nodes[i].first_rank + nodes[i].local_world_size) return {i};
  }
  return {};
}

CheckDiagnostic health_finding(const CheckResult& result, const Json& fields) {
  CheckDiagnostic diagnostic;
  diagnostic.level = fields.value("level", "") == "warning" ? Severity::kWarning : Severity::kError;
  diagnostic.item = item_of(DeepTest::kHealth);
  diagnostic.text = fields.value("text", "?");
  if (!fields.contains("rank")) return diagnostic;  // an error of the job, whose text has the advice
  const int rank = fields.value("rank", 0);
  diagnostic.nodes = nodes_of(result, rank);
  diagnostic.text =
      "rank " + std::to_string(rank) + ", " + fields.value("device", "?") + ": " + diagnostic.text;
  diagnostic.advice = advice_of(fields.value("item", ""));
  return diagnostic;
}

}  // namespace

JobSpec deep_job(const JobSpec& spec, const CheckResult& result, DeepTest test, const std::string& job_dir,
                 const std::string& min_busbw) {
  JobSpec job = spec;
  const bool gpus = std::ranges::any_of(result.nodes, sees_gpu);
  job.command = {WorkerCommand::Kind::kTrain, trainer_options(spec.command, test, gpus), ""};
  // Use stdout, which arrives from every host; a file of rank 0 would stay on that host.
  job.command.argv.insert(job.command.argv.end(), {"--json", "/dev/stdout"});
  if (test == DeepTest::kCollectives && !min_busbw.empty())
    job.command.argv.insert(job.command.argv.end(), {"--min-busbw", min_busbw});
  job.job_dir = job_dir;
  job.fallback_job_dir.clear();
  job.report_path.clear();
  job.output.tensorboard.clear();
  job.host_history.clear();
  job.hosts.resize(hosts_used(spec));
  if (spec.spares > 0)
    job.hosts.resize(job.hosts.size() -
                     std::min(job.hosts.size() - 1, static_cast<std::size_t>(spec.spares)));
  job.min_nodes = job.max_nodes = job.spares = job.max_restarts = 0;
  job.hang_timeout = job.report_stalls = std::chrono::milliseconds(0);
  job.stdin_to_rank0 = false;
  job.output = OutputOptions();
  job.output.label.clear();
  job.output.bars = Bars::kOff;
  job.output.console = ConsolePolicy::kBlock;
  job.quiet = true;
  return job;
}

std::vector<CheckDiagnostic> deep_diagnostics(const CheckResult& result, const DeepRun& run) {
  const std::string name = "train " + use_of(run.test);
  std::vector<CheckDiagnostic> diagnostics;
  const std::optional<Json> record = record_of(run.output);
  if (!record) {
    const std::string why = last_lines(run.errors);
    diagnostics.push_back({Severity::kError,
                           item_of(run.test),
                           {},
                           name + " gave no result and ended with exit code " +
                               std::to_string(run.exit_code) + (why.empty() ? "" : ": " + why),
                           "run it directly on these hosts to see its full output; the words train --device "
                           "cpu test the CPUs instead"});
    return diagnostics;
  }
  for (const Json& fields : record->value("findings", Json::array())) {
    if (fields.is_object()) diagnostics.push_back(health_finding(result, fields));
  }
  const bool passed = record->value("passed", false) && run.exit_code == 0;
  const bool fields =
      std::any_of(diagnostics.begin(), diagnostics.end(),
                  [](const CheckDiagnostic& diagnostic) { return diagnostic.level == Severity::kError; });
  if (passed || fields) return diagnostics;
  const std::string fault = record->value("fault", "");
  const std::string last = last_lines(run.errors);
  diagnostics.push_back(
      {Severity::kError,
       item_of(run.test),
       {},
       !fault.empty() ? fault
                      : name + " ended with exit code " + std::to_string(run.exit_code) +
                            (last.empty() ? "" : ": " + last),
       run.test == DeepTest::kCollectives ? "train bench pairs names the hosts that are slow" : ""});
  return diagnostics;
}

std::string deep_table(const DeepRun& run) {
  std::string table;
  for (const std::string_view line : split_lines(run.output))
    if (!line.starts_with('{')) table += std::string(line) + '\n';
  return table;
}

bool deep_has_result(const DeepRun& run) {
  return record_of(run.output).has_value();
}

std::string deep_tested(const DeepRun& run) {
  const std::optional<Json> record = record_of(run.output);
  std::string text = record ? record->value("tested", "") : "";
  if (const std::string head = "tested: "; text.starts_with(head)) text.erase(0, head.size());
  return text.empty() ? "" : "train " + use_of(run.test) + ": " + text;
}

void add_diagnostics(std::vector<CheckDiagnostic>& all, std::vector<CheckDiagnostic> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
  std::stable_sort(all.begin(), all.end(), [](const CheckDiagnostic& a, const CheckDiagnostic& b) {
    return a.level == Severity::kError && b.level != Severity::kError;
  });
}

}  // namespace ddp::launcher
