#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options/option_table.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/options/options.h"
#include "base/result.h"

namespace ddp::train {

/// An option that all ranks must be given alike, as text. Lists that differ only in values are a usage error.
struct EqualOption {
  std::string name;
  std::string value;
};
using EqualOptions = std::vector<EqualOption>;

/// Returns the options of a table that are declared `equal`: those that change what ranks compute or send
/// together. A path only counts as given or not given: nodes may use other places.
EqualOptions equal_options(const OptionTable& table);
/// Returns the options of train that are declared `equal`, and the size of the data.
EqualOptions equal_options(TrainOptions options, const DataSplit& data);

/// Removes the first line of `text`, and returns it without its end.
std::string take_line(std::string_view& text);

/// to_text() makes the text for another rank. difference() returns the first difference from rank `other`:
/// "--seed is 4 on rank 1 and 3 on rank 0; give all ranks the same value". Empty: none.
std::string to_text(const EqualOptions& options);
std::string difference(const EqualOptions& mine, int rank, std::string_view text_of_other, int other = 0);

/// Returns the same error (kUsage) on all ranks if a rank differs from rank 0. With `from`, the rank whose
/// state continues the training, only the ranks that differ from that rank get an error; the others then lose
/// them. All ranks call it.
Result<> check_equal(Communicator& world, const EqualOptions& mine, std::optional<int> from = std::nullopt);

inline std::string given_text(bool given) {
  return given ? "given" : "not given";
}
const char* comm_text(CommKind comm);
const char* device_text(DeviceKind device);

}  // namespace ddp::train
