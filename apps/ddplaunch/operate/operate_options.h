#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "apps/options/option_table.h"

namespace ddp {

/// Returns what is wrong with a first argument that is nearly a verb, or one of another program's verbs: it
/// would run as a worker, and make a job. Empty: nothing is wrong. `ddplaunch -- WORD` runs such a program.
std::string mistyped_verb(const std::vector<std::string>& args);

struct OperateOptions {
  explicit OperateOptions(Verb verb);

  std::string job;                ///< the beginning of an id; empty: the running or the newest job
  std::vector<std::string> jobs;  ///< of kRm, instead of `job`
  bool all = false;
  bool watch = false;
  bool follow = false;
  bool attach = false;  ///< kAttach: from now on, with the changes of the job's state
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> attempt;
  std::string stream;  ///< "stdout" or "stderr"; empty: both
  std::optional<std::uint64_t> tail;
  bool timestamps = false;
  bool failed = false;
  std::string grep;
  std::optional<std::chrono::milliseconds> since;  ///< since 1970
  bool now = false;
  std::vector<std::string> command;           ///< of kExec
  std::chrono::milliseconds timeout{60'000};  ///< of kExec
  std::string output;                         ///< of kReport: a path, or "-"
  std::string address = "127.0.0.1";          ///< of kDashboard
  std::uint16_t port = 0;                     ///< of kDashboard; 0: any
  std::string token_file;                     ///< of kDashboard; empty: a new token
  bool detach = false;                        ///< of kDashboard
  bool json = false;
  bool help = false;
  OptionTable table;
};

/// Returns the name and the options of each verb, for the documents: "ddplaunch ps".
std::vector<std::pair<std::string, std::vector<OptionGroup>>> operate_option_groups();

/// Ends what is left of a job on its hosts, prints it, and returns the exit code.
using CleanHosts = std::function<int(const RunJob& job)>;

/// Carries out a verb about jobs that run or ran (docs/users/operate.md), and returns the exit code. `args`
/// are all arguments of the program.
int operate(Verb verb, const std::vector<std::string>& args, const ProcessContext& context,
            const CleanHosts& clean_hosts);

/// `ddplaunch mcp`: serves the Model Context Protocol over stdin and stdout until stdin ends
/// (docs/users/tools.md), and returns the exit code. Each call of a tool runs a verb of this program in a
/// child, so a call can be cancelled, and what a verb prints is all that a tool says.
int serve_mcp();

/// Returns the JSON Schema of what `ddplaunch VERB --json` prints: configs/schema/VERB.schema.json. Only of
/// the verbs that tools run.
std::string_view output_schema(std::string_view verb);

}  // namespace ddp
