#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "remote/hosts/host.h"

namespace ddp::remote {

/// The end of a remote command. `status` is unset if the connection broke before the remote side reported it.
struct ChannelEnd {
  std::optional<int> status;    ///< exit status, 128+n for a signal
  std::optional<Error> broken;  ///< why the connection ended, if it ended before the command
  bool closed_early = false;    ///< the server closed before its greeting: worth another try
};

/// The end of a wait for a channel of `host` that was cancelled.
inline ChannelEnd cancelled_end(const std::string& host) {
  return {std::nullopt, Error{ErrorCode::kCancelled, host + ": cancelled", 0}};
}

/// One command that runs on a host, as two byte streams. The caller owns it and uses it on the loop thread
/// only. Every transport provides the same two local sockets, so that callers handle one kind of AsyncStream.
/// A transport is a libssh session on an I/O thread, the ssh program, or a child process. The link needs only
/// a ByteStream.
class Channel {
 public:
  using Socket = asio::local::stream_protocol::socket;

  virtual ~Channel() = default;  ///< ends the connection without waiting; the remote command sees end of file

  /// Numeric address of the host as it was reached. Empty when nothing was connected (a child) or it is
  /// unknown.
  virtual std::string address() const { return {}; }
  /// TCP port to which this machine itself connected. 0: another program or the host connected, or a child.
  virtual std::uint16_t port() const { return 0; }
  /// The command runs on this machine: no network lies in between.
  virtual bool is_local() const { return false; }

  virtual Socket& socket() = 0;  ///< the command's stdin (write) and stdout (read); EOF when it has ended
  virtual Socket& errors() = 0;  ///< the command's stderr (read); not open if the transport has none
  /// The bytes of socket(), for one reader and one writer; the channel outlives it. A channel over its own
  /// stream needs no local socket this way. Use either socket() or stream(), not both.
  virtual std::unique_ptr<ByteStream> stream() { return stream_over(socket()); }

  /// The remote side has answered: the channel releases what only its start needed (a slot at a jump host).
  /// It may be called at most once, and need not be called.
  virtual void greeted() {}

  /// Sends SIGTERM to a program on this machine. One that is stopped (SIGSTOP) does not see end of file.
  virtual void terminate() {}

  /// Waits until the command has ended and both streams were delivered. Call it at most once.
  virtual Awaitable<ChannelEnd> end() = 0;
};

using Deadline = std::chrono::steady_clock::time_point;

/// Starts commands on hosts. One object serves all hosts of a job; any number of calls may run at once.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Runs `argv` on `host`. The words of the command line need no quoting in any login shell, or are quoted
  /// so that sh, csh and fish read them alike. Errors: kUnreachable (resolve, connect, host key,
  /// authentication), kTimeout at `deadline`, kSystem. The text names the failed step and what to do. Loop
  /// thread only.
  virtual Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                           Deadline deadline) = 0;

  /// Returns what the start on this host waits for: "connecting", "SSH greeting". `opened`: open() has
  /// returned. Loop thread only.
  virtual const char* step(const std::string& /*host*/, bool opened) const {
    return opened ? "starting ddplaunchd" : "connecting";
  }

  /// The layers between an open channel and the command, as text; null: none.
  virtual const char* intermediary() const { return "the login shell there"; }
};

/// Limits the concurrent logins at one place (address and port, or a jump host): servers drop connections
/// beyond MaxStartups, 10 by default. Loop thread only.
class LoginWindow {
 private:
  struct Queue;

 public:
  LoginWindow(asio::any_io_executor loop, unsigned limit) : loop_(std::move(loop)), limit_(limit) {}

  /// The right to log in; its destructor releases it.
  class Slot {
   public:
    explicit Slot(std::shared_ptr<Queue> queue);
    Slot(Slot&& other) noexcept = default;
    Slot(const Slot&) = delete;
    Slot& operator=(Slot&&) = delete;
    ~Slot();

   private:
    std::shared_ptr<Queue> queue_;
  };

  /// Waits for a slot, in order of arrival. Errors: kTimeout at the deadline, kCancelled. `label` is the
  /// host's name in their text.
  Awaitable<Result<Slot>> acquire(std::string place, std::string label, Deadline deadline);

 private:
  asio::any_io_executor loop_;
  unsigned limit_;
  std::map<std::string, std::shared_ptr<Queue>> queues_;
};

/// Decides when to reconnect to a server that closed before its greeting, as servers with too many concurrent
/// logins do (MaxStartups). The pauses grow and are random, so that hosts refused together do not come back
/// together. Retry nothing else: servers lock out clients whose logins fail repeatedly.
class LoginRetry {
 public:
  static constexpr int kMostTries = 10;

  /// Returns the pause before the next try, or nullopt after the last try.
  template <typename Random>
  std::optional<std::chrono::nanoseconds> next(Random& random) {
    if (++tries_ >= kMostTries) return std::nullopt;
    const auto pause = std::exchange(pause_, std::min(pause_ * 2, std::chrono::milliseconds(2000)));
    const double jitter = std::uniform_real_distribution<double>(0.5, 1.5)(random);
    return std::chrono::duration_cast<std::chrono::nanoseconds>(pause * jitter);
  }

 private:
  int tries_ = 0;
  std::chrono::milliseconds pause_{50};
};

}  // namespace ddp::remote
