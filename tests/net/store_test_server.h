#pragma once

#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/store_tcp/tcp_store_server.h"

namespace ddp::test {

/// A store on its own thread, for tests that block as clients do.
class StoreServer {
 public:
  using Options = rendezvous::TcpStoreOptions;

  static Options loopback() {
    Options options;
    options.scope = rendezvous::ListenScope::kLoopback;
    return options;
  }

  explicit StoreServer(Options options = loopback()) {
    options.on_refused = [this](const asio::ip::address& peer) { note("refused " + peer.to_string()); };
    options.on_broken = [this](const asio::ip::address& peer, const Error& error) {
      note("broken " + peer.to_string() + ": " + error.text);
    };
    server_.emplace(rendezvous::TcpStoreServer::open(loop_.get_executor(), std::move(options)).value());
    port_ = server_->port();
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~StoreServer() {
    on_loop([this] { server_->stop(); });
    work_.reset();
    thread_.join();
  }

  std::uint16_t port() const { return port_; }
  /// Runs the call on the server's thread and returns its result.
  template <class F>
  auto on_loop(F call) -> decltype(call()) {
    std::packaged_task<decltype(call())()> task(std::move(call));
    auto result = task.get_future();
    asio::post(loop_, [&task] { task(); });
    return result.get();
  }
  rendezvous::TcpStoreServer& server() { return *server_; }  // on its thread only
  /// Returns the texts of the callbacks so far, read on the server's thread.
  std::vector<std::string> notes() {
    return on_loop([this] { return notes_; });
  }
  std::thread::native_handle_type thread() { return thread_.native_handle(); }

 private:
  void note(std::string text) { notes_.push_back(std::move(text)); }

  asio::io_context loop_{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_{loop_.get_executor()};
  std::optional<rendezvous::TcpStoreServer> server_;
  std::uint16_t port_ = 0;
  std::vector<std::string> notes_;
  std::thread thread_;
};

}  // namespace ddp::test
