#include "launcher/check/check_network.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace ddp::launcher {
namespace {

using Severity = CheckDiagnostic::Severity;
using rendezvous::Interface;

std::vector<std::string_view> listed(std::string_view value) {
  std::vector<std::string_view> names;
  for (std::size_t from = 0; from <= value.size();) {
    const std::size_t end = std::min(value.find(',', from), value.size());
    if (end > from) names.push_back(value.substr(from, end - from));
    from = end + 1;
  }
  return names;
}

class NetworkEvaluator {
 public:
  NetworkEvaluator(const JobSpec& spec, const CheckResult& result) : spec_(spec), result_(result) {}

  std::vector<CheckDiagnostic> evaluate() {
    diagnose_names();
    diagnose_machines();
    if (!result_.network) return std::move(list_);
    if (!*result_.network) {
      auto [text, advice] = advice_apart(result_.network->error().text);
      add(Severity::kError, "network", {}, std::move(text), std::move(advice));
      return std::move(list_);
    }
    diagnose_interfaces();
    diagnose_rejected_networks();
    diagnose_ports();
    return std::move(list_);
  }

 private:
  void diagnose_interfaces();
  void diagnose_rejected_networks();
  void diagnose_names();
  void diagnose_machines();
  void diagnose_ports();
  const std::string* given(std::size_t node, std::string_view name) const;
  void add(Severity level, const char* item, std::vector<std::size_t> nodes, std::string text,
           std::string advice) {
    list_.push_back({level, item, std::move(nodes), std::move(text), std::move(advice)});
  }

  const JobSpec& spec_;
  const CheckResult& result_;
  std::vector<CheckDiagnostic> list_;
};

void NetworkEvaluator::diagnose_interfaces() {
  const NetChoice& choice = **result_.network;
  for (std::size_t k = 0; k < result_.networked.size() && !choice.one_machine; ++k) {
    const CheckedNode& node = result_.nodes[result_.networked[k]];
    const std::string& local = result_.networked[k] == 0 ? result_.master_addr : node.local;
    if (choice.route(result_.master_addr).interfaces[k].empty() &&
        interface_of(node.hello.interfaces, local).empty()) {
      add(Severity::kWarning, "network", {result_.networked[k]}, "the workers' interface is ambiguous",
          "name the network with --network");
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
    add(Severity::kWarning, "network", std::move(twins), "these are one machine",
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
      add(Severity::kWarning, "network", {i},
          "NCCL_SOCKET_IFNAME=" + *value + " matches no interface of this host", advice);
    }
    const std::string* value = given(i, "GLOO_SOCKET_IFNAME");
    const std::string lacking = value == nullptr ? "" : gloo_lacks(node.hello.interfaces, *value);
    if (!lacking.empty()) {
      add(Severity::kWarning, "network", {i},
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
    add(Severity::kWarning, "network", passed.nodes,
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
    add(Severity::kError, "port", {0}, "the store could not be opened there: " + text, std::move(advice));
  }
  for (std::size_t i = 1; i < result_.nodes.size(); ++i) {
    if (result_.nodes[i].reach != CheckedNode::Reach::kFailed) continue;
    add(Severity::kError, "port", {i},
        "it cannot reach " + spec_.hosts[0].name + " (" + result_.nodes[i].reach_text + ")",
        "open the ports between the nodes (--port-range bounds them), or choose a network with --network");
  }
}

}  // namespace

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

std::vector<CheckDiagnostic> network_diagnostics(const JobSpec& spec, const CheckResult& result) {
  return NetworkEvaluator(spec, result).evaluate();
}

std::pair<std::string, std::string> advice_apart(const std::string& text) {
  const std::size_t semicolon = text.find("; ");
  if (semicolon == std::string::npos) return {text, ""};
  return {text.substr(0, semicolon), text.substr(semicolon + 2)};
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

}  // namespace ddp::launcher
