#include "apps/ddplaunch/options/job_options.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/job/env_filter.h"
#include "launcher/job/job_spec.h"
#include "launcher/link_protocol/join_line.h"
#include "remote/hosts/host_range.h"

namespace ddp {
namespace {

using launcher::PerNode;

constexpr unsigned long long kMostNodes = 1'000'000;
constexpr char kEndpointPort[] = "29400";  // torchrun's default port of an endpoint

std::optional<unsigned long long> number_in(const std::string& text) {
  return remote::whole_number(text, kMostNodes);
}

/// Reads N, or the MAX of MIN:MAX; 0: neither.
int nodes_in(const std::string& nnodes) {
  const std::size_t colon = nnodes.find(':');
  return static_cast<int>(
      number_in(colon == std::string::npos ? nnodes : nnodes.substr(colon + 1)).value_or(0));
}

bool is_loopback_word(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

struct HostPort {
  std::string host;
  std::string port;
};

/// Splits HOST, HOST:PORT, [V6] or [V6]:PORT.
HostPort split_endpoint(const std::string& text) {
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    const std::string rest = end == std::string::npos ? "" : text.substr(end + 1);
    return {text.substr(1, end == std::string::npos ? end : end - 1),
            rest.starts_with(':') ? rest.substr(1) : kEndpointPort};
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || text.find(':', colon + 1) != std::string::npos)
    return {text, kEndpointPort};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

class NodeOptionReader {
 public:
  NodeOptionReader(const ProcessContext& context, OptionValues& values, Diagnostics& diagnostics)
      : env_(context.env), values_(values), diagnostics_(diagnostics) {}

  /// Returns true if hosts or a --launcher were given. It reports options that contradict them.
  bool others_chosen();
  /// Kubeflow's pods and Slurm's steps provide all missing values.
  void ask_scheduler();
  std::optional<PerNode> read();

 private:
  std::string variable(const char* name) const {
    const std::string* found = launcher::find_env(env_, name);
    return found == nullptr ? std::string() : *found;
  }
  /// Another launcher started this process. The inherited variables may be meant for that launcher.
  bool is_worker() const { return !variable("LOCAL_RANK").empty(); }
  void pods();
  void slurm_step();
  bool endpoint();
  void alone(int nodes);
  bool read_port(PerNode& given);

  const launcher::EnvVars& env_;
  OptionValues& values_;
  Diagnostics& diagnostics_;
};

bool NodeOptionReader::others_chosen() {
  std::string chosen;
  if (!values_.hostfile.empty()) chosen = "--hostfile";
  if (!values_.host.empty()) chosen = "--host";
  if (!values_.hosts_from.empty()) chosen = "--hosts-from";
  if (values_.ssh_localhost) chosen = "--ssh-localhost";
  if (!values_.launcher.empty()) chosen = "--launcher " + values_.launcher;
  if (chosen.empty()) return false;
  if (!values_.node_rank.empty() && values_.node_rank != "0") {
    diagnostics_.fail("--node-rank " + values_.node_rank + " and " + chosen +
                      " contradict each other: with hosts one ddplaunch starts all nodes, with --node-rank "
                      "each node has its own; omit one of them");
  }
  if (!values_.master_addr.empty() && !is_loopback_word(values_.master_addr)) {
    diagnostics_.note("--master-addr has no effect with " + chosen +
                      ": one ddplaunch starts all nodes; --network chooses the address");
  }
  if (!values_.rdzv_endpoint.empty()) {
    diagnostics_.note("--rdzv-endpoint has no effect with " + chosen +
                      ": nodes join over the connection that starts them");
  }
  if (values_.insecure) diagnostics_.note("--insecure has no effect with " + chosen);
  return true;
}

void NodeOptionReader::ask_scheduler() {
  if (is_worker()) return;
  pods();
  slurm_step();
}

/// Reads the variables of Kubeflow's PyTorchJob, which has one rank per pod. If it sets torchrun's variables
/// as well, those take precedence: they support several workers in a pod.
void NodeOptionReader::pods() {
  const auto size = number_in(variable("WORLD_SIZE"));
  const bool given = variable("PET_NNODES").empty() && size && *size > 1 && !variable("RANK").empty() &&
                     !variable("MASTER_ADDR").empty() && !variable("MASTER_PORT").empty();
  if (!given || !values_.node_rank.empty() || nodes_in(values_.nnodes) == 1) return;
  if (!variable("SLURM_JOB_ID").empty() || !values_.master_addr.empty() || !values_.rdzv_endpoint.empty())
    return;
  values_.node_rank = variable("RANK");
  if (values_.nnodes.empty()) values_.nnodes = variable("WORLD_SIZE");
  diagnostics_.note("RANK=" + values_.node_rank + " and WORLD_SIZE=" + variable("WORLD_SIZE") +
                    " are set here: this is one of " + values_.nnodes +
                    " nodes, each with its own ddplaunch; --launcher local runs on this machine only");
}

/// srun started one ddplaunch on each node, and an option or a variable gives the meeting address.
void NodeOptionReader::slurm_step() {
  const auto tasks = number_in(variable("SLURM_STEP_NUM_TASKS"));
  const bool met =
      !values_.master_addr.empty() || !values_.rdzv_endpoint.empty() || !variable("MASTER_ADDR").empty();
  if (!tasks || *tasks < 2 || number_in(variable("SLURM_STEP_NUM_NODES")) != tasks || !met) return;
  if (values_.node_rank.empty() && variable("NODE_RANK").empty())
    values_.node_rank = variable("SLURM_NODEID");
  if (values_.nnodes.empty()) values_.nnodes = variable("SLURM_STEP_NUM_NODES");
}

/// Returns false after reporting an invalid endpoint.
bool NodeOptionReader::endpoint() {
  if (values_.rdzv_endpoint.empty()) return true;
  const HostPort endpoint = split_endpoint(values_.rdzv_endpoint);
  if (endpoint.host.empty() || !number_in(endpoint.port)) {
    diagnostics_.fail("--rdzv-endpoint " + values_.rdzv_endpoint + ": give HOST:PORT of node 0");
    return false;
  }
  if (!values_.master_addr.empty() && values_.master_addr != endpoint.host) {
    diagnostics_.fail("--master-addr " + values_.master_addr + " and --rdzv-endpoint " +
                      values_.rdzv_endpoint +
                      " name different hosts; both give the address of node 0, so omit one of them");
    return false;
  }
  if (values_.master_port.empty()) {
    values_.master_port = endpoint.port;
  } else if (values_.master_port != endpoint.port &&
             values_.rdzv_endpoint.find(endpoint.port) != std::string::npos) {
    diagnostics_.fail("--master-port " + values_.master_port + " and --rdzv-endpoint " +
                      values_.rdzv_endpoint + " name different ports; omit one of them");
    return false;
  }
  values_.master_addr = endpoint.host;
  return true;
}

/// For one node, options about other nodes are errors or have no effect.
void NodeOptionReader::alone(int nodes) {
  const bool other = !values_.node_rank.empty() && values_.node_rank != "0";
  if (other && nodes == 1) {
    diagnostics_.fail("--node-rank " + values_.node_rank + ": with --nnodes 1 there is only node 0");
  } else if (other) {
    diagnostics_.fail("--node-rank " + values_.node_rank + " needs --nnodes N, the number of nodes");
  } else if (nodes == 0 && !values_.master_addr.empty() && !is_loopback_word(values_.master_addr)) {
    diagnostics_.fail("--master-addr " + values_.master_addr +
                      " needs --nnodes N, the number of nodes with their own ddplaunch; if one ddplaunch "
                      "starts all nodes, --network chooses the address");
  }
  if (!values_.rdzv_endpoint.empty()) diagnostics_.note("--rdzv-endpoint has no effect with a single node");
}

bool NodeOptionReader::read_port(PerNode& given) {
  std::string text = values_.master_port;
  std::string name = "--master-port";
  if (text.empty() && !is_worker()) {
    text = variable("MASTER_PORT");
    name = "MASTER_PORT";
  }
  if (text.empty()) return true;
  const auto port = remote::whole_number(text, 65'535);
  if (!port || *port == 0) {
    diagnostics_.fail(name + " " + text +
                      ": give a port from 1 to 65535, the same on all nodes, because they connect to it");
    return false;
  }
  given.port = static_cast<std::uint16_t>(*port);
  return true;
}

std::optional<PerNode> NodeOptionReader::read() {
  const int nodes = nodes_in(values_.nnodes);
  if (nodes < 2) {
    if (values_.nnodes.empty() || nodes == 1) alone(nodes);
    return std::nullopt;
  }
  if (!endpoint()) return std::nullopt;
  PerNode given;
  given.nodes = nodes + static_cast<int>(number_in(values_.spares).value_or(0));
  given.insecure = values_.insecure;
  given.master_addr = values_.master_addr;
  if (given.master_addr.empty() && !is_worker()) given.master_addr = variable("MASTER_ADDR");
  std::string rank = values_.node_rank;
  std::string name = "--node-rank";
  if (rank.empty() && !is_worker()) {
    rank = variable("NODE_RANK");
    name = "NODE_RANK";
  }
  if (given.master_addr.empty()) {
    if (!values_.node_rank.empty()) {
      diagnostics_.fail("--node-rank " + rank +
                        " needs --master-addr ADDR, the address of node 0; or set MASTER_ADDR on all nodes");
    }
    return std::nullopt;
  }
  if (given.master_addr.find_first_of(" \t/,") != std::string::npos || given.master_addr.size() > 255) {
    diagnostics_.fail("--master-addr " + given.master_addr + ": give the name or address of node 0");
    return std::nullopt;
  }
  if (!rank.empty()) {
    const auto number = number_in(rank);
    if (!number || *number >= static_cast<unsigned long long>(given.nodes)) {
      diagnostics_.fail(name + " " + rank + ": give a whole number from 0 to " +
                        std::to_string(given.nodes - 1) + ", a different one on each of the " +
                        std::to_string(given.nodes) + " nodes");
      return std::nullopt;
    }
    given.rank = static_cast<int>(*number);
  }
  if (!read_port(given)) return std::nullopt;
  return given;
}

void refuse_what_needs_one_launcher(const OptionValues& values, Verb verb, Diagnostics& diagnostics) {
  if (verb != Verb::kRun) {
    diagnostics.fail(std::string("ddplaunch ") + (verb == Verb::kCheck ? "check" : "hosts") +
                     " connects to the nodes itself: name them with --hostfile or --host, and omit "
                     "--node-rank and --master-addr");
  }
  if (!values.wrapper.empty()) {
    diagnostics.fail(
        "--wrapper cannot be used with one ddplaunch per node; start each ddplaunch inside the wrapper "
        "instead");
  }
  if (!values.include.empty() || !values.exclude.empty()) {
    diagnostics.fail(
        "--include and --exclude need a list of hosts; with one ddplaunch per node, do not start it on the "
        "excluded nodes");
  }
}

}  // namespace

void read_node_options(const ProcessContext& context, OptionValues& values, Verb verb,
                       launcher::JobSpec& spec, Diagnostics& diagnostics) {
  NodeOptionReader reader(context, values, diagnostics);
  if (reader.others_chosen()) return;
  reader.ask_scheduler();
  auto given = reader.read();
  if (!given) return;
  given->link_job = values.job_id.empty() ? "default" : values.job_id;
  refuse_what_needs_one_launcher(values, verb, diagnostics);
  values.master_port.clear();  // the store takes its own port
  spec.launcher = launcher::LauncherKind::kJoin;
  spec.hosts.resize(static_cast<std::size_t>(given->nodes));
  spec.hosts[0].name = "localhost";  // the host of node 0
  for (std::size_t i = 1; i < spec.hosts.size(); ++i)
    spec.hosts[i].name = launcher::join_host_name(static_cast<int>(i));
  spec.per_node = std::move(*given);
}

}  // namespace ddp
