#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/link_protocol/join_table.h"
#include "remote/shells/remote_shell.h"
#include "rendezvous/link/tcp_listener.h"
#include "rendezvous/secure/link_token.h"

namespace ddp::launcher {

/// Per-node mode: the hosts of a job are not reached, but join by themselves. open() of "node3" waits until
/// the ddplaunch of that node has joined at the control port, and returns its link. The command line is not
/// used, because the node runs its own agent. After a link has ended, open() waits for the node's next
/// incarnation: a ddplaunch that the node's supervisor restarts. Loop thread.
class JoinShell final : public remote::RemoteShell {
 public:
  struct Options {
    rendezvous::TcpListener listener;  ///< the control port
    rendezvous::LinkToken token;
    std::string link_job;  ///< the name by which nodes know the job
    JoinTable::JoinTerms terms;
    std::string where;  ///< of the port, for messages: "10.0.0.2:29500"
    std::string reach;  ///< advice after `where` about awaited nodes; empty: all machines reach it
    /// Gets lines about unproven and refused nodes, limited in number; must not block.
    std::function<void(const std::string&)> on_note;
  };

  /// Nodes may join when this returns. Errors: kInternal, kSystem.
  static Result<std::unique_ptr<JoinShell>> make(const asio::any_io_executor& loop, Options options);
  ~JoinShell() override;

  /// Errors: kTimeout at the deadline, kCancelled.
  Awaitable<Result<std::unique_ptr<remote::Channel>>> open(remote::Host host, std::vector<std::string> argv,
                                                           remote::Deadline deadline) override;
  const char* step(const std::string& host, bool opened) const override {
    return opened ? RemoteShell::step(host, opened) : "has not joined";
  }
  const char* intermediary() const override { return "the ddplaunch of that node"; }

 private:
  struct ListenerState;
  explicit JoinShell(std::shared_ptr<ListenerState> shared);

  std::shared_ptr<ListenerState> shared_;
};

}  // namespace ddp::launcher
