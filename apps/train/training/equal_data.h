#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "base/result.h"

namespace ddp::train {

/// Place of the first of the values that are there most often: what most ranks have is taken as right. Not
/// empty.
std::size_t most_frequent(const std::vector<std::uint64_t>& values);

/// The same error (kUsage) on all ranks when ranks were given other data, with those ranks, their hosts and
/// the file. All ranks call it, with data of the same size.
Result<> check_equal_data(Communicator& world, const DataSplit& mine);

}  // namespace ddp::train
