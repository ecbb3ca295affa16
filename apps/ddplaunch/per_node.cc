#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/ddplaunch/commands.h"
#include "base/asio.h"
#include "base/child_process.h"
#include "base/exit_status.h"
#include "base/files.h"
#include "base/ip_address.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/node_facts.h"
#include "launcher/control/job_registry.h"
#include "launcher/hang/wait_state.h"
#include "launcher/job/job_spec.h"
#include "launcher/keeper/keeper.h"
#include "launcher/links/daemon.h"
#include "launcher/links/join_transport.h"
#include "launcher/report/exit_report.h"
#include "launcher/supervisor/attempt_start.h"
#include "launcher/supervisor/net_choice.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/start/resolver.h"
#include "rendezvous/link/secure_link.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp {

namespace {

constexpr std::chrono::seconds kNameTime{10};

namespace fs = std::filesystem;

/// The process that listens at a TCP port of this machine.
struct PortHolder {
  uid_t uid = 0;
  pid_t pid = 0;        ///< 0: not readable, as for another user's process
  std::string program;  ///< its short name; empty without a pid
};

/// Returns the local addresses, as in the kernel's table, that collide with a listener at `address`. Empty:
/// all.
std::vector<std::string> rivals(const std::string& address) {
  std::vector<std::string> all = {"0.0.0.0", "[::]"};
  if (address == "localhost") {
    all.insert(all.end(), {"127.0.0.1", "[::1]"});
    return all;
  }
  error_code ignored;
  const auto one = asio::ip::make_address(address, ignored);
  if (ignored) return {};
  all.push_back(one.is_v4() ? one.to_string() : "[" + one.to_string() + "]");
  return all;
}

bool holds_socket(const fs::path& process, std::uint64_t inode) {
  for (const fs::path& entry : list_directory(process / "fd")) {
    std::error_code gone;
    if (launcher::socket_inode(fs::read_symlink(entry, gone).string()) == inode) return true;
  }
  return false;
}

void find_process(std::uint64_t inode, PortHolder& holder) {
  for (const fs::path& entry : list_directory("/proc")) {
    const std::string name = entry.filename();
    if (!is_digits(name) || !holds_socket(entry, inode)) continue;
    holder.pid = static_cast<pid_t>(std::stol(name));
    holder.program = one_line(first_line(entry / "comm"));
    return;
  }
}

std::string user_text(uid_t uid) {
  const std::string number = "uid " + std::to_string(uid);
  const auto user = remote::find_user(uid);
  return user ? "user " + one_line(user->name) + " (" + number + ")" : number;
}

/// Returns the addresses of `host` without scopes; empty if it cannot be resolved.
std::vector<asio::ip::address> addresses_of(const std::string& host) {
  auto found = remote::find_addresses(host, AF_UNSPEC, std::chrono::steady_clock::now() + kNameTime);
  if (!found) return {};
  for (asio::ip::address& address : *found)
    if (address.is_v6()) address = asio::ip::address_v6(address.to_v6().to_bytes());
  return std::move(*found);
}

/// Returns whether `host`, a name or a numeric address, is this machine: one of its addresses, or its name.
/// It may wait for the name service. A name that cannot be resolved counts as another machine.
bool is_own_address(const std::string& host) {
  const std::string name = host_name();
  if (is_loopback_host(host) || (!name.empty() && host == name)) return true;
  const auto facts = launcher::gather_node_facts();
  return std::ranges::any_of(addresses_of(host), [&facts](const asio::ip::address& address) {
    return address.is_loopback() || (facts && std::ranges::count(facts->hello.interfaces, address.to_string(),
                                                                 &rendezvous::Interface::address) > 0);
  });
}

/// Returns the process that listens at `port` and conflicts with `address` ("localhost" or numeric; any other
/// text means all addresses). A process of another user takes precedence. nullopt: the kernel names none, for
/// example if the port is bound and no process listens. Reads /proc. Blocking.
std::optional<PortHolder> find_port_holder(const std::string& address, std::uint16_t port) {
  std::map<std::uint64_t, launcher::TcpSocket> sockets;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"})
    launcher::parse_tcp_table(read_start(table, std::string::npos), sockets);
  const std::vector<std::string> addresses = rivals(address);
  const std::string end = ":" + std::to_string(port);
  std::optional<PortHolder> holder;
  std::uint64_t inode = 0;
  for (const auto& [number, socket] : sockets) {
    const std::string local = socket.local.substr(0, socket.local.rfind(':'));
    const bool in_the_way =
        addresses.empty() || std::find(addresses.begin(), addresses.end(), local) != addresses.end();
    if (socket.state != launcher::kTcpListening || !socket.local.ends_with(end) || !in_the_way) continue;
    if (holder && holder->uid != ::geteuid()) continue;
    holder = PortHolder{socket.uid, 0, {}};
    inode = number;
  }
  if (holder) find_process(inode, *holder);
  return holder;
}

/// Returns "process 4242 (python3) of user mallory (uid 1001)"; the user only if it is not this process's
/// user.
std::string holder_text(const PortHolder& holder) {
  std::string text = "a process";
  if (holder.pid != 0) text = "process " + std::to_string(holder.pid) + " (" + holder.program + ")";
  if (holder.uid != ::geteuid()) text += " of " + user_text(holder.uid);
  return text;
}

using launcher::PerNode;
using rendezvous::ListenScope;

/// The token of links that need none. These links are encrypted as well, but everybody knows this text.
constexpr char kPublicToken[] = "no token: anybody who reaches this port may join the job";

Error no_token(const PerNode& node) {
  if (node.in_slurm) {
    return Error{ErrorCode::kUsage,
                 "node 0 is at " + node.master_addr +
                     ", so all nodes need the same token: write export DDPLAUNCH_TOKEN=$(openssl rand -hex "
                     "32) before srun in the batch script (srun --export=NONE would not pass it on)",
                 0};
  }
  return Error{
      ErrorCode::kUsage,
      "node 0 is at " + node.master_addr +
          ", so all nodes need the same token; without one, anyone on the network could join the job. "
          "Make a token, and start all nodes with it:\n"
          "ddplaunch:   openssl rand -hex 32\n"
          "ddplaunch:   export DDPLAUNCH_TOKEN=…   or --token-file FILE, readable only by you\n"
          "ddplaunch: (on a private network --insecure works without a token)",
      0};
}

/// Listens as narrowly as MASTER_ADDR allows. Other nodes may know this machine by an address that none of
/// its interfaces has.
Result<rendezvous::TcpListener> listen_at(const PerNode& node) {
  if (node.master_addr == "localhost" || node.master_addr == "127.0.0.1" || node.master_addr == "::1")
    return rendezvous::listen_tcp(ListenScope::kLoopback, node.port);
  auto one = rendezvous::listen_tcp_at(node.master_addr, node.port);
  const bool not_ours = !one && (one.error().code == ErrorCode::kUsage || one.error().sys == EADDRNOTAVAIL);
  if (!not_ours || is_loopback_host(node.master_addr)) return one;
  return rendezvous::listen_tcp(ListenScope::kAllInterfaces, node.port);
}

/// Returns the job's token: --token-file, else `given`. If there is neither, --insecure gives a public token,
/// which protects nothing. If node 0 is on this machine, it is this user's own token
/// (rendezvous::loopback_token). kUsage, kSystem: there is no token, or it is invalid; the text says what to
/// do.
Result<rendezvous::LinkToken> find_link_token(const launcher::JobSpec& spec, const GivenToken& given) {
  auto token = rendezvous::given_token(spec.token_file, given);
  if (!token || !token->secret.empty()) return token;
  const PerNode& node = *spec.per_node;
  if (node.insecure) return rendezvous::make_token(kPublicToken, "--insecure, which is no token");
  if (!is_loopback_host(node.master_addr)) return no_token(node);
  auto own = rendezvous::loopback_token();
  if (own) return own;
  Error error = own.error();
  error.text +=
      "; nodes of one user on one machine authenticate with this file. Fix the file, or give all nodes "
      "DDPLAUNCH_TOKEN or --token-file FILE";
  return error;
}

/// Returns the node ranks that are not 0: "1", "from 1 to 3".
std::string other_ranks_text(int nodes) {
  return nodes == 2 ? "1" : "from 1 to " + std::to_string(nodes - 1);
}

/// Returns the listener if this is node 0, and nullopt if this node joins another one. If no rank is given,
/// this is node 0 if MASTER_ADDR is this machine and no process of this user has the port. kSystem, kUsage:
/// the port cannot be taken; the text names its holder, which may be node 0 of the same job.
Result<std::optional<rendezvous::TcpListener>> take_control_port(const RunJob& job) {
  const PerNode& node = *job.spec.per_node;
  using TakenListener = std::optional<rendezvous::TcpListener>;
  if (node.rank ? *node.rank != 0 : !is_own_address(node.master_addr)) return TakenListener{};
  auto listener = listen_at(node);
  if (listener) return TakenListener(std::move(*listener));
  if (listener.error().sys != EADDRINUSE) return within("the control port", listener.error());
  const auto holder = find_port_holder(node.master_addr, node.port);
  const bool stranger = holder && holder->uid != ::geteuid();
  if (!node.rank && !stranger) return TakenListener{};  // node 0 already runs here
  std::string text = "port " + std::to_string(node.port) + " is in use on this machine";
  if (holder) text += " by " + holder_text(*holder);
  if (!stranger && job.registration.claims_id) {
    DDP_TRY(launcher::claim_job_id(job.registration, job.spec.job_id, claim_advice(job.spec)));
  }
  const bool maybe_ours = !stranger && holder && holder->program == "ddplaunch";
  text += maybe_ours ? "; if that is node 0 of this job, the --node-rank of this node is " +
                           other_ranks_text(node.nodes) +
                           "; if it is another job, give all nodes of this one another --master-port"
                     : "; give all nodes another --master-port";
  return Error{ErrorCode::kSystem, std::move(text), EADDRINUSE};
}

using Clock = std::chrono::steady_clock;
using launcher::JobSpec;

/// Limit of one query to the name service.
constexpr std::chrono::seconds kLookUpTime{10};
/// Time until the notice that this node waits for node 0, and where node 0 should be on this machine.
constexpr std::chrono::seconds kSilence{5};
constexpr std::chrono::seconds kSilenceHere{2};

std::string master_position(const launcher::PerNode& node) {
  return node.master_addr + " port " + std::to_string(node.port);
}

/// Returns the notice that this node waits for node 0. With `here`, node 0's address is this machine, and the
/// usual reason is a mistake in the options.
std::string waiting_text(const JobSpec& spec, bool here) {
  const launcher::PerNode& node = *spec.per_node;
  std::string text = "waiting for node 0 at " + master_position(node);
  if (here && !find_port_holder(node.master_addr, node.port)) {
    text += ", which is this machine, but nothing listens there";
    if (is_loopback_host(node.master_addr))
      text += "; if node 0 is elsewhere, give all nodes its name or address as --master-addr";
    else if (node.rank)
      text += ": is --node-rank " + std::to_string(*node.rank) + " right here?";
  }
  return text + " (--start-timeout " + format_duration(spec.start_timeout) + ")";
}

/// Returns the number of workers that this node's options request, or 0 if no option does. The node counts it
/// for its own rule.
Result<std::uint32_t> own_workers(const JobSpec& spec, const launcher::NodeFacts& facts) {
  if (spec.nproc.rule == rendezvous::ProcsRule::kUnset) return std::uint32_t{0};
  rendezvous::NodeSlots slots;
  slots.name = facts.hello.hostname;
  slots.gpus = static_cast<int>(facts.hello.gpus);
  slots.cpus = static_cast<int>(facts.hello.cpus);
  const auto plan = DDP_TRY(rendezvous::plan_ranks({slots}, spec.nproc));
  return static_cast<std::uint32_t>(plan.world_size);
}

Result<rendezvous::LinkGoal> goal_of(const JobSpec& spec, const rendezvous::LinkToken& token,
                                     const std::string& hostname) {
  const launcher::PerNode& node = *spec.per_node;
  return rendezvous::link_goal(
      node.master_addr, node.port,
      {rendezvous::LinkRole::kAgent, node.link_job, rendezvous::link_name_of(hostname), {}}, token,
      {static_cast<int>(rendezvous::kProtocolVersion), std::string(version()), node.rank, node.nodes});
}

/// The connection to the master, as one task of the loop.
struct Joining {
  asio::io_context& loop;
  const JobSpec& spec;
  const rendezvous::LinkGoal& goal;
  const rendezvous::Resolve& resolve;
  rendezvous::JoinOutcome outcome{
      .error = Error{ErrorCode::kLinkLost, "the ddplaunch of this node was killed", 0}};
  std::optional<Error> stopped = std::nullopt;  ///< set by a signal, which takes precedence over `outcome`

  static Awaitable<> join(Joining* self) {
    const auto deadline = Clock::now() + self->spec.start_timeout;
    auto joined = co_await rendezvous::secure_join(self->resolve, self->goal, deadline);
    if (joined.stream) {
      if (!self->spec.quiet) {
        std::fprintf(stderr, "ddplaunch: joined job %s at %s as node %d; its output is shown there\n",
                     joined.answer.job_id.c_str(), master_position(*self->spec.per_node).c_str(),
                     *joined.answer.rank);
      }
      const remote::AgentHello hello{self->goal.hello.protocol, self->goal.hello.version};
      (void)co_await rendezvous::write_line(*joined.stream, remote::hello_line(hello));
    }
    self->outcome = std::move(joined);
    self->loop.stop();
  }
  /// Stops when the keeper ends: without a keeper nothing cleans up after the agent.
  static Awaitable<> watch(Joining* self, asio::posix::stream_descriptor* keeper) {
    const error_code error = co_await until_readable(*keeper);
    if (!error) self->loop.stop();
  }
};

Result<std::unique_ptr<ByteStream>> join_master(asio::io_context& loop, const JobSpec& spec,
                                                const rendezvous::LinkGoal& goal,
                                                const launcher::KeeperSocket& keeper,
                                                asio::signal_set& stop) {
  remote::Resolver resolver(loop.get_executor(), "give all nodes another --master-addr");
  const rendezvous::Resolve resolve = launcher::resolve_by(resolver, kLookUpTime);
  asio::posix::stream_descriptor keeper_fd(loop, ::fcntl(keeper.watch_fd(), F_DUPFD_CLOEXEC, 0));
  asio::steady_timer silence(loop);
  if (!spec.quiet) {
    const bool here = is_own_address(spec.per_node->master_addr);
    silence.expires_after(here ? kSilenceHere : kSilence);
    silence.async_wait([&spec, here](const error_code& cancelled) {
      if (!cancelled) std::fprintf(stderr, "ddplaunch: %s\n", waiting_text(spec, here).c_str());
    });
  }
  Joining joining{loop, spec, goal, resolve};
  stop.async_wait([&joining, &keeper](const error_code& cancelled, int number) {
    if (cancelled) return;
    const std::string sender = keeper.stop_sender();
    joining.stopped = Error{ErrorCode::kCancelled,
                            "stopped by " + signal_name(number) + (sender.empty() ? "" : " from " + sender) +
                                " while it waited for node 0 at " + master_position(*joining.spec.per_node),
                            number};
    joining.loop.stop();
  });
  spawn(loop.get_executor(), Joining::join(&joining));
  spawn(loop.get_executor(), Joining::watch(&joining, &keeper_fd));
  loop.run();
  loop.restart();
  error_code ignored;
  keeper_fd.close(ignored);
  silence.cancel();
  stop.cancel(ignored);
  loop.poll();  // runs the cancelled handlers
  loop.restart();
  if (joining.stopped) return *joining.stopped;
  if (!joining.outcome.stream) return joining.outcome.error;
  return std::move(joining.outcome.stream);
}

/// Prints the last line, with the master's text.
void report_end(const JobSpec& spec, int code, const std::string& master_says) {
  if (code == 0) {
    if (!spec.quiet) std::fprintf(stderr, "ddplaunch: exit 0: the job succeeded\n");
  } else if (!master_says.empty()) {
    std::fprintf(stderr, "ddplaunch: exit %d: %s\n", code, master_says.c_str());
  } else if (code == 113) {
    std::fprintf(stderr,
                 "ddplaunch: exit %d: the link to node 0 at %s was lost; the workers of this node were "
                 "stopped\n",
                 code, master_position(*spec.per_node).c_str());
  } else {
    std::fprintf(stderr, "ddplaunch: exit %d, reported by node 0\n", code);
  }
}

/// Adds the process that listens in the place of node 0, if it is another user's.
Error with_holder(Error error, const launcher::PerNode& node) {
  if (!is_loopback_host(node.master_addr)) return error;
  const auto holder = find_port_holder(node.master_addr, node.port);
  if (holder && holder->uid != ::geteuid()) error.text += "; " + holder_text(*holder) + " listens there";
  return error;
}

int run_node(const JobSpec& spec, const rendezvous::LinkToken& token, launcher::KeeperSocket& keeper) {
  reset_signals();
  raise_nofile();  // three descriptors for each worker
  asio::io_context loop(1);
  asio::signal_set stop(loop, SIGTERM, SIGINT, SIGHUP);
  launcher::Agent::Options options;
  auto directory = own_directory();
  if (!directory) return report_exit(directory.error());
  options.directory = std::move(*directory);
  auto facts = launcher::gather_node_facts();
  if (!facts) return report_exit(facts.error());
  options.facts = std::move(*facts);
  options.own = launcher::join_job(spec);
  const auto workers = own_workers(spec, options.facts);
  if (!workers) return report_exit(workers.error());
  options.own->workers = *workers;
  const auto goal = goal_of(spec, token, options.facts.hello.hostname);
  if (!goal) return report_exit(goal.error());

  auto link = join_master(loop, spec, *goal, keeper, stop);
  if (!link) return report_exit(with_holder(link.error(), *spec.per_node));
  launcher::Agent agent(loop, std::move(*link), keeper, std::move(options));
  stop.clear();  // the agent has its own handlers by this point
  const int code = agent.run();
  report_end(spec, code, agent.last_message());
  return code;
}

/// Warns if this machine, which is node 0, lacks node 0's address. NAT or a service may still lead to it.
void warn_of_other_machine(const std::string& address) {
  const std::vector<asio::ip::address> addresses = addresses_of(address);
  const std::string found = addresses.empty() ? "" : addresses.front().to_string();
  const std::string named = "ddplaunch: warning: --master-addr " + one_line(address);
  if (found.empty()) {
    std::fprintf(stderr, "%s does not resolve on this machine; the other nodes must be able to reach it\n",
                 named.c_str());
  } else if (!is_own_address(address)) {
    std::fprintf(stderr,
                 "%s is %sno address of this machine: is --node-rank 0 right here? (It is where NAT or a "
                 "service leads to this machine.)\n",
                 named.c_str(), found == address ? "" : (found + ", ").c_str());
  }
}

}  // namespace

std::string claim_advice(const launcher::JobSpec& spec) {
  if (!spec.per_node) return "";
  return "it has node rank 0, so the --node-rank of this node is " + other_ranks_text(spec.per_node->nodes) +
         "; if this is another job, choose another --job-id";
}

Result<std::unique_ptr<remote::Transport>> make_join_transport(asio::io_context& loop,
                                                               const launcher::JobSpec& spec,
                                                               JoinListener join_listener,
                                                               UserNotifier notify) {
  launcher::JoinTransport::Options options;
  options.port.listener = std::move(join_listener.listener);
  options.port.token = std::move(join_listener.token);
  options.port.job = spec.per_node->link_job;
  options.terms.nodes = static_cast<int>(spec.hosts.size());
  options.terms.protocol = static_cast<int>(rendezvous::kProtocolVersion);
  options.terms.version = std::string(version());
  options.terms.job_id = spec.job_id;
  options.port.where = format_endpoint(spec.per_node->master_addr, spec.per_node->port);
  if (is_loopback_host(spec.per_node->master_addr))
    options.reach =
        " (only this machine reaches it: nodes elsewhere need its name or address as --master-addr)";
  if (!spec.quiet) options.port.on_note = std::move(notify);
  auto transport = DDP_TRY(launcher::JoinTransport::make(loop.get_executor(), std::move(options)));
  return std::unique_ptr<remote::Transport>(std::move(transport));
}

int run_per_node(const RunJob& job, GivenToken given) {
  const JobSpec& spec = job.spec;
  const auto facts = launcher::gather_node_facts();
  if (!facts) return report_exit(facts.error());
  const auto loopback =
      launcher::check_loopback({"this machine", "", "", facts->hello.interfaces},
                               is_loopback_host(spec.per_node->master_addr) &&
                                   spec.per_node->master_addr.find(':') == std::string::npos);
  if (!loopback) return report_exit(loopback.error());
  auto token = find_link_token(spec, given);
  if (!token) return report_exit(token.error());
  auto port = take_control_port(job);
  if (!port) return report_exit(port.error());
  if (*port) {
    if (!spec.quiet) warn_of_other_machine(spec.per_node->master_addr);
    JoinListener join_listener{std::move(**port), std::move(*token)};
    return launch(spec, given, &join_listener, &job.registration);
  }
  launcher::KeeperOptions options;
  options.forget_secrets = [&] {
    given = rendezvous::LinkToken{};
    token = rendezvous::LinkToken{};
  };
  return launcher::run_keeper(options,
                              [&](launcher::KeeperSocket& keeper) { return run_node(spec, *token, keeper); });
}

}  // namespace ddp
