#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/options/option_table.h"

namespace ddp {

/// An option with its value, and the place that gives it.
struct GivenOption {
  std::string name;          ///< one of its names in the table: "--nnodes"
  std::string value;         ///< empty for a flag
  std::string origin;        ///< "command line", "job.yaml:3:10", "PET_NNODES"
  bool in_file = false;      ///< `origin` is a place in a job file or in the user's settings
  bool is_false = false;     ///< a flag that is switched off
  bool in_settings = false;  ///< `origin` is a place in the user's settings
};

/// The options that one source gives, in its order.
using OptionSource = std::vector<GivenOption>;

/// Returns the options of `words`, which OptionTable::fill() could read.
OptionSource option_source(const std::vector<std::string>& words, const OptionTable& table,
                           const std::string& origin);

/// Decides which source of an option counts. `sources` begin with the strongest one:
///   1. the command line
///   2. the job file (--job-file)
///   3. torchrun's variables (PET_NNODES)
///   4. the file of --accelerate-config
///   5. the user's settings (~/.config/ddplaunch/config.yaml)
/// Variables of a scheduler and the defaults are weaker. Other functions apply them to options that the
/// result lacks.
///
/// An option replaces the same option of weaker sources, and those that cannot be used beside it: --host
/// replaces --hostfile. An option that may be repeated adds to the weaker sources instead; --host does not.
/// The result begins with the weakest source, so that the last value counts.
OptionSource choose_options(const std::vector<OptionSource>& sources, const OptionTable& table);

/// Returns the words of the options for OptionTable::fill().
std::vector<std::string> option_words(const OptionSource& options, const OptionTable& table);

/// Returns the last value of an option, or an empty text.
std::string last_value(const OptionSource& options, std::string_view name);

/// Returns the part of --dry-run that lists each option and its origin. It has no value of a variable and no
/// text of a script. `worker` is the place that names the worker; empty: the command line.
std::string origins_text(const OptionSource& options, const OptionTable& table, const std::string& worker);

}  // namespace ddp
