#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "base/result.h"

namespace ddp::train {

/// Returns the place of the first occurrence of the most frequent value: the majority counts as right.
/// `values` must not be empty.
std::size_t most_frequent(const std::vector<std::uint64_t>& values);

/// Returns the same error (kUsage) on all ranks if ranks were given other data: it names these ranks, their
/// hosts and the file. `from` is the rank whose state the training continues with. With `from`, only a rank
/// whose data differs from that rank's gets an error, with both checksums; the others then lose that rank.
/// All ranks call it.
Result<> check_equal_data(Communicator& world, const DataSplit& mine, std::optional<int> from);

}  // namespace ddp::train
