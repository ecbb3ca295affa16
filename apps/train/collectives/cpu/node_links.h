#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/collectives/peer_directory.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// What the ranks of one node hold of each other, by local rank.
struct NodeLinks {
  UniqueFd memory;                  ///< memfd of a ShmSegment
  std::vector<UniqueFd> doorbells;  ///< eventfds: each wakes its rank
  std::vector<UniqueFd>
      liveness;           ///< pipes' read ends that hang up when that rank is gone; the own one is empty
  UniqueFd own_liveness;  ///< the write end; held, never written
  std::vector<UniqueFd> buffers;  ///< memfds of ShmBuffer, each rank's own
};

struct NodeConfig {
  std::string job_id;
  std::uint32_t attempt = 0;
  std::string group;  ///< a name of these ranks that no other ranks have: "node0"
  int local_rank = 0;
  int local_world_size = 1;
  std::vector<int> ranks;  ///< of the world, by local rank; for messages
  std::chrono::milliseconds start_timeout{120'000};
  std::chrono::milliseconds step_timeout{60'000};
  int interrupt = -1;  ///< not owned
};

/// Where a rank gets them from. The launcher's agent can become another source.
class NodeLinkSource {
 public:
  virtual ~NodeLinkSource() = default;
  virtual Result<NodeLinks> links(const NodeConfig& config) = 0;
};

/// Local rank 0 makes the segment and waits at an abstract unix socket whose random name it publishes in the
/// directory; the others come and are given everything by SCM_RIGHTS. Both sides check that the other end is
/// the same user, and rank, job and attempt by a hello.
class NodeMeeting final : public NodeLinkSource {
 public:
  explicit NodeMeeting(PeerDirectory& directory) : directory_(directory) {}
  Result<NodeLinks> links(const NodeConfig& config) override;

 private:
  PeerDirectory& directory_;
};

}  // namespace ddp::train
