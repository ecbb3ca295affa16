#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "rendezvous/link/tcp_listener.h"
#include "rendezvous/store_tcp/tcp_store_server.h"

namespace ddp::test {

/// Consecutive ports that are free and that no other test gets while this lives; see tests/support/ports.py,
/// which draws from the same ports where the kernel does not. Like there, an abstract socket with the port's
/// number in its name is the reservation.
class FreePorts {
 public:
  explicit FreePorts(std::size_t count) : first_(first_of(count)) {}
  std::uint16_t first() const { return first_; }

 private:
  std::uint16_t first_of(std::size_t count) {
    std::uint16_t port = static_cast<std::uint16_t>(7000 + std::random_device{}() % 2900);
    while (names_.size() < count) {
      names_.push_back(reserve(port++));
      if (!names_.back() || !rendezvous::is_port_free(rendezvous::ListenScope::kAllInterfaces, port - 1))
        names_.clear();
      if (port == 10000) port = 7000, names_.clear();
    }
    return static_cast<std::uint16_t>(port - count);
  }
  static UniqueFd reserve(std::uint16_t port) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::string name = std::string(1, '\0') + "test port " + std::to_string(port);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof address.sun_path);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) fd.reset();
    return fd;
  }

  std::vector<UniqueFd> names_;  // keeps the names bound
  std::uint16_t first_;
};

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
  /// Blocks until the server has read every byte that clients have sent, also of unfinished requests. Which
  /// of several connections a busy server reads first is up to the kernel, so a test in which the order
  /// counts waits in between.
  void wait_until_read() {
    // Twice: the rows of the table are read one after the other, and bytes may move from the client's row to
    // the server's in between. After a first empty table no client has any left to move.
    while (unread() > 0 || unread() > 0)
      std::this_thread::yield();
    on_loop([] {});  // the handler that read the last bytes has returned
  }
  rendezvous::TcpStoreServer& server() { return *server_; }  // on its thread only
  /// Returns the texts of the callbacks so far, read on the server's thread.
  std::vector<std::string> notes() {
    return on_loop([this] { return notes_; });
  }
  std::thread::native_handle_type thread() { return thread_.native_handle(); }

 private:
  // Returns the bytes in the kernel's queues to this server, of connections that were not accepted too.
  unsigned long unread() const {
    unsigned long queued = 0;
    for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
      std::ifstream table(path);
      for (std::string line; std::getline(table, line);) {
        unsigned local = 0, remote = 0;
        unsigned long sent = 0, received = 0;
        if (std::sscanf(line.c_str(), " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%x %*x %lx:%lx", &local, &remote, &sent,
                        &received) != 4)
          continue;
        if (local == port_) queued += received;
        if (remote == port_) queued += sent;
      }
    }
    return queued;
  }
  void note(std::string text) { notes_.push_back(std::move(text)); }

  asio::io_context loop_{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_{loop_.get_executor()};
  std::optional<rendezvous::TcpStoreServer> server_;
  std::uint16_t port_ = 0;
  std::vector<std::string> notes_;
  std::thread thread_;
};

}  // namespace ddp::test
