#include "apps/ddplaunch/join_listener.h"

#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "apps/ddplaunch/local_endpoint.h"
#include "base/build_identity.h"
#include "base/format_text.h"
#include "launcher/links/daemon_token.h"
#include "launcher/links/join_shell.h"
#include "rendezvous/protocol/message.h"

namespace ddp {
namespace {

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
  if (!not_ours || is_loopback_address(node.master_addr)) return one;
  return rendezvous::listen_tcp(ListenScope::kAllInterfaces, node.port);
}

}  // namespace

Result<rendezvous::LinkToken> find_link_token(const launcher::JobSpec& spec, const GivenToken& given) {
  if (!spec.token_file.empty()) return rendezvous::read_token_file(spec.token_file);
  if (!given) return given.error();
  if (!given->secret.empty()) return given->copy();
  const PerNode& node = *spec.per_node;
  if (node.insecure) return rendezvous::make_token(kPublicToken, "--insecure, which is no token");
  if (!is_loopback_address(node.master_addr)) return no_token(node);
  auto own = launcher::loopback_token();
  if (own) return own;
  Error error = own.error();
  error.text +=
      "; nodes of one user on one machine authenticate with this file. Fix the file, or give all nodes "
      "DDPLAUNCH_TOKEN or --token-file FILE";
  return error;
}

Result<std::optional<rendezvous::TcpListener>> take_control_port(const PerNode& node) {
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
  if (!stranger) text += "; another job may have its node 0 here.";
  text += stranger ? "; give all nodes another --master-port"
                   : " Give all nodes of this job another --master-port";
  return Error{ErrorCode::kSystem, std::move(text), EADDRINUSE};
}

Result<std::unique_ptr<remote::RemoteShell>> make_join_shell(asio::io_context& loop,
                                                             const launcher::JobSpec& spec,
                                                             JoinListener join_listener,
                                                             UserNotifier notify) {
  launcher::JoinShell::Options options;
  options.listener = std::move(join_listener.listener);
  options.token = std::move(join_listener.token);
  options.link_job = spec.per_node->link_job;
  options.terms.nodes = static_cast<int>(spec.hosts.size());
  options.terms.protocol = static_cast<int>(rendezvous::kProtocolVersion);
  options.terms.version = std::string(version());
  options.terms.job_id = spec.job_id;
  options.where = format_endpoint(spec.per_node->master_addr, spec.per_node->port);
  if (is_loopback_address(spec.per_node->master_addr))
    options.reach =
        " (only this machine reaches it: nodes elsewhere need its name or address as --master-addr)";
  if (!spec.quiet) options.on_note = std::move(notify);
  auto shell = launcher::JoinShell::make(loop.get_executor(), std::move(options));
  if (!shell) return shell.error();
  return std::unique_ptr<remote::RemoteShell>(std::move(*shell));
}

}  // namespace ddp
