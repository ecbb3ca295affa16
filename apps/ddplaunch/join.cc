#include "apps/ddplaunch/commands.h"
#include "base/format_text.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/ddplaunch/join_listener.h"
#include "apps/ddplaunch/local_endpoint.h"
#include "apps/ddplaunch/start_up.h"
#include "base/asio.h"
#include "base/build_identity.h"
#include "base/child_process.h"
#include "base/exit_status.h"
#include "base/find_program.h"
#include "base/readable.h"
#include "base/safe_text.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/node_facts.h"
#include "launcher/job/join_job.h"
#include "launcher/keeper/keeper.h"
#include "launcher/links/join_link.h"
#include "launcher/report/exit_code.h"
#include "launcher/supervisor/net_choice.h"
#include "launcher/supervisor/start_messages.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/start/resolver.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/secure/secure_stream_key.h"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;
using Endpoints = std::vector<asio::ip::tcp::endpoint>;
using launcher::JobSpec;
using launcher::JoinedLink;

/// Limit of one query to the name service.
constexpr std::chrono::seconds kLookUpTime{10};
/// Time until the notice that this node waits for node 0, and where node 0 should be on this machine.
constexpr std::chrono::seconds kSilence{5};
constexpr std::chrono::seconds kSilenceHere{2};

int end_with(const Error& error) {
  const int code = launcher::exit_code_of(error);
  std::fprintf(stderr, "ddplaunch: exit %d: %s\n", code, error.text.c_str());
  return code;
}

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
    if (is_loopback_address(node.master_addr))
      text += "; if node 0 is elsewhere, give all nodes its name or address as --master-addr";
    else if (node.rank)
      text += ": is --node-rank " + std::to_string(*node.rank) + " right here?";
  }
  return text + " (--start-timeout " + format_duration(spec.start_timeout) + ")";
}

Awaitable<Result<Endpoints>> look_up(remote::Resolver* resolver, std::string host, std::uint16_t port,
                                     Clock::time_point deadline) {
  const auto limit = std::min(deadline, Clock::now() + kLookUpTime);
  auto found = co_await resolver->resolve(std::move(host), port, AF_UNSPEC, limit);
  if (!found) co_return found.error();
  Endpoints endpoints;
  for (const remote::Endpoint& one : *found) {
    asio::ip::tcp::endpoint& endpoint = endpoints.emplace_back();
    endpoint.resize(one.size);
    std::memcpy(endpoint.data(), &one.address, one.size);
  }
  co_return endpoints;
}

/// Returns the number of workers that this node's options request, or 0 if no option does. The node counts it
/// for its own rule.
Result<std::uint32_t> own_workers(const JobSpec& spec, const launcher::NodeFacts& facts) {
  if (spec.nproc.kind == launcher::ProcsPerNode::Kind::kUnset) return std::uint32_t{0};
  rendezvous::NodeSlots slots;
  slots.name = facts.hello.hostname;
  slots.gpus = static_cast<int>(facts.hello.gpus);
  slots.cpus = static_cast<int>(facts.hello.cpus);
  const auto plan = rendezvous::plan_ranks({slots}, launcher::procs_wanted(spec));
  if (!plan) return plan.error();
  return static_cast<std::uint32_t>(plan->world_size);
}

Result<launcher::JoinGoal> goal_of(const JobSpec& spec, const rendezvous::LinkToken& token,
                                   const std::string& hostname) {
  const launcher::PerNode& node = *spec.per_node;
  launcher::JoinGoal goal;
  goal.host = node.master_addr;
  goal.port = node.port;
  goal.as.job = node.link_job;
  goal.as.node = rendezvous::link_name_of(hostname);
  auto key = rendezvous::link_key(token.secret, goal.as.role, goal.as.job, goal.as.node);
  if (!key) return key.error();
  goal.as.key = std::move(*key);
  goal.as.token_origin = token.origin;
  goal.as.token_check = rendezvous::token_check(token.secret);
  goal.request.protocol = static_cast<int>(rendezvous::kProtocolVersion);
  goal.request.version = std::string(version());
  goal.request.rank = node.rank;
  goal.request.nodes = node.nodes;
  return goal;
}

/// The connection to the master, as one task of the loop.
struct Joining {
  asio::io_context& loop;
  const JobSpec& spec;
  const launcher::JoinGoal& goal;
  const rendezvous::Resolve& resolve;
  std::shared_ptr<const rendezvous::SecureContext> context;
  Result<JoinedLink> outcome = Error{ErrorCode::kLinkLost, "the ddplaunch of this node was killed", 0};
  std::optional<Error> stopped = std::nullopt;  ///< set by a signal, which takes precedence over `outcome`

  static Awaitable<> join(Joining* self) {
    const auto deadline = Clock::now() + self->spec.start_timeout;
    auto joined = co_await launcher::join_master(self->context, self->resolve, self->goal, deadline);
    if (joined) {
      if (!self->spec.quiet) {
        std::fprintf(stderr, "ddplaunch: joined job %s at %s as node %d; its output is shown there\n",
                     joined->job_id.c_str(), master_position(*self->spec.per_node).c_str(), joined->rank);
      }
      const remote::AgentHello hello{self->goal.request.protocol, self->goal.request.version};
      (void)co_await launcher::write_line(*joined->stream, remote::hello_line(hello));
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

Result<JoinedLink> join_master(asio::io_context& loop, const JobSpec& spec, const launcher::JoinGoal& goal,
                               const launcher::KeeperLink& keeper, asio::signal_set& stop) {
  auto context = rendezvous::SecureContext::make();
  if (!context) return context.error();
  remote::Resolver resolver(loop.get_executor(), "give all nodes another --master-addr");
  const rendezvous::Resolve resolve = [&resolver](std::string host, std::uint16_t port,
                                                  Clock::time_point deadline) {
    return look_up(&resolver, std::move(host), port, deadline);
  };
  asio::posix::stream_descriptor keeper_fd(loop, ::fcntl(keeper.watch_fd(), F_DUPFD_CLOEXEC, 0));
  asio::steady_timer silence(loop);
  if (!spec.quiet) {
    const bool here = is_own_address(spec.per_node->master_addr);
    silence.expires_after(here ? kSilenceHere : kSilence);
    silence.async_wait([&spec, here](const error_code& cancelled) {
      if (!cancelled) std::fprintf(stderr, "ddplaunch: %s\n", waiting_text(spec, here).c_str());
    });
  }
  Joining joining{loop, spec, goal, resolve, std::move(*context)};
  stop.async_wait([&joining](const error_code& cancelled, int number) {
    if (cancelled) return;
    joining.stopped = Error{ErrorCode::kCancelled,
                            "stopped by " + signal_name(number) + " while it waited for node 0 at " +
                                master_position(*joining.spec.per_node),
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
  return std::move(joining.outcome);
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
  if (!is_loopback_address(node.master_addr)) return error;
  const auto holder = find_port_holder(node.master_addr, node.port);
  if (holder && holder->uid != ::geteuid()) error.text += "; " + holder_text(*holder) + " listens there";
  return error;
}

int run_node(const JobSpec& spec, const rendezvous::LinkToken& token, launcher::KeeperLink& keeper) {
  take_signals();
  raise_nofile();  // three descriptors for each worker
  asio::io_context loop(1);
  asio::signal_set stop(loop, SIGTERM, SIGINT, SIGHUP);
  launcher::Agent::Options options;
  auto directory = own_directory();
  if (!directory) return end_with(directory.error());
  options.directory = std::move(*directory);
  auto facts = launcher::gather_node_facts();
  if (!facts) return end_with(facts.error());
  options.facts = std::move(*facts);
  options.own = launcher::join_job(spec);
  const auto workers = own_workers(spec, options.facts);
  if (!workers) return end_with(workers.error());
  options.own->workers = *workers;
  const auto goal = goal_of(spec, token, options.facts.hello.hostname);
  if (!goal) return end_with(goal.error());

  auto link = join_master(loop, spec, *goal, keeper, stop);
  if (!link) return end_with(with_holder(link.error(), *spec.per_node));
  launcher::Agent agent(loop, std::move(link->stream), keeper, std::move(options));
  stop.clear();  // the agent has its own handlers by this point
  const int code = agent.run();
  report_end(spec, code, agent.last_message());
  return code;
}

/// Warns if this machine, which is node 0, lacks node 0's address. NAT or a service may still lead to it.
void warn_of_other_machine(const std::string& address) {
  const std::string found = first_address(address);
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

int run_per_node(const RunJob& job, GivenToken given) {
  const JobSpec& spec = job.spec;
  const auto facts = launcher::gather_node_facts();
  if (!facts) return end_with(facts.error());
  const auto loopback =
      launcher::check_loopback({"this machine", "", "", facts->hello.interfaces},
                               is_loopback_address(spec.per_node->master_addr) &&
                                   spec.per_node->master_addr.find(':') == std::string::npos);
  if (!loopback) return end_with(loopback.error());
  auto token = find_link_token(spec, given);
  if (!token) return end_with(token.error());
  auto port = take_control_port(*spec.per_node);
  if (!port) return end_with(port.error());
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
                              [&](launcher::KeeperLink& keeper) { return run_node(spec, *token, keeper); });
}

}  // namespace ddp
