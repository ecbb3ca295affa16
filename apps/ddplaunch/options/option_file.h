#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/options/diagnostics.h"
#include "apps/ddplaunch/options/option_sources.h"

namespace ddp {

/// A job file describes one job: any option, and the worker. The user's settings hold for all jobs, so they
/// have no options about hosts or one job, and no worker.
enum class OptionFileKind { kJob, kSettings };

/// The content of an option file.
struct OptionFile {
  OptionSource options;
  std::vector<std::string> worker;  ///< the worker and its arguments; empty: the file has none
  std::string worker_origin;        ///< "job.yaml:7:9"
};

/// Reads `text`, a YAML map of option names without dashes to values (docs/users/config.md). Each mistake
/// goes to `diagnostics` with its place: unknown names, wrong values, keys that are given twice.
OptionFile read_option_file(const std::string& text, const std::string& file, OptionFileKind kind,
                            Diagnostics& diagnostics);

/// Returns the name that files have for an option: "nnodes".
std::string name_in_file(const Option& option);

/// Returns whether a file of this kind may have the option of this group of --help.
bool belongs_in_file(const Option& option, std::string_view group, OptionFileKind kind);

}  // namespace ddp
