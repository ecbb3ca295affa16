#pragma once

#include <span>
#include <string_view>

namespace ddp {

/// What happens to an option that is not one of ours (yet).
enum class Standing {
  kLater,    ///< of a later release: refused, unless it has the value that this release acts by anyway
  kRenamed,  ///< another launcher's name of our option `text`
  kNoted,    ///< accepted without effect; `text` says why it is not needed
  kRefused,  ///< refused; `text` says why, or what to use
};

/// One option of torchrun, DeepSpeed, mpirun, or of a later release.
struct ForeignOption {
  std::string_view name;  ///< with dashes: "--rdzv-id", "-t"; "--fsdp-" are all that begin so
  bool takes_value = false;
  Standing standing = Standing::kRefused;
  /// kLater: the value that is accepted, empty for none. kRenamed of a flag: the value that our option gets.
  std::string_view value;
  std::string_view text;
};

std::span<const ForeignOption> foreign_options();
/// The row, or nullptr.
const ForeignOption* find_foreign(std::string_view name);

}  // namespace ddp
