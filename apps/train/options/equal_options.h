#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/options/options.h"
#include "base/result.h"

namespace ddp::train {

/// What all ranks must be given alike, in words. Different lists of the same names are a user's mistake.
struct EqualOption {
  std::string name;
  std::string value;
};
using EqualOptions = std::vector<EqualOption>;

/// Options that change what ranks compute or send together, and the data's size. Of a path only whether it is
/// given: nodes may have other places.
EqualOptions equal_options(const TrainOptions& options, const DataSplit& data);

/// For another rank, and what differs from that other rank's first: "--seed is 4 on rank 1 and 3 on rank 0;
/// all ranks must be given the same". Empty: nothing.
std::string to_text(const EqualOptions& options);
std::string difference(const EqualOptions& mine, int rank, std::string_view text_of_rank_0);

/// The same error (kUsage) on all ranks when a rank differs from rank 0. All ranks call it.
Result<> check_equal(Communicator& world, const EqualOptions& mine);

std::string value_text(double value);
inline std::string given_text(bool given) {
  return given ? "given" : "not given";
}
const char* comm_text(CommKind comm);

}  // namespace ddp::train
