#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/collectives/peer_directory.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Descriptors that the ranks of one node hold of each other, by local rank.
struct NodeLinks {
  UniqueFd memory;                  ///< memfd of a ShmSegment
  std::vector<UniqueFd> doorbells;  ///< eventfds; each wakes its rank
  std::vector<UniqueFd> liveness;   ///< pipes' read ends: each hangs up when its rank is gone; own one empty
  UniqueFd own_liveness;            ///< write end of this rank's pipe; held, never written
  std::vector<UniqueFd> buffers;    ///< memfds of ShmBuffer, one per rank
};

struct NodeConfig {
  std::string job_id;
  std::uint32_t attempt = 0;
  std::string group;  ///< unique name of these ranks: "node0"
  int local_rank = 0;
  int local_world_size = 1;
  std::vector<int> ranks;  ///< world ranks by local rank; for messages
  std::chrono::milliseconds start_timeout{120'000};
  std::chrono::milliseconds step_timeout{60'000};
  int interrupt = -1;  ///< not owned
};

/// Gives a rank its NodeLinks. The launcher's agent can become another source.
class NodeLinkSource {
 public:
  virtual ~NodeLinkSource() = default;
  virtual Result<NodeLinks> links(const NodeConfig& config) = 0;
};

/// Local rank 0 makes the segment and listens on an abstract unix socket, whose random name it publishes in
/// the directory. The other ranks connect and receive all descriptors by SCM_RIGHTS. Both sides check that
/// the other end is the same user, and check rank, job and attempt by a hello.
class NodeMeeting final : public NodeLinkSource {
 public:
  explicit NodeMeeting(PeerDirectory& directory) : directory_(directory) {}
  Result<NodeLinks> links(const NodeConfig& config) override;

 private:
  PeerDirectory& directory_;
};

}  // namespace ddp::train
