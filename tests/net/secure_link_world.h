#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/link/secure_link.h"
#include "tests/support/catch.h"
#include "tests/support/resolve_address.h"
#include "tests/support/run_until.h"

namespace ddp::test {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

inline const std::string kToken = "0123456789abcdef0123456789abcdef";

/// A guarded port on loopback and its notices, all on the test's own thread.
struct GuardedPort {
  asio::io_context loop{1};
  std::shared_ptr<rendezvous::SecureAcceptor> acceptor;
  std::uint16_t port = 0;
  std::vector<std::unique_ptr<ByteStream>> joined;
  std::vector<rendezvous::LinkIdentity> identities;
  std::vector<rendezvous::LinkHello> hellos;
  rendezvous::LinkAnswer reply{1, "job1"};
  bool answers = true;  ///< false: closes each link that has been proven
  std::vector<std::string> notes;

  explicit GuardedPort(rendezvous::AdmissionLimits limits = {}) {
    guard(rendezvous::listen_tcp(rendezvous::ListenScope::kLoopback, 0).value(), limits);
  }
  /// Accepts agents of job1.
  void guard(rendezvous::TcpListener listener, rendezvous::AdmissionLimits limits = {}) {
    port = listener.port;
    rendezvous::SecureAcceptorOptions options;
    options.listener = std::move(listener);
    options.where = "the control port";
    options.token = rendezvous::make_token(kToken, "DDPLAUNCH_TOKEN").value();
    options.limits = limits;
    options.job = "job1";
    options.on_joined = [this](rendezvous::JoinedPeer peer) {
      if (answers) run(answer(peer.stream.get(), answer_line(reply)));
      joined.push_back(std::move(peer.stream));
      identities.push_back(std::move(peer.who));
      hellos.push_back(std::move(peer.hello));
      if (!answers) joined.back()->close();
    };
    options.on_note = [this](const std::string& line) { notes.push_back(line); };
    acceptor = rendezvous::SecureAcceptor::start(loop.get_executor(), std::move(options)).value();
  }
  ~GuardedPort() {
    acceptor->stop();
    joined.clear();
    loop.restart();
    loop.poll();
  }

  /// Runs the loop until `holds` returns true; false after 25 s.
  template <class Condition>
  bool run_until(const Condition& holds) {
    return test::run_until(loop, holds);
  }

  void run(Awaitable<> task) {
    asio::co_spawn(loop, std::move(task), [](const std::exception_ptr& failure) {
      if (failure) std::rethrow_exception(failure);
    });
  }
  static Awaitable<> answer(ByteStream* stream, std::string line) {
    (void)co_await rendezvous::write_line(*stream, std::move(line));
  }

  rendezvous::LinkGoal joiner(const std::string& token = kToken, const std::string& job = "job1",
                              rendezvous::LinkRole role = rendezvous::LinkRole::kAgent) const {
    const rendezvous::LinkToken given{Secret{std::string_view(token)}, "the file /run/token"};
    return rendezvous::link_goal("gpu01", port, {role, job, "gpu02", {}}, given, {1, "0.1.0"}).value();
  }
  /// How messages name this port.
  std::string where() const { return "gpu01:" + std::to_string(port) + " (127.0.0.1)"; }
  /// Runs one join to its end, at this port or another on loopback.
  rendezvous::JoinOutcome join(const rendezvous::LinkGoal& goal, std::chrono::milliseconds limit = 15s,
                               std::uint16_t at = 0) {
    std::optional<rendezvous::JoinOutcome> outcome;
    start_join(goal, outcome, limit, at);
    REQUIRE(run_until([&] { return outcome.has_value(); }));
    return std::move(*outcome);
  }
  void start_join(const rendezvous::LinkGoal& goal, std::optional<rendezvous::JoinOutcome>& outcome,
                  std::chrono::milliseconds limit = 15s, std::uint16_t at = 0) {
    const asio::ip::tcp::endpoint place(asio::ip::address_v4::loopback(), at != 0 ? at : port);
    asio::co_spawn(loop, rendezvous::secure_connect({place}, goal, Clock::now() + limit),
                   [&outcome](const std::exception_ptr& failure, rendezvous::JoinOutcome result) {
                     if (failure) std::rethrow_exception(failure);
                     outcome = std::move(result);
                   });
  }
};

/// A loopback socket that violates the protocol. Its calls do not block.
class RawPeer {
 public:
  explicit RawPeer(UniqueFd fd) : fd_(std::move(fd)) {}
  /// Connects to 127.0.0.1:`port` from 127.0.0.`from`.
  explicit RawPeer(std::uint16_t port, std::uint8_t from = 1)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + from);
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    REQUIRE(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  bool say(std::string_view bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
  }
  /// Returns the available bytes, and records a close by the remote side.
  std::string hear() {
    std::string all;
    char buffer[4096];
    ssize_t count = 0;
    while ((count = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0)
      all.append(buffer, static_cast<std::size_t>(count));
    if (count == 0 || errno != EAGAIN) closed_ = true;
    return all;
  }
  bool is_closed() {
    heard_ += hear();
    return closed_;
  }
  const std::string& heard() const { return heard_; }  ///< read by is_closed()
  int fd() const { return fd_.get(); }
  UniqueFd take() { return std::move(fd_); }

 private:
  UniqueFd fd_;
  std::string heard_;
  bool closed_ = false;
};

/// A loopback port that a test serves itself.
struct RawPort {
  UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  std::uint16_t port = 0;

  RawPort() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
  }
  void listen() { REQUIRE(::listen(fd.get(), 16) == 0); }
  /// Returns the next connection; the loop runs meanwhile.
  RawPeer accept(GuardedPort& world) {
    UniqueFd peer;
    REQUIRE(world.run_until([&] {
      peer.reset(::accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      return static_cast<bool>(peer);
    }));
    return RawPeer(std::move(peer));
  }
};

/// One side of a conversation: its sent and received bytes, and the end of its reading.
struct Talk {
  std::string heard;
  std::size_t sent = 0;
  error_code failed;
  std::optional<error_code> end;

  static Awaitable<> say(Talk* talk, ByteStream* to, std::string text) {
    while (talk->sent < text.size() && !talk->failed) {
      const auto [error, count] =
          co_await to->write_some(asio::buffer(text.data() + talk->sent, text.size() - talk->sent));
      talk->sent += count;
      talk->failed = error;
    }
  }
  static Awaitable<> hear(Talk* talk, ByteStream* from, std::size_t wanted) {
    std::string buffer(30'000, '\0');
    error_code error;
    while (!error && talk->heard.size() < wanted) {
      const auto [failed, count] = co_await from->read_some(asio::buffer(buffer));
      error = failed;
      talk->heard.append(buffer.data(), count);
    }
    if (error) talk->end = error;
  }
};

inline std::string some_bytes(std::size_t size, unsigned seed = 0) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<char>((i + seed) * 2654435761u >> 13);
  return bytes;
}

}  // namespace ddp::test
