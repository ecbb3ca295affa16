#include "launcher/agent/node_store.h"

#include <cerrno>
#include <utility>

#include "base/secret.h"
#include "launcher/job/job_spec.h"
#include "rendezvous/link/tcp_listener.h"

namespace ddp::launcher {
namespace {

/// Addresses told of for what they sent to the store.
constexpr std::size_t kBrokenPeers = 16;

}  // namespace

Result<rendezvous::StoreOpened> NodeStore::open(const rendezvous::OpenStore& message) {
  server_.reset();  // of the attempt before; its port may be the one that is asked for
  of_worker_ = message.mode == static_cast<std::uint8_t>(StoreMode::kWorker);
  rendezvous::TcpStoreOptions options;
  options.scope =
      message.loopback_only ? rendezvous::ListenScope::kLoopback : rendezvous::ListenScope::kAllInterfaces;
  if (message.port != 0) options.port = message.port;
  if (message.first_port != 0) options.range = rendezvous::PortRange{message.first_port, message.last_port};
  for (const std::string& text : message.allow) {
    // Left out, it could leave an empty filter, which admits everybody.
    if (const auto readable = options.filter.allow_network(text); !readable)
      return within("who may connect to the store", readable.error());
  }
  auto token = random_text(16);
  if (!token) return token.error();
  options.token = "ddplaunch/" + *token;
  options.on_refused = [this](const asio::ip::address& address) {
    tell_("the store refused a connection from " + address.to_string() +
          ", which is no address of this job's nodes");
  };
  options.on_broken = [this](const asio::ip::address& address, const Error& error) {
    // Once for each address: whoever goes on must not flood the user, nor the link.
    if (broken_peers_.size() >= kBrokenPeers || !broken_peers_.insert(address).second) return;
    tell_("the store closed a connection from " + address.to_string() + ": " + error.text);
  };
  rendezvous::StoreOpened opened;
  opened.attempt = message.attempt;
  opened.token = options.token;
  auto server = rendezvous::TcpStoreServer::open(executor_, std::move(options));
  if (!server) {
    Error error = server.error();
    if (error.sys == EADDRINUSE && message.port != 0)
      error.text += "; name another --master-port, or leave it out, and a free port is taken";
    return error;
  }
  server_.emplace(std::move(*server));
  opened.port = server_->port();
  return opened;
}

void NodeStore::workers_start() {
  if (of_worker_) server_.reset();
}

void NodeStore::stop() {
  if (server_) server_->stop();
}

}  // namespace ddp::launcher
