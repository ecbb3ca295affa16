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

/// Returns the options that `declare` declares, for their pages.
template <class Options>
std::vector<OptionGroup> option_groups(void (*declare)(OptionTable& table, Options& options)) {
  Options options;
  OptionTable table("", true);
  declare(table, options);
  return table.groups();
}

/// As read_command_line. `complete` may also derive options that were not given.
template <class Options>
ParsedCommand<Options> parse_command(const std::string& command, const char* usage,
                                     void (*declare)(OptionTable& table, Options& options),
                                     std::string (*complete)(const OptionTable& table, Options& options),
                                     int argc, const char* const* argv) {
  Options options;
  OptionTable table(usage, true);
  declare(table, options);
  const auto ended =
      read_command_line(command, table, argc, argv, [&] { return complete ? complete(table, options) : ""; });
  return ended ? ParsedCommand<Options>{std::nullopt, *ended} : ParsedCommand<Options>{options, 0};
}

}  // namespace ddp::train
