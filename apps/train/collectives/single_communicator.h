#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/train/collectives/communicator.h"

namespace ddp::train {

/// A world of one rank: every operation completes at once.
class SingleCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  Result<> all_reduce_sum(std::span<float>) override { return {}; }
  Result<> all_reduce_sum(std::span<double>) override { return {}; }
  Result<> broadcast(std::span<std::byte>, int) override { return {}; }
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override {
    return std::vector<std::uint64_t>(mine.begin(), mine.end());
  }
  Result<> barrier() override { return {}; }
};

}  // namespace ddp::train
