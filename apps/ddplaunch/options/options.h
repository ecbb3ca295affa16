#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apps/options/option_table.h"
#include "base/result.h"
#include "base/text.h"
#include "launcher/control/job_registry.h"
#include "launcher/job/job_spec.h"
#include "launcher/job/worker_env.h"
#include "launcher/report/host_history.h"

namespace ddp {

/// The messages of reading the options. Each text becomes one line, even if the user's words in it have
/// several.
struct Diagnostics {
  std::vector<std::string> errors;
  std::vector<std::string> notes;
  std::vector<std::string> advice;  ///< facts that help to understand the errors

  template <class... Parts>
  void fail(const Parts&... parts) {
    const std::string text = concat(parts...);
    errors.push_back("ddplaunch: " + one_line(text) + invisible_hint(text));
  }
  std::vector<std::string> all_errors() const {
    std::vector<std::string> all = errors;
    for (const std::string& text : advice)
      all.push_back("ddplaunch: " + one_line(text));
    return all;
  }
  template <class... Parts>
  void note(const Parts&... parts) {
    notes.push_back("ddplaunch: " + one_line(concat(parts...)));
  }
};

/// What to do. kRun, kCheck and kHosts are about a job that the options describe, the others about one that
/// runs or ran.
enum class Verb : std::uint8_t {
  kRun,  ///< also without a verb
  kCheck,
  kHosts,
  kPs,
  kStatus,
  kTop,
  kHang,
  kLogs,
  kAttach,
  kDashboard,
  kMcp,
  kStop,
  kWait,
  kExec,
  kStacks,
  kReport,
  kClean,
  kRm
};

/// A verb, which counts only as the first word: a program of that name runs with `ddplaunch -- ps`.
struct VerbRow {
  Verb verb;
  std::string_view section;  ///< of --help
  std::string_view name;
  std::string_view arguments;  ///< in its usage line
  std::string_view help;       ///< in ddplaunch --help
  std::string_view more;       ///< continues `help` in its own --help
  const char* options = "";    ///< about a job to start: those that its own --help lists
  std::string text() const;    ///< of its own --help, as sentences
  bool is_about_new_job() const { return verb <= Verb::kHosts; }
};
/// All verbs, in the order of --help.
std::span<const VerbRow> verbs();
/// Returns the row of the verb that is the first argument, or nullptr.
const VerbRow* find_verb(const std::vector<std::string>& args);
std::string verb_name(Verb verb);
/// Returns what opens the --help of a verb.
std::string verb_usage(Verb verb);

/// All inputs of the options besides the arguments, so that a test can replace them.
struct ProcessContext {
  launcher::EnvVars env;        ///< the launcher's own
  std::string cwd;              ///< absolute; empty: unknown
  std::string new_job_id;       ///< used if --job-id is not given
  std::string host_name;        ///< empty: unknown
  unsigned user_id = 0;         ///< the effective one
  bool stdin_has_data = false;  ///< a pipe or a file: rank 0 gets it unless --stdin says otherwise
  /// Returns the whole content. Errors: kSystem, with errno and "PATH: reason".
  std::function<Result<std::string>(const std::string& path)> read_file;
  /// As read_file, for a file that only this user and root can write. Errors: also EPERM, with "PATH: reason"
  /// if another user could have written it.
  std::function<Result<std::string>(const std::string& path)> read_own_file;
  /// Returns all of standard input. Errors: as for read_file.
  std::function<Result<std::string>()> read_stdin;
  /// Returns whether a file could be created or overwritten at `path`, absolute; changes nothing. Errors:
  /// kSystem, with errno and "DIRECTORY: reason" or "PATH: reason".
  std::function<Result<>(const std::string& path)> can_write;
  /// Reads the host history of a directory, now (launcher/control/history_files.h).
  std::function<Result<launcher::HostHistory>(const std::string& directory)> read_host_history;

  /// Returns the value of a variable. An unset one means the same as an empty one.
  std::string variable(std::string_view name) const {
    const std::string* value = launcher::find_env(env, name);
    return value == nullptr ? std::string() : *value;
  }
};

/// Returns the context of this process.
ProcessContext read_process_context();

/// A job to run or to check. `notes` go to stderr before the start: options that have no effect, and why.
/// Each begins with "ddplaunch: ".
struct RunJob {
  launcher::JobSpec spec;
  std::vector<std::string> notes;
  Verb verb = Verb::kRun;     ///< kRun, kCheck or kHosts
  bool json = false;          ///< kCheck, kHosts: machine-readable output
  bool worker_given = false;  ///< always true with kRun
  bool deep = false;          ///< kCheck: also tests the devices and the links between them
  bool collectives = false;   ///< kCheck: also measures an all-reduce over all ranks
  launcher::JobRegistration registration = {};
  bool detach = false;                                ///< kRun: return when all ranks run
  std::string min_busbw;                              ///< required GB/s of the all-reduce; empty: none
  std::vector<launcher::HostRecord> bad_record = {};  ///< hosts of the job that failed lately, in its order
  bool history = false;                               ///< kHosts: print the host history instead
  std::vector<std::string> forget;                    ///< kHosts: hosts whose failures are to be forgotten
};

/// --help, --version, --dry-run: text for stdout, then exit 0.
struct PrintText {
  std::string text;
  std::vector<std::string> notes;  ///< for stderr, before the text
};

/// All errors in the options and the files they name, for stderr, then exit 2. Each begins with "ddplaunch:
/// ".
struct BadUsage {
  std::vector<std::string> errors;
};

using ParsedOptions = std::variant<RunJob, PrintText, BadUsage>;

/// Returns what `ddplaunch --help` prints, in at most 40 lines. `ddplaunch --help all` prints the table's.
std::string brief_help(const OptionTable& table);
/// Returns what `ddplaunch run|check|hosts --help` prints.
std::string verb_help(const OptionTable& table, Verb verb);

/// Parses `args`, the arguments without the program's name. It reads the files that options name, starts no
/// process, and changes nothing.
ParsedOptions parse_options(const std::vector<std::string>& args, const ProcessContext& context);

/// Returns the directories in which the jobs of this user are registered, the preferred one first.
std::vector<std::string> jobs_directories(const ProcessContext& context);

/// Returns the description of all options, for the documents.
std::vector<OptionGroup> ddplaunch_option_groups();

/// Returns the output of --dry-run: the job as it would start. It shows only the names of environment
/// variables, never their values.
std::string job_plan_text(const launcher::JobSpec& spec);

/// Returns the worker's command as words that can be pasted into a shell.
std::string command_text(const launcher::WorkerCommand& command);

/// Returns what `ddplaunch --version` prints: the version in the first line, then commit, compiler and
/// libraries.
std::string version_text();

}  // namespace ddp
