#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "remote/shells/remote_shell.h"

namespace ddp::remote {

/// A program on this machine whose three streams become a Channel.
struct ChildCommand {
  enum class Kind {
    kProgram,    ///< the command itself: its exit status is the answer; it is told to end by end of file only
    kSshClient,  ///< carries a command of another host (srun, too): 255 is its own failure, SIGTERM ends it
  };
  std::string host;               ///< for messages
  std::vector<std::string> argv;  ///< argv[0] is searched in PATH when it has no slash
  Kind kind = Kind::kProgram;
  std::vector<std::string> unset{};  ///< names of variables of ours that it does not get
  std::shared_ptr<void>
      held{};            ///< let go at Channel::greeted(), at the end of the process, or with the channel
  std::string advice{};  ///< of an SSH client that fails before greeted(): "; what to do"
};

/// Starts it, in a process group of its own so that Ctrl-C on the terminal does not reach it. Errors: kExec
/// with the errno when the program cannot be executed, kSystem. Loop thread only.
///
/// A Channel that goes before greeted() ends the whole group, by SIGTERM and then SIGKILL; afterwards a
/// program is told by end of file alone. The process is reaped by the loop also after the Channel has gone;
/// when the loop is destroyed first, its group is killed and it is reaped on the spot.
Result<std::unique_ptr<Channel>> open_child(const asio::any_io_executor& loop, ChildCommand command);

}  // namespace ddp::remote
