#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/options/diagnostics.h"
#include "launcher/job/env_filter.h"

namespace ddp {

/// What happens to an option that is not one of ours (yet).
enum class SupportStatus {
  kLater,    ///< of a later release: refused, unless it has the value that this release acts by anyway
  kRenamed,  ///< another launcher's name of our option `text`
  kNoted,    ///< accepted without effect; `text` says why it is not needed
  kRefused,  ///< refused; `text` says why, or what to use
};

/// One option of torchrun, DeepSpeed, mpirun, or of a later release.
struct CompatibilityOption {
  std::string_view name;  ///< with dashes: "--rdzv-id", "-t"; "--fsdp-" are all that begin so
  bool takes_value = false;
  SupportStatus status = SupportStatus::kRefused;
  /// kLater: the value that is accepted, empty for none. kRenamed of a flag: the value that our option gets.
  std::string_view value;
  std::string_view text;
};

std::span<const CompatibilityOption> compatibility_options();
/// The row, or nullptr.
const CompatibilityOption* find_compatibility_option(std::string_view name);

/// torchrun takes each of its options also from a variable PET_<OPTION> (torch/distributed/argparse_util.py).
/// `words` are those that `env` has and the command line has not, ready to stand in front of it.
struct PetOptions {
  std::vector<std::string> words;      ///< "--nnodes=2", "--standalone"
  std::vector<std::string> variables;  ///< "PET_NNODES": where they come from
};

/// `given`: names of the options on the command line, which go before variables. A flag's variable is a
/// number, as torchrun reads it; any other value goes to `diagnostics`. Empty variables count as unset, so do
/// with `alone`, which is --launcher local, those that tell of other nodes.
PetOptions read_pet_options(const launcher::EnvVars& env, const std::vector<std::string>& given, bool alone,
                            Diagnostics& diagnostics);

/// In words for a note, or beside mistakes.
std::string pet_text(const PetOptions& options);

}  // namespace ddp
