#pragma once

#include <chrono>
#include <string>
#include <utility>

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

}  // namespace ddp::launcher
