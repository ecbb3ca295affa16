#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "base/result.h"

namespace ddp::train {

/// Place of the first of the values that are there most often: what most ranks have is taken as right. Not
/// empty.
std::size_t most_frequent(const std::vector<std::uint64_t>& values);

/// The same error (kUsage) on all ranks when ranks were given other data, with those ranks, their hosts and
/// the file. With `from`, the rank whose state the training goes on with: an error only on a rank whose data
/// is not that rank's, with both checksums; the others then lose that rank. All ranks call it.
Result<> check_equal_data(Communicator& world, const DataSplit& mine, std::optional<int> from);

}  // namespace ddp::train
