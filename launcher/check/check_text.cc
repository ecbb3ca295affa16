#include "launcher/check/check_diagnosis.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <utility>

#include "base/text.h"
#include "launcher/report/host_texts.h"
#include "launcher/report/report_json.h"
#include "remote/hosts/host.h"

namespace ddp::launcher {
namespace {

using Severity = CheckDiagnostic::Severity;

/// "+0.3 ms", "-2.1 s".
std::string offset_text(std::chrono::nanoseconds offset) {
  const double ms = std::chrono::duration<double, std::milli>(offset).count();
  return ms > -1000 && ms < 1000 ? format_text("%+.1f ms", ms) : format_text("%+.1f s", ms / 1000);
}

std::string gpus_text(const CheckedNode& node) {
  if (node.hello.gpus == 0 && (!node.facts || node.facts->gpus.empty())) return {};
  std::string text = std::to_string(node.hello.gpus);
  if (node.facts && !node.facts->gpus.empty()) text += ' ' + node.facts->gpus.front().name;
  return text;
}

std::string gpu_memory_text(const rendezvous::NodeChecked& facts) {
  if (facts.gpus.empty()) return {};
  std::uint64_t least = ~std::uint64_t{0};
  for (const rendezvous::NodeGpu& gpu : facts.gpus)
    least = std::min(least, gpu.memory_free);
  return format_bytes(least);
}

std::string disk_text(const rendezvous::NodeChecked& facts) {
  if (facts.disks.empty()) return {};
  std::uint64_t least = ~std::uint64_t{0};
  for (const rendezvous::NodeDisk& disk : facts.disks) {
    if (disk.size > 0) least = std::min(least, disk.free);
  }
  return least == ~std::uint64_t{0} ? "?" : format_bytes(least);
}

TextTable::Cell verdict(const std::string& trouble) {
  return trouble.empty() ? TextTable::Cell("ok") : TextTable::Cell("no", Colour::kBad);
}

TextTable::Cell program_verdict(const rendezvous::NodeChecked& facts) {
  if (!facts.program.empty() && !facts.program_trouble.empty()) return {"?", Colour::kDoubtful};
  return verdict(facts.program_trouble);
}

/// Summarizes the diagnostics of one host.
TextTable::Cell outcome(const CheckedNode& node, std::size_t index,
                        const std::vector<CheckDiagnostic>& diagnostics) {
  std::size_t errors = 0;
  std::size_t warnings = 0;
  for (const CheckDiagnostic& diagnostic : diagnostics) {
    if (!std::binary_search(diagnostic.nodes.begin(), diagnostic.nodes.end(), index)) continue;
    ++(diagnostic.level == Severity::kError ? errors : warnings);
  }
  if (node.error && node.error->code == ErrorCode::kCancelled)
    return {node.up ? "not finished" : "not asked", Colour::kBad};
  if (node.error) return {"FAILED", Colour::kBad};
  if (errors > 0) return {counted(errors, "error"), Colour::kBad};
  if (warnings > 0) return {counted(warnings, "warning"), Colour::kDoubtful};
  return {"ok", Colour::kGood};
}

/// A line below the table: problems that differ only in what identifies the host.
struct DiagnosticLine {
  Severity level;
  std::string item;
  StartGroup group;  ///< hosts: empty for the job as a whole
};

std::vector<DiagnosticLine> diagnostic_lines(const JobSpec& spec,
                                             const std::vector<CheckDiagnostic>& diagnostics) {
  std::vector<DiagnosticLine> lines;
  for (const CheckDiagnostic& diagnostic : diagnostics) {
    const std::string reason = diagnostic.text + (diagnostic.advice.empty() ? "" : "; " + diagnostic.advice);
    const auto joins = [&](DiagnosticLine& line) {
      // Figures of hosts that answered stay; only why a host could not be asked is shortened.
      const bool unasked = diagnostic.item == "reach" || diagnostic.item == "agent";
      return unasked && diagnostic.nodes.size() == 1 && !line.group.hosts.empty() &&
             line.level == diagnostic.level && line.item == diagnostic.item &&
             join_group(line.group, spec.hosts[diagnostic.nodes.front()].name, reason);
    };
    if (std::any_of(lines.begin(), lines.end(), joins)) continue;
    DiagnosticLine line{diagnostic.level, diagnostic.item, make_group("", reason)};
    line.group.hosts.clear();
    for (const std::size_t i : diagnostic.nodes)
      line.group.hosts.push_back(spec.hosts[i].name);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string diagnostics_text(const JobSpec& spec, const std::vector<CheckDiagnostic>& diagnostics,
                             bool colours) {
  std::string text;
  for (const DiagnosticLine& line : diagnostic_lines(spec, diagnostics)) {
    const bool error = line.level == Severity::kError;
    text += colours ? (error ? "\x1b[31m" : "\x1b[33m") : "";
    text += error ? "error" : "warning";
    text += colours ? "\x1b[0m: " : ": ";
    if (!line.group.hosts.empty()) text += group_hosts_text(line.group) + ": ";
    text += reason_text(line.group) + '\n';
  }
  return text;
}

/// The node's index among the nodes for which the network was chosen.
std::size_t place_of(const CheckResult& result, std::size_t node) {
  const auto at = std::find(result.networked.begin(), result.networked.end(), node);
  return static_cast<std::size_t>(at - result.networked.begin());
}

std::string network_line(const CheckResult& result) {
  if (!result.network || !*result.network || one_of_several(result)) return {};
  return "network: " + network_reason(result) + '\n';
}

std::string limit_text(std::uint64_t limit, const char* of) {
  return limit == ~std::uint64_t{0} ? std::string("any number of ") + of : std::to_string(limit) + ' ' + of;
}

std::string list_text(const std::vector<std::string>& names) {
  return names.empty() ? "none" : join(names, ", ");
}

std::string limit_time(const TimeLimit& limit) {
  return limit.after.count() == 0 ? "never" : format_duration(limit.after);
}

std::string limits_text(const std::vector<TimeLimit>& limits) {
  if (limits.empty()) return {};
  TextTable table;
  table.add({"after", "program", "limit", "effect"});
  for (const TimeLimit& limit : limits)
    table.add(
        {limit_time(limit), limit.owner, limit.name, limit.effect + (limit.is_assumed ? " (assumed)" : "")});
  return "time-outs:\n" + table.text() + '\n';
}

/// Describes a machine that is checked alone: what jobs find there.
std::string machine_text(const CheckedNode& node, const rendezvous::NodeChecked& facts) {
  std::vector<std::string> features, versions, gpus;
  for (const auto& [name, trouble] : facts.features)
    features.push_back(name + (trouble.empty() ? "" : ": no (" + one_line(trouble) + ")"));
  for (const auto& [name, version] : facts.versions)
    versions.push_back(name + ' ' + version);
  for (const rendezvous::NodeGpu& gpu : facts.gpus)
    gpus.push_back(gpu.name + " (" + format_bytes(gpu.memory_free) + " of " + format_bytes(gpu.memory) +
                   " free)");
  if (gpus.empty() && node.hello.gpus > 0) gpus.push_back(std::to_string(node.hello.gpus));
  std::string text = "kernel: " + facts.system + "\nused by jobs: " + list_text(features) +
                     "\nGPUs: " + list_text(gpus) + "\nlibraries: " + list_text(versions) +
                     "\nInfiniBand: " + list_text(facts.infiniband) +
                     "\nlimits: " + limit_text(facts.nofile, "open files") + ", " +
                     limit_text(facts.processes, "processes") + ", ";
  text += facts.memlock == ~std::uint64_t{0} ? "any amount" : format_bytes(facts.memlock);
  return text + " of locked memory\n";
}

}  // namespace

std::string chosen_interface(const CheckResult& result, std::size_t node) {
  if (!result.network || !*result.network || one_of_several(result)) return {};
  const auto& interfaces = (*result.network)->route(result.master_addr).interfaces;
  const std::size_t k = place_of(result, node);
  if (k >= interfaces.size()) return {};
  if (!interfaces[k].empty()) return interfaces[k];
  // As in a job: use the address from which the node reached node 0.
  const CheckedNode& it = result.nodes[node];
  return interface_of(it.hello.interfaces, node == 0 ? result.master_addr : it.local);
}

std::string chosen_address(const CheckResult& result, std::size_t node) {
  const CheckedNode& it = result.nodes[node];
  const std::string interface = chosen_interface(result, node);
  if (!interface.empty()) {
    const auto& addresses = (*result.network)->route(result.master_addr).addresses;
    const std::size_t k = place_of(result, node);
    if (k < addresses.size() && !addresses[k].empty()) return addresses[k];
  }
  std::string any;
  for (const rendezvous::Interface& one : it.hello.interfaces) {
    if (one.name != interface) continue;
    if (one.address == it.connected) return one.address;  // an interface may have several addresses
    if (any.empty()) any = one.address;
  }
  return any.empty() ? it.connected : any;
}

std::vector<std::string> node_variables(const JobSpec& spec, const CheckResult& result, std::size_t node) {
  std::vector<std::string> names;
  const remote::Host& host = spec.hosts[node];
  const auto by_user = [&](const char* name) {
    const auto is_it = [&](const auto& variable) { return variable.first == name; };
    return std::any_of(spec.explicit_env.begin(), spec.explicit_env.end(), is_it) ||
           std::any_of(host.env.begin(), host.env.end(), is_it);
  };
  if (const std::string interface = chosen_interface(result, node); !interface.empty()) {
    if (!by_user("NCCL_SOCKET_IFNAME")) names.push_back("NCCL_SOCKET_IFNAME==" + interface);
    if (!by_user("GLOO_SOCKET_IFNAME")) names.push_back("GLOO_SOCKET_IFNAME=" + interface);
  }
  if (!host.devices.empty()) {
    const std::string devices = join(host.devices, ",");
    names.push_back("CUDA_VISIBLE_DEVICES=" + devices);
  }
  for (const auto& variable : host.env)
    names.push_back(variable.first);
  return names;
}

std::string check_text(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics, bool colours) {
  TextTable table;
  table.add({"host", "answer", "system", "CPUs", "GPUs", "free memory", "program", "directory", "address",
             "port", "clock", "files", "shm", "disk", "result"});
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    const CheckedNode& node = result.nodes[i];
    std::vector<TextTable::Cell> row = {
        spec.hosts[i].name,
        node.up ? format_text("%.2f s", std::chrono::duration<double>(node.took).count()) : "-"};
    if (node.facts) {
      const rendezvous::NodeChecked& facts = *node.facts;
      const bool program = !facts.program.empty() || !facts.program_trouble.empty();
      const std::array ports = {"-", "ok", "no"};
      row.insert(row.end(), {facts.os.empty() ? facts.system : facts.os,
                             std::to_string(node.hello.cpus),
                             gpus_text(node),
                             gpu_memory_text(facts),
                             program ? program_verdict(facts) : TextTable::Cell(),
                             verdict(facts.directory_trouble),
                             chosen_address(result, i),
                             {ports[static_cast<std::size_t>(node.reach)],
                              node.reach == CheckedNode::Reach::kFailed ? Colour::kBad : Colour::kNone},
                             node.wall_ahead ? offset_text(*node.wall_ahead) : "?",
                             std::to_string(facts.nofile),
                             format_bytes(facts.shm_free),
                             disk_text(facts)});
    } else {
      row.resize(14);
    }
    row.push_back(outcome(node, i, diagnostics));
    table.add(std::move(row));
  }
  table.omit_empty_columns();
  std::string text = table.text(colours) + '\n';
  if (result.nodes.size() == 1 && result.nodes[0].facts)
    text += machine_text(result.nodes[0], *result.nodes[0].facts);
  text += limits_text(result.time_limits);
  text += network_line(result) + diagnostics_text(spec, diagnostics, colours);
  if (diagnostics.empty() && result.stop_signal == 0) text += "no problems found\n";
  for (const std::string& tested : result.tested)
    text += "tested: " + tested + '\n';
  return text;
}

std::string hosts_text(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics) {
  const rendezvous::RankPlan* plan = result.planned();
  TextTable table;
  table.add({"node", "host", "ranks", "workers", "slots", "CPUs", "GPUs", "address", "interface",
             "variables of its own"});
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    const CheckedNode& node = result.nodes[i];
    const rendezvous::RankAssignment* ranks = plan != nullptr ? &plan->assignments[i] : nullptr;
    const bool spare = ranks != nullptr && ranks->local_world_size == 0;
    const auto& slots = spec.hosts[i].slots;
    table.add({spare ? "spare" : std::to_string(i), spec.hosts[i].name,
               spare              ? "-"
               : ranks != nullptr ? format_number_range(ranks->first_rank, ranks->local_world_size)
                                  : "?",
               spare              ? "-"
               : ranks != nullptr ? std::to_string(ranks->local_world_size) + " (" + plan->reasons[i] + ")"
                                  : "?",
               slots ? std::to_string(*slots) : "any", node.up ? std::to_string(node.hello.cpus) : "?",
               node.up ? std::to_string(node.hello.gpus) : "?", chosen_address(result, i),
               chosen_interface(result, i), join(node_variables(spec, result, i), " ")});
  }
  table.omit_empty_columns();
  std::string text = table.text() + '\n';
  if (plan != nullptr) text += "world size " + std::to_string(plan->world_size) + '\n';
  if (!result.master_addr.empty()) text += "MASTER_ADDR " + result.master_addr + '\n';
  text += network_line(result);
  if (result.nodes.size() < spec.hosts.size())
    text += "unused hosts: " + std::to_string(spec.hosts.size() - result.nodes.size()) + '\n';
  return text + diagnostics_text(spec, diagnostics, false);
}

std::string check_last_line(int exit_code, const CheckResult& result, const JobSpec& spec,
                            const std::vector<CheckDiagnostic>& diagnostics) {
  if (exit_code == 0) return {};
  const std::string begin = "exit " + std::to_string(exit_code) + ": ";
  if (result.stop_signal != 0)
    return begin + "stopped by the user" +
           (result.awaited.empty() ? "" : " while waiting for " + result.awaited);
  std::vector<std::string> failed;
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    if (result.nodes[i].error) failed.push_back(spec.hosts[i].name);
  }
  if (!failed.empty()) {
    return begin + counted(failed.size(), "host") + " of " + std::to_string(result.nodes.size()) +
           " could not be checked: " + remote::fold_ranges(failed);
  }
  const auto errors = static_cast<std::size_t>(
      std::count_if(diagnostics.begin(), diagnostics.end(),
                    [](const CheckDiagnostic& f) { return f.level == Severity::kError; }));
  return begin + "a job would fail, " + counted(errors, "error") + " found";
}

std::string clean_text(const JobSpec& spec, const CheckResult& result) {
  std::vector<std::pair<std::string, std::vector<std::string>>> hosts;  // by what was found there
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    const CheckedNode& node = result.nodes[i];
    std::string found;
    if (node.error || !node.facts) {
      found = "not known: " + (node.error ? one_line(node.error->text) : std::string("it was not asked"));
    } else {
      found = counted(node.facts->found, "process", "processes") + " found, " +
              std::to_string(node.facts->left.size()) + " left";
      for (std::size_t k = 0; k < node.facts->left.size(); ++k)
        found += (k == 0 ? ": " : ", ") + one_line(node.facts->left[k]);
    }
    auto same = std::ranges::find(hosts, found, [](const auto& group) { return group.first; });
    if (same == hosts.end()) same = hosts.insert(hosts.end(), {std::move(found), {}});
    same->second.push_back(spec.hosts[i].name);
  }
  std::string text;
  for (const auto& [found, names] : hosts)
    text += remote::fold_ranges(names) + ": " + found + '\n';
  return text;
}

// The JSON of `ddplaunch check` and `ddplaunch hosts`; docs/users/check.md describes its shape.
namespace {

constexpr int kFormat = 1;

OrderedJson limit_or_null(std::uint64_t limit) {
  return limit == ~std::uint64_t{0} ? OrderedJson() : OrderedJson(limit);
}

OrderedJson error_json(const Error& error) {
  return {{"kind", error_kind(error)}, {"text", error.text}};
}

OrderedJson diagnostics_json(const JobSpec& spec, const std::vector<CheckDiagnostic>& diagnostics) {
  OrderedJson list = OrderedJson::array();
  for (const CheckDiagnostic& diagnostic : diagnostics) {
    OrderedJson hosts = OrderedJson::array();
    for (const std::size_t i : diagnostic.nodes)
      hosts.push_back(spec.hosts[i].name);
    list.push_back({{"level", diagnostic.level == CheckDiagnostic::Severity::kError ? "error" : "warning"},
                    {"item", diagnostic.item},
                    {"hosts", std::move(hosts)},
                    {"text", diagnostic.text},
                    {"advice", text_or_null(diagnostic.advice)}});
  }
  return list;
}

OrderedJson limits_json(const std::vector<TimeLimit>& limits) {
  OrderedJson list = OrderedJson::array();
  for (const TimeLimit& limit : limits)
    list.push_back(
        {{"program", limit.owner},
         {"limit", limit.name},
         {"seconds", limit.after.count() == 0 ? OrderedJson() : OrderedJson(in_seconds(limit.after))},
         {"effect", limit.effect},
         {"assumed", limit.is_assumed}});
  return list;
}

OrderedJson network_json(const CheckResult& result) {
  if (!result.network || !*result.network || one_of_several(result)) return OrderedJson();
  const NetChoice& choice = **result.network;
  return {{"reason", network_reason(result)},
          {"one_machine", choice.one_machine},
          {"candidates", choice.master_addrs()},
          {"master_addr", text_or_null(result.master_addr)},
          {"port", result.store_port == 0 ? OrderedJson() : OrderedJson(result.store_port)}};
}

OrderedJson interfaces_json(const rendezvous::Hello& hello) {
  OrderedJson list = OrderedJson::array();
  for (const rendezvous::Interface& one : hello.interfaces) {
    list.push_back({{"name", one.name},
                    {"address", one.address},
                    {"prefix_length", one.prefix_length},
                    {"up", one.up},
                    {"loopback", one.loopback}});
  }
  return list;
}

OrderedJson gpus_json(const rendezvous::NodeChecked& facts) {
  OrderedJson list = OrderedJson::array();
  for (const rendezvous::NodeGpu& gpu : facts.gpus) {
    list.push_back({{"name", gpu.name},
                    {"memory", gpu.memory},
                    {"memory_free", gpu.memory_free},
                    {"processes", gpu.processes},
                    {"holders", text_or_null(gpu.holders)}});
  }
  return list;
}

OrderedJson disks_json(const rendezvous::NodeChecked& facts) {
  OrderedJson list = OrderedJson::array();
  for (const rendezvous::NodeDisk& disk : facts.disks) {
    list.push_back({{"path", disk.path},
                    {"size", disk.size},
                    {"free", disk.free},
                    {"writable", disk.writable},
                    {"trouble", text_or_null(disk.trouble)}});
  }
  return list;
}

OrderedJson facts_json(const rendezvous::NodeChecked& facts) {
  OrderedJson versions = OrderedJson::object();
  for (const auto& [name, value] : facts.versions)
    versions[name] = value;
  OrderedJson features = OrderedJson::object();
  for (const auto& [name, trouble] : facts.features)
    features[name] = text_or_null(trouble);
  return {{"os", text_or_null(facts.os)},
          {"kernel", facts.system},
          {"directory", text_or_null(facts.directory)},
          {"program", text_or_null(facts.program)},
          {"versions", std::move(versions)},
          {"gpus", gpus_json(facts)},
          {"infiniband", facts.infiniband},
          {"nofile", limit_or_null(facts.nofile)},
          {"memlock", limit_or_null(facts.memlock)},
          {"processes", limit_or_null(facts.processes)},
          {"shm", {{"size", facts.shm_size}, {"free", facts.shm_free}}},
          {"disks", disks_json(facts)},
          {"features", std::move(features)}};
}

OrderedJson node_json(const JobSpec& spec, const CheckResult& result, std::size_t index) {
  const CheckedNode& node = result.nodes[index];
  OrderedJson json = {{"host", spec.hosts[index].name},
                      {"error", node.error ? error_json(*node.error) : OrderedJson()},
                      {"answer_seconds", node.up ? OrderedJson(in_seconds(node.took)) : OrderedJson()}};
  if (!node.up) return json;
  json["hostname"] = node.hello.hostname;
  json["connected"] = text_or_null(node.connected);
  json["cpus"] = node.hello.cpus;
  json["gpu_count"] = node.hello.gpus;
  json["interface"] = text_or_null(chosen_interface(result, index));
  json["address"] = text_or_null(chosen_address(result, index));
  json["interfaces"] = interfaces_json(node.hello);
  json["clock_ahead_seconds"] = node.wall_ahead ? OrderedJson(in_seconds(*node.wall_ahead)) : OrderedJson();
  const bool tried = node.reach != CheckedNode::Reach::kNotTried;
  json["reaches_node_0"] = tried ? OrderedJson(node.reach == CheckedNode::Reach::kReached) : OrderedJson();
  if (node.facts) json.update(facts_json(*node.facts));
  return json;
}

/// Texts of other machines may hold any bytes.
std::string document(const OrderedJson& json) {
  return escape_unsafe_in_json(json_line(json, 2));
}

}  // namespace

std::string check_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics) {
  OrderedJson nodes = OrderedJson::array();
  for (std::size_t i = 0; i < result.nodes.size(); ++i)
    nodes.push_back(node_json(spec, result, i));
  return document({{"format", kFormat},
                   {"exit_code", check_exit_code(result, diagnostics)},
                   {"interrupted", result.stop_signal != 0},
                   {"network", network_json(result)},
                   {"timeouts", limits_json(result.time_limits)},
                   {"findings", diagnostics_json(spec, diagnostics)},
                   {"tested", result.tested},
                   {"hosts", std::move(nodes)}});
}

std::string hosts_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics) {
  const rendezvous::RankPlan* plan = result.planned();
  OrderedJson nodes = OrderedJson::array();
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    OrderedJson node = node_json(spec, result, i);
    const rendezvous::RankAssignment* ranks = plan != nullptr ? &plan->assignments[i] : nullptr;
    node["slots"] = spec.hosts[i].slots ? OrderedJson(*spec.hosts[i].slots) : OrderedJson();
    const bool spare = ranks != nullptr && ranks->local_world_size == 0;
    node["node_rank"] = spare ? OrderedJson() : OrderedJson(i);
    node["first_rank"] = ranks != nullptr && !spare ? OrderedJson(ranks->first_rank) : OrderedJson();
    node["workers"] = ranks != nullptr ? OrderedJson(ranks->local_world_size) : OrderedJson();
    node["reason"] = plan != nullptr ? OrderedJson(plan->reasons[i]) : OrderedJson();
    node["variables"] = node_variables(spec, result, i);
    nodes.push_back(std::move(node));
  }
  return document({{"format", kFormat},
                   {"exit_code", check_exit_code(result, diagnostics)},
                   {"interrupted", result.stop_signal != 0},
                   {"world_size", plan != nullptr ? OrderedJson(plan->world_size) : OrderedJson()},
                   {"unused_hosts", spec.hosts.size() - result.nodes.size()},
                   {"network", network_json(result)},
                   {"findings", diagnostics_json(spec, diagnostics)},
                   {"hosts", std::move(nodes)}});
}

std::string clean_json(const JobSpec& spec, const CheckResult& result) {
  OrderedJson hosts = OrderedJson::array();
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    const CheckedNode& node = result.nodes[i];
    hosts.push_back({{"host", spec.hosts[i].name},
                     {"found", node.facts ? OrderedJson(node.facts->found) : OrderedJson()},
                     {"left", node.facts ? OrderedJson(node.facts->left) : OrderedJson()},
                     {"error", node.error ? error_json(*node.error) : OrderedJson()}});
  }
  const OrderedJson json{{"format", 1}, {"job", spec.job_id}, {"hosts", std::move(hosts)}};
  return json_line(json, 1);
}

}  // namespace ddp::launcher
