#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "remote/shells/remote_shell.h"

namespace ddp::remote {

/// Both ends of a local stream, closed on exec.
struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

/// A larger buffer needs fewer context switches between two processes. The kernel grants as much as the
/// administrator allows.
inline constexpr int kSendBuffer = 256 << 10;

/// `flags`: SOCK_NONBLOCK or 0. `send_buffer`: bytes that wait in each direction.
Result<SocketPair> make_socket_pair(int flags, int send_buffer = kSendBuffer);

/// Registers a socket with the loop.
Result<asio::local::stream_protocol::socket> as_socket(const asio::any_io_executor& loop, UniqueFd fd);

/// A program on this machine, whose three streams become a Channel.
struct ChildCommand {
  enum class Kind {
    kProgram,    ///< the command itself: its exit status is the result; only end of file asks it to end
    kSshClient,  ///< carries a command of another host (srun as well): 255 is its own failure, SIGTERM ends
                 ///< it
  };
  std::string host;               ///< for messages
  std::vector<std::string> argv;  ///< argv[0] is searched in PATH if it has no slash
  Kind kind = Kind::kProgram;
  std::vector<std::string> unset{};  ///< names of variables that are not inherited
  std::shared_ptr<void>
      held{};            ///< released at Channel::greeted(), at the end of the process, or with the channel
  std::string advice{};  ///< for an SSH client that fails before greeted(): "; what to do"
};

/// Starts the program in a process group of its own, so that Ctrl-C on the terminal does not reach it.
/// Errors: kExec with the errno when the program cannot be executed, kSystem. Loop thread only.
///
/// A Channel that is destroyed before greeted() ends the whole group with SIGTERM and then SIGKILL.
/// Afterwards a kProgram is ended by end of file alone. The loop reaps the process, even after the Channel
/// has gone. If the loop is destroyed first, the group is killed and the process is reaped at once.
Result<std::unique_ptr<Channel>> open_child(const asio::any_io_executor& loop, ChildCommand command);

}  // namespace ddp::remote
