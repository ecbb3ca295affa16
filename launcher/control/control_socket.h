#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// The listening socket of a job, in a private directory of its user. The destructor removes its file,
/// and the directory if it is empty.
class ControlSocket {
 public:
  /// Makes NAME.sock (0600) in $XDG_RUNTIME_DIR/ddplaunch (0700), or in ddplaunch-UID/run of TMPDIR when
  /// there is no such variable. Blocks on the disk. kUsage: the directory is not this user's alone.
  static Result<ControlSocket> bind(const std::string& name);

  ControlSocket(ControlSocket&& other) noexcept;
  ControlSocket& operator=(ControlSocket&&) = delete;
  ~ControlSocket();

  const std::string& path() const { return path_; }
  /// Returns the descriptor, which the caller then owns.
  int release() { return fd_.release(); }

 private:
  ControlSocket(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;  ///< empty: moved away
};

/// Sends one request to the control socket of a job, with `body` unless it is empty, and returns the reply's
/// body. Blocks for `limit` at most.
/// kUnreachable: nobody listens there. kTimeout: no reply in time. kProtocol: the reply is no success.
Result<std::string> ask_job(const std::string& socket, const std::string& method, const std::string& target,
                            std::chrono::milliseconds limit, std::string body = {});

/// A question about running workers.
struct WorkerRequest {
  std::optional<std::uint32_t> rank;  ///< unset: all
  std::vector<std::string> argv;      ///< a command to run as `rank` would; empty: stacks
  std::chrono::milliseconds timeout{60'000};
};
struct WorkerReply {
  struct Text {
    std::uint32_t rank = 0;
    std::string node;
    std::string text;
  };
  std::vector<Text> texts;
  int exit_code = 0;                  ///< of the command
  std::vector<std::string> troubles;  ///< why texts are missing; empty: none is
};

/// The answers of the owner of a job to its control socket. Called on the loop thread; must not wait.
struct ControlHandlers {
  std::function<std::string()> status;   ///< JSON
  std::function<std::string()> metrics;  ///< Prometheus text
  /// `now`: without a grace period. `pid`, `uid`: the client.
  std::function<void(bool now, pid_t pid, uid_t uid)> stop;
  /// Calls `done` once, now or later, unless the request is cancelled. Returns its number.
  using WorkersAnswered = std::function<void(WorkerReply)>;
  std::function<std::uint32_t(const WorkerRequest& request, WorkersAnswered done)> ask_workers;
  /// Calls `done` once, now or later, with the verdict as JSON: {"hang": null} if no worker runs.
  using HangAnswered = std::function<void(const std::string&)>;
  std::function<void(HangAnswered done)> ask_hang;
  std::function<void(std::uint32_t number)> cancel;  ///< nobody waits for the answer any more
};

/// Reads the body of a request about workers: {"rank": 3, "argv": ["ls"], "timeout_ms": 1000}, each key may
/// be missing. Unset: it is none.
std::optional<WorkerRequest> parse_worker_request(const std::string& body);

/// Serves a job's control socket (docs/users/operate.md). A client that closes its connection cancels its
/// request. Clients that wait for workers take no place of others. Loop thread.
class ControlServer {
 public:
  static constexpr std::size_t kMostWaiting = 64;  ///< further requests about workers get 503

  /// Accepts clients of `uid` and of root.
  ControlServer(asio::io_context& loop, ControlSocket socket, ControlHandlers handlers, uid_t uid);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// Closes the socket and all connections, so that no work is left on the loop.
  void close();

 private:
  struct State;
  ControlSocket socket_;  ///< only its file; the server owns the descriptor
  std::shared_ptr<State> state_;
};

}  // namespace ddp::launcher
