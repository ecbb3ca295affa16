#pragma once

#include <string>
#include <vector>

#include "apps/ddplaunch/options/diagnostics.h"
#include "apps/options/option_table.h"

namespace ddp {

/// The split arguments.
struct CommandLine {
  std::vector<std::string> words;   ///< the options, for OptionTable::fill
  std::vector<std::string> off;     ///< flags given as FLAG=false
  std::vector<std::string> worker;  ///< the first positional and all words behind it, byte for byte
  std::string worker_origin = "";   ///< the place in a job file that names the worker
  bool separated = false;           ///< "--" stands before the worker
  bool read_all = true;             ///< false: an option is unknown or lacks its value
  bool scanned_all = true;          ///< false: an unknown option hid the start of the worker
  std::vector<std::string> given;   ///< names of the options as written, dashes only; both names of a renamed
                                    ///< one
};

/// Finds the options before the worker: `--opt value`, `--opt=value`, '_' for '-', `--` ends them. Unknown
/// options, missing values, and the options of compatibility_options.h go to `diagnostics`.
CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics);

}  // namespace ddp
