#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "remote/shells/child_channel.h"
#include "remote/shells/remote_shell.h"

namespace ddp::remote {

/// Runs commands as children on this machine; the host's address is ignored. It never waits, so the deadline
/// is not used.
class LocalShell final : public RemoteShell {
 public:
  explicit LocalShell(asio::any_io_executor loop) : loop_(std::move(loop)) {}

  /// Errors: kExec with the errno when the program cannot be executed, kSystem.
  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline) override {
    co_return open_child(loop_, ChildCommand{host.name, std::move(argv), ChildCommand::Kind::kProgram});
  }
  const char* intermediary() const override { return nullptr; }

 private:
  asio::any_io_executor loop_;
};

}  // namespace ddp::remote
