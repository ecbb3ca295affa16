#pragma once

#include <openssl/ssl.h>
#include <poll.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/secure_acceptor.h"
#include "rendezvous/secure_connect.h"
#include "rendezvous/secure_stream_key.h"
#include "tests/support/catch.h"

namespace ddp::test {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

inline const std::string kToken = "0123456789abcdef0123456789abcdef";

/// A guarded port on loopback and what it said, all on the test's own thread.
struct GuardedPort {
  asio::io_context loop{1};
  std::shared_ptr<const rendezvous::SecureContext> context = rendezvous::SecureContext::make().value();
  std::shared_ptr<rendezvous::SecureAcceptor> acceptor;
  std::uint16_t port = 0;
  std::vector<std::unique_ptr<ByteStream>> joined;
  std::vector<rendezvous::LinkIdentity> identities;
  std::vector<std::string> notes;
  std::vector<std::string> plain;  ///< what on_plain was given, when `take_plain`
  bool take_plain = false;

  explicit GuardedPort(rendezvous::GuardLimits limits = {}, const std::string& job = "job1") {
    auto listener = rendezvous::listen_tcp(rendezvous::ListenScope::kLoopback, 0).value();
    port = listener.port;
    rendezvous::SecureAcceptorOptions options;
    options.where = "the control port";
    options.token = rendezvous::make_token(kToken, "DDPLAUNCH_TOKEN").value();
    options.limits = limits;
    options.admits = [job](const rendezvous::LinkIdentity& who) -> std::optional<rendezvous::LinkRefusal> {
      if (who.role != rendezvous::LinkRole::kAgent) return rendezvous::LinkRefusal::kOtherRole;
      if (who.job != job) return rendezvous::LinkRefusal::kOtherJob;
      return std::nullopt;
    };
    rendezvous::SecureAcceptorCallbacks callbacks;
    callbacks.on_joined = [this](std::unique_ptr<ByteStream> stream, const rendezvous::LinkIdentity& who,
                                 const asio::ip::address&) {
      joined.push_back(std::move(stream));
      identities.push_back(who);
    };
    callbacks.on_note = [this](const std::string& line) { notes.push_back(line); };
    callbacks.on_plain = [this](UniqueFd& socket, const std::string& received) {
      if (!take_plain) return false;
      plain.push_back(received);
      socket.reset();
      return true;
    };
    acceptor = rendezvous::SecureAcceptor::start(loop.get_executor(), context, std::move(listener),
                                                 std::move(options), std::move(callbacks))
                   .value();
  }
  ~GuardedPort() {
    acceptor->stop();
    joined.clear();
    loop.restart();
    loop.poll();
  }

  /// Runs the loop until `condition` holds; false after 20 s.
  template <class Condition>
  bool run_until(Condition condition) {
    const auto give_up = Clock::now() + 20s;
    loop.restart();
    while (!condition()) {
      if (Clock::now() >= give_up) return false;
      loop.run_one_for(50ms);
      if (loop.stopped()) loop.restart();
    }
    return true;
  }

  asio::ip::tcp::endpoint endpoint() const { return {asio::ip::address_v4::loopback(), port}; }
  rendezvous::JoinAs joiner(const std::string& token = kToken, const std::string& job = "job1",
                            rendezvous::LinkRole role = rendezvous::LinkRole::kAgent) const {
    const Secret secret{std::string_view(token)};
    return {role,
            job,
            "gpu02",
            rendezvous::link_key(secret, role, job, "gpu02").value(),
            "the file /run/token",
            rendezvous::token_check(secret)};
  }
  /// One join to its end, `outcome` of it.
  rendezvous::JoinOutcome join(const rendezvous::JoinAs& as, std::chrono::milliseconds limit = 15s) {
    std::optional<rendezvous::JoinOutcome> outcome;
    asio::co_spawn(loop,
                   rendezvous::secure_connect(context, {endpoint()}, "gpu01:" + std::to_string(port), as,
                                              Clock::now() + limit),
                   [&outcome](const std::exception_ptr& failure, rendezvous::JoinOutcome result) {
                     if (failure) std::rethrow_exception(failure);
                     outcome = std::move(result);
                   });
    REQUIRE(run_until([&] { return outcome.has_value(); }));
    return std::move(*outcome);
  }
};

}  // namespace ddp::test
