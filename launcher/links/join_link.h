#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "launcher/link_protocol/join_line.h"
#include "rendezvous/secure/secure_connect.h"

namespace ddp::launcher {

/// The master that a node joins, and the node's identity.
struct JoinGoal {
  std::string host;  ///< MASTER_ADDR
  std::uint16_t port = 0;
  rendezvous::JoinAs as;
  JoinRequest request;
};

/// A link on which the master has assigned a slot to this node. The agent's hello line comes next.
struct JoinedLink {
  std::unique_ptr<ByteStream> stream;
  int rank = 0;
  std::string job_id;  ///< the job's name at the master
};

/// Joins a job's master over TCP (per-node mode). Waits until `deadline` for a master that does not listen
/// yet. A slot that is taken is requested again for some seconds, because the master may not miss the
/// replaced process yet. Errors: those of secure_join; kUsage if the master has no slot for this node;
/// kAgentMismatch for another version. `goal` and `resolve` must outlive the call.
Awaitable<Result<JoinedLink>> join_master(std::shared_ptr<const rendezvous::SecureContext> context,
                                          const rendezvous::Resolve& resolve, const JoinGoal& goal,
                                          std::chrono::steady_clock::time_point deadline);

/// Writes all of `bytes`; for the few lines before the framed protocol.
Awaitable<error_code> write_line(ByteStream& stream, std::string bytes);
/// Reads the next line without its newline, at most kMaxJoinLine bytes. The peer must wait for an answer
/// before it sends more. Error kLinkLost with sys 0: the link ended before its first byte.
Awaitable<Result<std::string>> read_line(ByteStream& stream);

/// Closes a stream at a deadline. Destroying the object cancels the deadline.
class LinkDeadline {
 public:
  LinkDeadline(const asio::any_io_executor& executor, std::chrono::steady_clock::time_point at,
               ByteStream& stream);
  bool late() const { return *late_; }

 private:
  std::shared_ptr<bool> late_ = std::make_shared<bool>(false);
  asio::steady_timer timer_;
};

}  // namespace ddp::launcher
