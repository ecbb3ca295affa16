#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/option_table.h"

namespace ddp::train {

template <class Options>
struct ParsedCommand {
  std::optional<Options> options;  ///< empty: help or errors were printed
  int exit_code = 0;               ///< 0 after --help and --version, 2 after errors
};

/// Declares -h, --help and --version.
void declare_help(OptionTable& table);

/// Prints all errors to stderr, each after the command's name: "train bench: ". Returns the exit code.
int refuse(const std::string& command, const std::vector<std::string>& errors);

/// Reads the words behind `argv[0]` into the fields of `table`, and prints help, the version or all errors.
/// Returns the exit code if the program ends then. `complete` is called if there is no error. It returns a
/// contradiction between the options; empty: none.
std::optional<int> read_command_line(const std::string& command, OptionTable& table, int argc,
                                     const char* const* argv, const std::function<std::string()>& complete);

}  // namespace ddp::train
