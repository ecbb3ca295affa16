#include "remote/shells/local_shell.h"

#include <utility>

#include "remote/shells/child_channel.h"

namespace ddp::remote {

Awaitable<Result<std::unique_ptr<Channel>>> LocalShell::open(Host host, std::vector<std::string> argv,
                                                             Deadline) {
  co_return open_child(loop_, ChildCommand{host.name, std::move(argv), ChildCommand::Kind::kProgram});
}

}  // namespace ddp::remote
