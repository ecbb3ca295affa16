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

/// Whom a node joins, and as what.
struct JoinGoal {
  std::string host;  ///< MASTER_ADDR
  std::uint16_t port = 0;
  rendezvous::JoinAs as;
  JoinRequest request;
};

/// A link on which the master has given this node its place; next comes the agent's hello line.
struct JoinedLink {
  std::unique_ptr<ByteStream> stream;
  int rank = 0;
  std::string job_id;  ///< the job's name at the master
};

/// Joins a job's master over TCP (per-node mode): waits for one that is not there yet, until `deadline`. A
/// place that is taken is asked for again for some seconds, since the process that this one replaces may
/// still be missed there. Errors: as secure_join; kUsage when the master has no place for this node,
/// kAgentMismatch for another version. `goal` and `resolve` outlive the call.
Awaitable<Result<JoinedLink>> join_master(std::shared_ptr<const rendezvous::SecureContext> context,
                                          const rendezvous::Resolve& resolve, const JoinGoal& goal,
                                          std::chrono::steady_clock::time_point deadline);

/// Writes all of `bytes`; for the few lines before the framed protocol.
Awaitable<error_code> write_line(ByteStream& stream, std::string bytes);
/// The next line without its end, kMaxJoinLine at most; the far side waits for an answer behind it. kLinkLost
/// with sys 0: it ended before its first byte.
Awaitable<Result<std::string>> read_line(ByteStream& stream);

/// Closes a stream when a time has come; gone with it.
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
