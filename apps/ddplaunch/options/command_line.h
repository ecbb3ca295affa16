#pragma once

#include <string>
#include <vector>

#include "apps/ddplaunch/options/diagnostics.h"
#include "apps/ddplaunch/options/option_groups.h"

namespace ddp {

/// The split arguments. Values are as written; options.cc validates them.
struct CommandLine {
  OptionValues values;
  std::vector<std::string> worker;  ///< the first positional and all words behind it, byte for byte
  bool worker_found =
      false;  ///< false: the arguments ended, or an unknown option hid the start of the worker
  bool scanned_all = true;
  std::vector<std::string> given;  ///< names of the options as written, dashes only; both names of a renamed
                                   ///< one
};

/// Finds the options before the worker: `--opt value`, `--opt=value`, '_' for '-', `--` ends them. Unknown
/// options, missing values and the options of compatibility_options.h go to `diagnostics`.
CommandLine read_command_line(const std::vector<std::string>& args, OptionTable& table,
                              Diagnostics& diagnostics);

}  // namespace ddp
