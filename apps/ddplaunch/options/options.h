#pragma once

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"

namespace ddp {

/// All that the options depend on besides the arguments, so that a test can make it up.
struct ProcessContext {
  std::vector<std::pair<std::string, std::string>> env;  ///< the launcher's own
  std::string cwd;                                       ///< absolute; empty: it cannot be told
  std::string new_job_id;                                ///< used when --job-id is not given
  bool stdin_has_data = false;  ///< a pipe or a file: rank 0 gets it unless --stdin says otherwise
  /// The whole content. Errors: kSystem, with errno and "PATH: reason".
  std::function<Result<std::string>(const std::string& path)> read_file;
  /// All of standard input. Errors: as read_file.
  std::function<Result<std::string>()> read_stdin;
  /// Whether a file could be made (or written over) at `path`, absolute; changes nothing. Errors: kSystem,
  /// with errno and "DIRECTORY: reason" or "PATH: reason".
  std::function<Result<>(const std::string& path)> can_write;
};

/// The real ones of this process.
ProcessContext read_process_context();

/// What is to be done with the job: the first argument says so, when it is `check` or `hosts`.
enum class Verb { kRun, kCheck, kHosts };

/// A job to run, or to look at beforehand. `notes` are for stderr before it starts: options that have no
/// effect, and why. Each begins with "ddplaunch: ".
struct RunJob {
  launcher::JobSpec spec;
  std::vector<std::string> notes;
  Verb verb = Verb::kRun;
  bool json = false;          ///< kCheck, kHosts: for programs
  bool worker_given = false;  ///< always with kRun
  bool deep = false;          ///< kCheck: the devices and the ways between them are tested, too
  bool collectives = false;   ///< kCheck: a sum over all ranks is measured, too
  std::string min_busbw;      ///< GB/s that it must reach; empty: none
};

/// --help, --version, --dry-run: to stdout, then exit 0.
struct PrintText {
  std::string text;
};

/// Everything that is wrong with the options and the files they name, to stderr, then exit 2. Each begins
/// with "ddplaunch: ".
struct BadUsage {
  std::vector<std::string> errors;
};

using ParsedOptions = std::variant<RunJob, PrintText, BadUsage>;

/// `args`: the arguments without the program's name. Reads the files that options name, starts nothing,
/// changes nothing.
ParsedOptions parse_options(const std::vector<std::string>& args, const ProcessContext& context);

}  // namespace ddp
