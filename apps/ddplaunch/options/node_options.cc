#include "apps/ddplaunch/options/job_options.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "apps/ddplaunch/options/option_readers.h"
#include "base/ip_address.h"
#include "base/text.h"
#include "launcher/job/job_spec.h"
#include "launcher/links/join_table.h"
#include "remote/hosts/host.h"
#include "remote/hosts/hostfile.h"

namespace ddp {
namespace {

constexpr unsigned long long kMaxTasks = 1'000'000;  ///< also of nodes
constexpr unsigned long long kMaxId = std::numeric_limits<std::uint32_t>::max();
constexpr char kNodeList[] = "SLURM_STEP_NODELIST";

constexpr char kOtherStep[] =
    "; the variables belong to different jobs or steps. Unset SLURM_STEP_NUM_TASKS if srun has not started "
    "this program";

}  // namespace

SlurmStep::SlurmStep(const ProcessContext& context)
    : job(context.variable("SLURM_JOB_ID")),
      id(context.variable("SLURM_STEP_ID")),
      tasks(whole_number(context.variable("SLURM_STEP_NUM_TASKS"), kMaxTasks).value_or(0)),
      nodes(whole_number(context.variable("SLURM_STEP_NUM_NODES"), kMaxTasks).value_or(0)),
      tasks_per_node(context.variable("SLURM_TASKS_PER_NODE")),
      node_id(context.variable("SLURM_NODEID")),
      node_list(context.variable(kNodeList)),
      job_node_list(context.variable("SLURM_JOB_NODELIST")),
      node_name(context.variable("SLURMD_NODENAME")),
      terminal(!context.variable("SLURM_PTY_PORT").empty()) {
  if (node_list.empty()) node_list = job_node_list;
}

std::optional<int> SlurmStep::node_rank() const {
  const auto number = whole_number(node_id, kMaxTasks);
  if (!number || *number >= nodes) return std::nullopt;
  return static_cast<int>(*number);
}

Result<std::string> SlurmStep::first_node() const {
  if (node_list.empty()) return usage_error(kNodeList, " is not set");
  auto names = remote::expand_node_list(node_list, kNodeList);
  if (!names) return usage_error(to_text(names.error().list.front()));
  const std::string list = concat(kNodeList, '=', node_list);
  if (names->size() != nodes)
    return usage_error(list, " names ", names->size(), " nodes, but SLURM_STEP_NUM_NODES is ", nodes,
                       kOtherStep);
  const auto rank = node_rank();
  if (rank && !node_name.empty() && (*names)[static_cast<std::size_t>(*rank)] != node_name)
    return usage_error("SLURMD_NODENAME=", node_name, " is not node ", node_id, " of ", list, kOtherStep);
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

void read_scheduler(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  const SlurmStep step(context);
  std::optional<LauncherKind>& chosen = options.written.launcher;
  if (chosen == LauncherKind::kSlurm && !step.in_job()) {
    return diagnostics.fail(
        "--launcher slurm needs a Slurm job, but SLURM_JOB_ID or SLURM_JOB_NODELIST is not set; run salloc "
        "-N 2 ddplaunch …, or use a script for sbatch");
  }
  const std::string mpi = context.variable("OMPI_COMM_WORLD_SIZE");
  if (!mpi.empty() && mpi != "1") {
    diagnostics.note(
        "warning: mpirun has started " + mpi +
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
  diagnostics.note("in Slurm job ", step.job, ": its nodes are started with srun", kAlone);
}

namespace {

using launcher::PerNode;

class NodeOptionReader {
 public:
  NodeOptionReader(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics)
      : options_(options),
        written_(options.written),
        context_(context),
        step_(context),
        diagnostics_(diagnostics) {}

  /// Returns true if hosts or a --launcher were given. It reports options that contradict them.
  bool others_chosen();
  /// Kubeflow's pods and Slurm's steps provide all missing values.
  void ask_scheduler();
  /// Returns nothing if there is only one node, or after an error.
  std::optional<PerNode> read();
  /// An error was reported when the option was read.
  bool has_wrong_value() const {
    return (options_.given("--rdzv-endpoint") && !written_.rdzv_endpoint) ||
           (options_.given("--node-rank") && !written_.node_rank) ||
           (options_.given("--master-port") && !written_.master_port);
  }

 private:
  std::string variable(const char* name) const { return context_.variable(name); }
  /// Another launcher started this process. The inherited variables may be meant for that launcher.
  bool is_worker() const { return !variable("LOCAL_RANK").empty(); }
  /// Returns --nnodes N, or the MAX of MIN:MAX; 0: unknown.
  int nodes() const { return written_.nnodes ? static_cast<int>(written_.nnodes->max) : 0; }
  bool is_other_node() const { return written_.node_rank.value_or(0) != 0; }
  std::string rank_text() const { return "--node-rank " + std::to_string(*written_.node_rank); }
  bool names_other_master() const {
    return !written_.master_addr.empty() && !is_loopback_host(written_.master_addr);
  }
  bool master_given() const {
    return !written_.master_addr.empty() || written_.rdzv_endpoint || !variable("MASTER_ADDR").empty();
  }
  void pods();
  bool step_nodes();
  bool step_rank();
  bool step_address();
  bool take_endpoint();
  void alone();
  bool read_address(PerNode& given);
  bool read_rank(PerNode& given);
  bool read_port(PerNode& given);
  template <class... Parts>
  bool fail(const Parts&... parts) {
    diagnostics_.fail(parts...);
    return false;
  }
  /// Returns the name and the value of an option, else of a variable. The value is empty if there is none.
  template <class T>
  std::pair<std::string, std::string> found(const char* option, const std::optional<T>& value,
                                            const char* variable_name) const {
    if (value) return {option, std::to_string(*value)};
    return {variable_name, is_worker() ? "" : variable(variable_name)};
  }

  JobOptions& options_;
  WrittenValues& written_;
  const ProcessContext& context_;
  const SlurmStep step_;
  bool in_step_ = false;  ///< srun has started one ddplaunch per node, and this is one of them
  Diagnostics& diagnostics_;
};

bool NodeOptionReader::others_chosen() {
  std::string chosen;
  for (const char* name : {"--hostfile", "--host", "--hosts-from", "--ssh-localhost", "--launcher"}) {
    if (options_.given(name)) chosen = name;
  }
  if (chosen.empty()) return false;
  if (is_other_node()) {
    diagnostics_.fail(rank_text() + " and " + chosen +
                      " contradict each other: with hosts one ddplaunch starts all nodes, with --node-rank "
                      "each node has its own; omit one of them");
  }
  if (names_other_master()) {
    diagnostics_.note("--master-addr has no effect with " + chosen +
                      ": one ddplaunch starts all nodes; --network chooses the address");
  }
  if (written_.rdzv_endpoint) {
    const bool renamed =
        chosen == "--launcher" && std::ranges::count(options_.line.given, "--standalone") > 0;
    diagnostics_.note("--rdzv-endpoint has no effect with " + (renamed ? "--standalone" : chosen) +
                      ": nodes join over the connection that starts them");
  }
  if (written_.node_rank && !is_other_node() && chosen != "--launcher")
    diagnostics_.note("--node-rank 0 has no effect with " + chosen + ": one ddplaunch starts all nodes");
  if (options_.given("--insecure")) diagnostics_.note("--insecure has no effect with " + chosen);
  return true;
}

void NodeOptionReader::ask_scheduler() {
  if (is_worker()) return;
  pods();
  // If srun has started one ddplaunch on each node, Slurm's variables provide what no option or variable
  // gives.
  in_step_ = step_.one_per_node() && step_nodes() && step_rank() && step_address();
}

/// Reads the variables of Kubeflow's PyTorchJob, which has one rank per pod. If it sets torchrun's variables
/// as well, those take precedence: they support several workers in a pod.
void NodeOptionReader::pods() {
  const auto size = whole_number(variable("WORLD_SIZE"), kMaxTasks);
  const std::string rank = variable("RANK");
  const bool given = variable("PET_NNODES").empty() && size && *size > 1 && !rank.empty() &&
                     !variable("MASTER_ADDR").empty() && !variable("MASTER_PORT").empty();
  if (!given || written_.node_rank || nodes() == 1) return;
  if (!variable("SLURM_JOB_ID").empty() || !written_.master_addr.empty() || written_.rdzv_endpoint) return;
  const auto number = whole_number(rank, kMaxTasks);
  if (!number) return diagnostics_.fail("RANK=" + rank + ": give the rank of this node, a whole number");
  written_.node_rank = static_cast<int>(*number);
  if (!written_.nnodes) written_.nnodes = NodeCounts{*size, *size};
  diagnostics_.note("RANK=", rank, " and WORLD_SIZE=", *size, " are set here: this is one of ", nodes(),
                    " nodes, each with its own ddplaunch", kAlone);
}

/// Takes the number of nodes from the step. Returns false after reporting that the options need another one.
bool NodeOptionReader::step_nodes() {
  const auto spares = static_cast<std::size_t>(options_.job.spec.spares);
  const std::size_t started = step_.nodes;
  if (!written_.nnodes && spares < started) written_.nnodes = NodeCounts{started - spares, started - spares};
  if (written_.nnodes && written_.nnodes->min <= started && written_.nnodes->max + spares >= started)
    return true;
  std::string asked = written_.nnodes ? nnodes_text(*written_.nnodes) : "";
  if (spares > 0) asked += concat(asked.empty() ? "" : " with ", "--spares ", spares);
  return fail(asked, ": srun has started this program on ", started,
              " nodes; omit the option, or start as many nodes with srun --nodes", kAlone);
}

/// Takes this node's rank from the step. A given rank wins, unless node 0 would not be the step's first node.
bool NodeOptionReader::step_rank() {
  const auto rank = step_.node_rank();
  const std::string number = written_.node_rank ? std::to_string(*written_.node_rank) : variable("NODE_RANK");
  if (number.empty() && !rank) {
    return fail(step_.node_id.empty() ? "SLURM_NODEID is not set"
                                      : concat("SLURM_NODEID=", step_.node_id, " is not one of the ",
                                               step_.nodes, " nodes of this Slurm step"),
                "; give --node-rank N, a different one on each node");
  }
  if (number.empty()) written_.node_rank = rank;
  if (number.empty() || !rank || number == step_.node_id) return true;
  const std::string text = (written_.node_rank ? "--node-rank " : "NODE_RANK=") + number +
                           " is given, but this is node " + step_.node_id + " of Slurm step " + step_.name() +
                           " (SLURM_NODEID)";
  if (master_given()) {
    diagnostics_.note(text + "; the given rank is used");
    return true;
  }
  return fail(text + ", whose node 0 is the master; omit it, or give --master-addr as well");
}

/// Takes the address of node 0 and the port from the step.
bool NodeOptionReader::step_address() {
  if (!master_given()) {
    auto first = step_.first_node();
    if (!first) return fail(first.error().text, "; set MASTER_ADDR to name node 0 yourself");
    written_.master_addr = std::move(*first);
  }
  if (written_.master_port || written_.rdzv_endpoint || !variable("MASTER_PORT").empty()) return true;
  written_.master_port = step_.port();
  if (written_.master_port) return true;
  return fail("SLURM_JOB_ID=" + step_.job + ", SLURM_STEP_ID=" + step_.id +
              ": these are not numbers, so no port follows from them; give --master-port PORT, the same "
              "on all nodes");
}

/// Uses --rdzv-endpoint as master address and port. Returns false after reporting a contradiction.
bool NodeOptionReader::take_endpoint() {
  if (!written_.rdzv_endpoint) return true;
  const auto& [text, host, port] = *written_.rdzv_endpoint;
  if (!written_.master_addr.empty() && written_.master_addr != host) {
    return fail("--master-addr " + written_.master_addr + " and --rdzv-endpoint " + text +
                " name different hosts; both give the address of node 0, so omit one of them");
  }
  if (written_.master_port && port && *written_.master_port != *port) {
    return fail("--master-port ", *written_.master_port, " and --rdzv-endpoint ", text,
                " name different ports; omit one of them");
  }
  if (!written_.master_port) written_.master_port = port.value_or(kEndpointPort);
  written_.master_addr = host;
  return true;
}

/// For one node, options about other nodes are errors or have no effect.
void NodeOptionReader::alone() {
  if (is_other_node() && nodes() == 1) {
    diagnostics_.fail(rank_text() + ": with --nnodes 1 there is only node 0");
  } else if (is_other_node()) {
    diagnostics_.fail(rank_text() + " needs --nnodes N, the number of nodes");
  } else if (nodes() == 0 && names_other_master()) {
    diagnostics_.fail("--master-addr " + written_.master_addr +
                      " needs --nnodes N, the number of nodes with their own ddplaunch; if one ddplaunch "
                      "starts all nodes, --network chooses the address");
  }
  if (nodes() == 1 && names_other_master())
    diagnostics_.note("--master-addr has no effect with a single node");
  if (written_.rdzv_endpoint) diagnostics_.note("--rdzv-endpoint has no effect with a single node");
}

/// Returns false without an error if nothing names node 0: then there is only one node.
bool NodeOptionReader::read_address(PerNode& given) {
  given.master_addr = written_.master_addr;
  if (given.master_addr.empty() && !is_worker()) given.master_addr = variable("MASTER_ADDR");
  if (given.master_addr.empty()) {
    if (!written_.node_rank) return false;
    return fail(rank_text() +
                " needs --master-addr ADDR, the address of node 0; or set MASTER_ADDR on all nodes");
  }
  const std::string where =
      (written_.master_addr.empty() ? "MASTER_ADDR " : "--master-addr ") + given.master_addr;
  if (given.master_addr.find(':') != std::string::npos && !remote::is_ipv6(given.master_addr) &&
      given.master_addr.find('/') == std::string::npos) {
    std::optional<RendezvousEndpoint> endpoint;
    const std::string problem = endpoint_into(endpoint)(given.master_addr);
    return fail(where, ": give the address alone, without ",
                endpoint && endpoint->port
                    ? concat("port: --master-addr ", endpoint->host, " --master-port ", *endpoint->port)
                    : "port and brackets",
                problem.empty() ? "" : "; " + problem.substr(2));
  }
  const std::string problem = host_problem(given.master_addr);
  return problem.empty() || fail(where + problem);
}

/// The rank may stay unset: the nodes then find it out.
bool NodeOptionReader::read_rank(PerNode& given) {
  const auto [name, text] = found("--node-rank", written_.node_rank, "NODE_RANK");
  if (text.empty()) return true;
  const auto number = whole_number(text, kMaxTasks);
  if (!number || *number >= static_cast<unsigned long long>(given.nodes)) {
    return fail(name, ' ', text, ": give a whole number from 0 to ", given.nodes - 1,
                ", a different one on each of the ", given.nodes, " nodes");
  }
  given.rank = static_cast<int>(*number);
  return true;
}

bool NodeOptionReader::read_port(PerNode& given) {
  const auto [name, text] = found("--master-port", written_.master_port, "MASTER_PORT");
  if (text.empty()) return true;
  const auto port = whole_number(text, kMaxPort);
  if (!port || *port == 0) {
    const bool by_endpoint = written_.rdzv_endpoint && !options_.given("--master-port");
    return fail((by_endpoint ? "--rdzv-endpoint " + written_.rdzv_endpoint->text : name + " " + text) +
                ": give a port from 1 to 65535, the same on all nodes, because they connect to it");
  }
  given.port = static_cast<std::uint16_t>(*port);
  return true;
}

std::optional<PerNode> NodeOptionReader::read() {
  if (nodes() < 2) {
    if (nodes() == 1 || !options_.given("--nnodes")) alone();
    return std::nullopt;
  }
  if (has_wrong_value() || !take_endpoint()) return std::nullopt;
  PerNode given;
  given.nodes = nodes() + options_.job.spec.spares;
  given.insecure = options_.given("--insecure");
  if (!read_address(given) || !read_rank(given) || !read_port(given)) return std::nullopt;
  given.link_job = options_.given("--job-id") ? options_.job.spec.job_id : "default";
  if (!in_step_) return given;
  given.in_slurm = true;
  if (!options_.given("--job-id") && step_.port()) given.link_job = "slurm-" + step_.name();
  if (given.rank == 0) {
    diagnostics_.note("in Slurm step ", step_.name(), ": each of its ", step_.nodes,
                      " nodes has its own ddplaunch, and they meet at ", given.master_addr, " port ",
                      given.port, kAlone);
  }
  return given;
}

}  // namespace

bool read_node_options(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  NodeOptionReader reader(options, context, diagnostics);
  const std::size_t errors_before = diagnostics.errors.size();
  const auto are_known = [&] {
    return diagnostics.errors.size() == errors_before && !reader.has_wrong_value();
  };
  if (reader.others_chosen()) return diagnostics.errors.size() == errors_before;
  reader.ask_scheduler();
  if (diagnostics.errors.size() > errors_before) return false;
  auto given = reader.read();
  if (!given) return are_known();
  launcher::JobSpec& spec = options.job.spec;
  if (options.job.verb != Verb::kRun)
    diagnostics.fail("ddplaunch ", verb_name(options.job.verb), " connects to the nodes itself: ",
                     given->in_slurm ? "start it once, without srun"
                                     : "name them with --hostfile or --host, and omit --node-rank and "
                                       "--master-addr");
  options.written.master_port.reset();  // the store takes its own port
  spec.launcher = launcher::LauncherKind::kJoin;
  spec.hosts.resize(static_cast<std::size_t>(given->nodes));
  // The agent of node 0 is a child of this process. The name does not depend on the order in which nodes
  // join.
  spec.hosts[0].name = context.host_name.empty() ? "localhost" : context.host_name;
  spec.hosts[0].address = "localhost";
  for (std::size_t i = 1; i < spec.hosts.size(); ++i)
    spec.hosts[i].name = launcher::join_host_name(static_cast<int>(i));
  spec.per_node = std::move(*given);
  return are_known();
}

}  // namespace ddp
