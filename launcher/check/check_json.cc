// The JSON of `ddplaunch check` and `ddplaunch hosts`; docs/users/check.md describes its shape.
#include <chrono>
#include <utility>

#include "base/safe_text.h"
#include "launcher/check/check_network.h"
#include "launcher/check/check_text.h"
#include "launcher/report/json_values.h"

namespace ddp::launcher {
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
  return escape_unsafe_in_json(json.dump(2, ' ', false, OrderedJson::error_handler_t::replace)) + '\n';
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
                   {"findings", diagnostics_json(spec, diagnostics)},
                   {"hosts", std::move(nodes)}});
}

std::string hosts_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics) {
  OrderedJson nodes = OrderedJson::array();
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    OrderedJson node = node_json(spec, result, i);
    const bool planned = result.plan && *result.plan;
    node["slots"] = spec.hosts[i].slots ? OrderedJson(*spec.hosts[i].slots) : OrderedJson();
    const bool spare = planned && (*result.plan)->nodes[i].local_world_size == 0;
    node["node_rank"] = spare ? OrderedJson() : OrderedJson(i);
    node["first_rank"] = planned && !spare ? OrderedJson((*result.plan)->nodes[i].first_rank) : OrderedJson();
    node["workers"] = planned ? OrderedJson((*result.plan)->nodes[i].local_world_size) : OrderedJson();
    node["reason"] = planned ? OrderedJson((*result.plan)->nodes[i].reason) : OrderedJson();
    node["variables"] = node_variables(spec, result, i);
    nodes.push_back(std::move(node));
  }
  const bool planned = result.plan && *result.plan;
  return document({{"format", kFormat},
                   {"exit_code", check_exit_code(result, diagnostics)},
                   {"interrupted", result.stop_signal != 0},
                   {"world_size", planned ? OrderedJson((*result.plan)->world_size) : OrderedJson()},
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
  const OrderedJson json{{"job", spec.job_id}, {"hosts", std::move(hosts)}};
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

}  // namespace ddp::launcher
