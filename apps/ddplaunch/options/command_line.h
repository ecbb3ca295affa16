#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "apps/options/option_table.h"
#include "launcher/job/worker_env.h"

namespace ddp {

/// States how ddplaunch treats an option that is not (yet) its own.
enum class SupportStatus {
  kLater,    ///< of a later release: refused, unless its value describes the present behavior
  kRenamed,  ///< a flag that stands for ddplaunch's option `text` with `value`
  kNoted,    ///< accepted without effect; `text` says why it is not needed
  kRefused,  ///< refused, unless its value asks for nothing; `text` says why, or what to use
};

/// One option of torchrun, DeepSpeed, mpirun, or of a later release, unless ddplaunch has the same one.
struct CompatibilityOption {
  std::string_view name;  ///< with dashes: "--rdzv-id", "-t"
  bool takes_value = false;
  SupportStatus status = SupportStatus::kRefused;
  std::string_view text{};
  /// kLater and kRefused: the accepted value, empty for none; of kRefused NAME=VALUE for --env may follow it.
  std::string_view value{};
};

std::span<const CompatibilityOption> compatibility_options();
/// Returns the row, or nullptr.
const CompatibilityOption* find_compatibility_option(std::string_view name);

/// torchrun also takes each of its options from a variable PET_<OPTION> (torch/distributed/argparse_util.py).
/// `words` holds the options that are in `env` and not on the command line, to be put before its words.
struct PetOptions {
  std::vector<std::string> words;      ///< "--nnodes=2", "--standalone"
  std::vector<std::string> variables;  ///< "PET_NNODES": the source of the options
};

/// Reads the PET variables. `given` are the names of the options on the command line, which take precedence.
/// A flag's variable is a number, as in torchrun; any other value goes to `diagnostics`. Empty variables
/// count as unset. `alone` (--launcher local) makes the variables about other nodes count as unset as well.
PetOptions read_pet_options(const launcher::EnvVars& env, const std::vector<std::string>& given, bool alone,
                            const OptionTable& table, Diagnostics& diagnostics);

/// Returns the text of a notice, or of advice beside errors.
std::string pet_text(const PetOptions& options);

/// The split arguments.
struct CommandLine {
  std::vector<std::string> words;   ///< the options, for OptionTable::fill
  std::vector<std::string> off;     ///< flags given as FLAG=false
  std::vector<std::string> worker;  ///< the first positional and all words behind it, byte for byte
  std::string worker_origin = "";   ///< the place in a job file that names the worker
  bool separated = false;           ///< "--" stands before the worker
  bool read_all = true;             ///< false: an option is unknown or lacks its value
  bool scanned_all = true;          ///< false: an unknown option hid the start of the worker
  std::vector<std::string> given;   ///< names of the options as written, dashes only
};

/// Finds the options before the worker: `--opt value`, `--opt=value`, '_' for '-', `--` ends them. Unknown
/// options, missing values, and those of other launchers go to `diagnostics`.
CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics);

}  // namespace ddp
