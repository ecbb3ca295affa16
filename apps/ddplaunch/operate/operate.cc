#include "apps/ddplaunch/operate/operate_options.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>

#include "apps/ddplaunch/operate/job_files.h"
#include "apps/ddplaunch/operate/page_server.h"
#include "apps/ddplaunch/operate/top.h"
#include "apps/options/option_table.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/control/control_socket.h"
#include "launcher/control/job_registry.h"
#include "launcher/keeper/process_table.h"
#include "launcher/output/console.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/report_json.h"

namespace ddp {
namespace {

int print_error = 0;  ///< errno of the first text that standard output did not take

}  // namespace

bool print(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written && print_error == 0) print_error = errno;
  return written;
}

namespace {

using launcher::JobEntry;
using launcher::json_line;
using launcher::OrderedJson;
using launcher::RunState;
using Kind = RunState::Kind;

constexpr std::chrono::seconds kAnswerTime{5};
/// A job that does not answer must not hold the list of the others.
constexpr std::chrono::seconds kListTime{1};
constexpr std::chrono::milliseconds kWatchEvery{500};
/// The last steps of a ddplaunch whose report is written.
constexpr std::chrono::milliseconds kLastStep{2'000};
constexpr std::size_t kCommandWidth = 40;
constexpr std::size_t kFailureRows = 30;  ///< of a failure that ended a job, on a terminal
/// Of a verb that needs a running job, as `systemctl status` and init scripts say "not running".
constexpr int kHadEnded = 3;

int fail(const Error& error) {
  const int code = launcher::exit_code_of(error);
  std::fprintf(stderr, "ddplaunch: %s\n", one_line(error.text).c_str());
  return code;
}

std::string state_text(const JobEntry& job, const RunState& state) {
  if (state.kind == Kind::kEnded) return "exited " + std::to_string(*state.exit_code);
  if (state.kind == Kind::kElsewhere) return "on " + job.host;
  if (state.kind == Kind::kCrashed && !job.cleaned.empty()) return "cleaned";
  return state_name(state.kind);
}

/// Returns what the ddplaunch of a running job says of it; null: nothing, and sets `error`.
OrderedJson live_status(const JobEntry& job, std::chrono::milliseconds time, Error& error) {
  const auto answer = ask_running_job(job, "GET", "/v1/status", time);
  OrderedJson status = OrderedJson::parse(answer ? *answer : "", nullptr, false);
  if (status.is_object() && status.contains("nodes") && status.contains("world_size")) return status;
  error = answer ? Error{ErrorCode::kProtocol, "job " + job.job + ": its ddplaunch gave no status"}
                 : answer.error();
  return {};
}

/// Returns whether a job runs that has not answered. One that ends gives its report a moment later.
bool still_runs(const JobEntry& job) {
  launcher::let_end(job, kLastStep);
  return state_of(job).kind == Kind::kRunning;
}

/// Returns the root cause of a report with the keys of a running job's `failure`.
OrderedJson failure_of(OrderedJson cause) {
  OrderedJson failure = OrderedJson::object();
  for (const char* const key : {"text", "host", "rank", "attempt", "exception", "out_of_memory", "xid",
                                "waited_for", "hint", "stderr_tail"})
    failure[key] = cause[key];
  if (const OrderedJson exception = cause["exception"]; exception.is_object()) {
    std::string text;
    for (const char* const key : {"type", "message"})
      if (const auto part = exception.find(key); part != exception.end() && part->is_string() && *part != "")
        text += (text.empty() ? "" : ": ") + part->get<std::string>();
    failure["exception"] = text;
  }
  std::string xids;
  for (const OrderedJson& line : cause["xid"])
    if (line.is_string()) xids += (xids.empty() ? "" : "\n") + line.get<std::string>();
  failure["xid"] = xids.empty() ? OrderedJson() : OrderedJson(xids);
  return failure;
}

/// Returns the same keys for each job. `live`: live_status; null: the job does not run, or does not answer.
OrderedJson job_json(const JobEntry& job, const RunState& state, const OrderedJson& live = {}) {
  OrderedJson json{{"format", 1},
                   {"job", job.job},
                   {"run", job.name},
                   {"state", state_name(state.kind)},
                   {"exit_code", launcher::or_null(state.exit_code)},
                   {"cleaned", launcher::text_or_null(job.cleaned)},
                   {"why", launcher::text_or_null(state.why)},
                   {"started", job.started},
                   {"ended", OrderedJson()},
                   {"host", job.host},
                   {"pid", job.pid},
                   {"directory", job.directory},
                   {"command", job.command}};
  for (const char* const key :
       {"age_s", "world_size", "attempt", "restarts", "max_restarts", "output_bytes", "step", "step_s",
        "step_age_s", "loss", "goodput", "usage", "failure", "hang"})
    json[key] = OrderedJson();
  json["warnings"] = OrderedJson::array();
  json["nodes"] = OrderedJson::array();
  if (live.is_object()) json.update(live);
  if (state.kind == Kind::kCrashed) {
    const OrderedJson sample = launcher::last_sample(job.directory);
    for (const char* const key : {"attempt", "step", "step_s", "loss", "goodput"})
      if (sample.is_object() && sample.contains(key)) json[key] = sample[key];
  }
  if (state.kind != Kind::kEnded) return json;
  // Of a job whose disk was full, the journal alone may know the end: its report is empty.
  OrderedJson report = launcher::read_report(job.directory);
  json["ended"] = report["ended"];
  json["age_s"] = report["duration_s"];
  for (const char* const key : {"step", "step_s", "loss", "goodput"})
    json[key] = report[key];
  if (report["warnings"].is_array()) json["warnings"] = report["warnings"];
  json["hang"] = report["hang"];
  if (report["root_cause"].is_object()) json["failure"] = failure_of(report["root_cause"]);
  OrderedJson of_job = report["job"].is_object() ? report["job"] : OrderedJson::object();
  json["world_size"] = of_job["world_size"];
  if (of_job["attempts"].is_number_unsigned() && of_job["attempts"] > 0)
    json["attempt"] = of_job["attempts"].get<std::uint64_t>() - 1;
  if (report["earlier_attempts"].is_array()) json["restarts"] = report["earlier_attempts"].size();
  return json;
}

std::string number_text(const OrderedJson& number) {
  return number.is_number() ? number.dump() : "-";
}

std::string age_text(const JobEntry& job) {
  using std::chrono::milliseconds;
  const milliseconds now = unix_now();
  const auto started = parse_moment(job.started, now);
  return started ? format_elapsed(std::max(now - *started, milliseconds(0))) : "-";
}

/// Returns job_json of a job in a list, which waits for it only a second.
OrderedJson listed_json(const JobEntry& job, const RunState& state) {
  Error ignored{};
  return job_json(job, state,
                  state.kind == Kind::kRunning ? live_status(job, kListTime, ignored) : OrderedJson());
}

int list_jobs(const OperateOptions& options, const std::vector<JobEntry>& jobs) {
  TextTable table;
  table.add({"JOB", "STATE", "RANKS", "STEP", "AGE", "ENDED", "COMMAND"});
  OrderedJson list = OrderedJson::array();
  for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) {  // the newest first
    const RunState state = state_of(*job);
    const bool over = state.kind == Kind::kEnded || state.kind == Kind::kDeleted || !job->cleaned.empty();
    if (!options.all && over) continue;
    const bool running = state.kind == Kind::kRunning;
    list.push_back(listed_json(*job, state));
    const OrderedJson& json = list.back();
    table.add({one_line(job->job), one_line(running ? json.value("state", "") : state_text(*job, state)),
               number_text(json["world_size"]), number_text(json["step"]), age_text(*job),
               json["ended"].is_string() ? one_line(json["ended"].get<std::string>()) : "-",
               one_line(job->command.substr(0, kCommandWidth))});
  }
  const OrderedJson json{{"format", 1}, {"jobs", std::move(list)}};
  print(options.json ? json_line(json, 1) : table.text());
  return 0;
}

/// Returns why no process here can act on the job; empty: one can.
std::string out_of_reach(const JobEntry& job, const RunState& state, Verb verb) {
  if (state.kind == Kind::kElsewhere) {
    return "job " + job.job + " runs on " + job.host + " (pid " + std::to_string(job.pid) +
           "); run there: ddplaunch " + verb_name(verb) + ' ' + job.job;
  }
  if (state.kind == Kind::kCrashed && !job.cleaned.empty())
    return "job " + job.job + " was cleaned at " + job.cleaned +
           "; its ddplaunch left no report, so its exit code is unknown";
  if (state.kind == Kind::kCrashed)
    return "the ddplaunch of job " + job.job + " left no report: it was killed, or the disk was full";
  if (state.kind == Kind::kDeleted) return "the files of job " + job.job + " were deleted: " + job.directory;
  return "";
}

std::string warnings_text(const OrderedJson& status) {
  std::string text;
  for (const OrderedJson& warning : status.value("warnings", OrderedJson::array()))
    if (warning.is_string()) text += "  warning: " + one_line(warning.get<std::string>()) + '\n';
  return text;
}

/// Returns ", step 99 2 s ago, 0.21 s/step, loss 2.5, goodput 91.0 %"; empty: the workers report no steps.
std::string progress_text(OrderedJson status) {
  if (!status["step"].is_number()) return "";
  std::string text = ", step " + std::to_string(status["step"].get<std::uint64_t>());
  if (status["step_age_s"].is_number()) {
    const std::chrono::seconds quiet(static_cast<std::int64_t>(status["step_age_s"].get<double>()));
    text += quiet.count() == 0 ? " just now" : " " + format_elapsed(quiet) + " ago";
  }
  if (status["step_s"].is_number()) text += ", " + step_time_text(status["step_s"].get<double>());
  if (status["loss"].is_number()) text += format_text(", loss %.4g", status["loss"].get<double>());
  if (status["goodput"].is_number())
    text += format_text(", goodput %.1f %%", 100 * status["goodput"].get<double>());
  return text;
}

/// Returns a verdict (hang_json) as lines: its text, and what it rests on.
std::string hang_text(OrderedJson verdict) {
  std::string text = "  " + one_line(verdict.value("text", "")) +
                     " (confidence: " + one_line(verdict.value("confidence", "")) + ")\n";
  std::string last;
  for (const OrderedJson& witness : verdict["witnesses"]) {
    const std::string source = one_line(witness.value("source", ""));
    const std::string line = one_line(witness.value("text", ""));
    if (line != one_line(verdict.value("text", "")))
      text += "    " + (source == last ? "" : source + ": ") + line + '\n';
    last = source;
  }
  if (verdict["files"].is_string())
    text += "    files: " + one_line(verdict["files"].get<std::string>()) + '\n';
  return text;
}

std::string status_text(OrderedJson status) {
  const std::chrono::milliseconds age(static_cast<std::int64_t>(1000 * status.value("age_s", 0.0)));
  std::string text = "job " + status.value("job", "") + ": " + status.value("state", "") + ", started " +
                     (age < std::chrono::seconds(1) ? "just now" : format_elapsed(age) + " ago");
  if (status["world_size"].is_number()) {
    const int world_size = status["world_size"].get<int>();
    int running = 0;
    for (const OrderedJson& node : status["nodes"])
      running += node.value("running", 0);
    text += ", " + (running < world_size ? std::to_string(running) + " of " : "") +
            counted(world_size, "rank") + (running < world_size ? " run" : "");
  }
  text += progress_text(status);
  if (status.value("max_restarts", 0) > 0) {
    text += ", restart " + std::to_string(status.value("restarts", 0)) + " of " +
            std::to_string(status.value("max_restarts", 0));
  }
  if (status["hang"].is_object())
    text += '\n' + hang_text(status["hang"]).substr(0, hang_text(status["hang"]).find('\n'));
  if (status["why"].is_string()) text += "\n  " + status["why"].get<std::string>();
  text += "\n  files in " + status.value("directory", "") + '\n' + warnings_text(status);
  TextTable table;
  for (OrderedJson& node : status["nodes"]) {
    const int ranks = node.value("ranks", 0);
    std::string range = "-";
    if (ranks > 0)
      range = (ranks == 1 ? "rank " : "ranks ") + format_number_range(node.value("first_rank", 0), ranks);
    const OrderedJson& step = node["step"];
    table.add({"  " + node.value("node", ""), range, node.value("state", ""),
               step.is_number() ? "step " + std::to_string(step.get<std::uint64_t>()) : ""});
  }
  return text + table.text();
}

/// Returns how a job stands that does not run. `state`: its state.
std::string ended_text(const JobEntry& job, const RunState& state) {
  OrderedJson json = job_json(job, state);
  std::string text =
      "job " + job.job + ": " + state_text(job, state) + (state.why.empty() ? "" : ": " + state.why);
  if (const std::string progress = progress_text(json); !progress.empty())
    text += (state.kind == Kind::kCrashed ? "\n  last known: " : "\n  ") + progress.substr(2);
  return text + "\n  files in " + job.directory +
         (state.kind == Kind::kEnded ? ", its end in report.json\n" : "\n") + warnings_text(json);
}

/// Prints the state if it has changed. Returns it without what changes with the time alone.
Result<std::string> show_status(const OperateOptions& options, const JobEntry& job, const std::string& last) {
  const RunState state = state_of(job);
  if (state.kind != Kind::kRunning) {
    std::string text = options.json ? json_line(job_json(job, state)) : ended_text(job, state);
    if (text != last) print(text);
    return text;
  }
  Error error{};
  const OrderedJson status = live_status(job, kAnswerTime, error);
  if (status.is_null()) return error;
  OrderedJson key = status;
  for (const char* const moves :
       {"age_s", "output_bytes", "step", "step_s", "step_age_s", "loss", "goodput", "usage"})
    key.erase(moves);
  for (OrderedJson& node : key["nodes"])
    for (const char* const moves :
         {"trouble", "silence_s", "step", "steps", "losses", "phases", "step_seconds", "usage"})
      node.erase(moves);
  if (key.dump() != last) print(options.json ? json_line(job_json(job, state, status)) : status_text(status));
  return key.dump();
}

int top(const JobEntry& job);

int status(const OperateOptions& options, const JobEntry& job) {
  if (options.watch && !options.json && ::isatty(STDOUT_FILENO) == 1) return top(job);
  std::string last;
  for (;;) {
    auto shown = show_status(options, job, last);
    if (!shown && !still_runs(job)) shown = show_status(options, job, last);
    if (!shown) return fail(shown.error());
    last = std::move(*shown);
    if (!options.watch || state_of(job).kind != Kind::kRunning) {
      if (options.watch) (void)show_status(options, job, last);
      return 0;
    }
    std::this_thread::sleep_for(kWatchEvery);
  }
}

/// Prints how the job ended, and returns `wait`'s exit code.
int report_end(const OperateOptions& options, const JobEntry& job, Verb verb) {
  const RunState state = state_of(job);
  if (state.kind != Kind::kEnded) {
    const std::string why = out_of_reach(job, state, verb);
    return fail({ErrorCode::kLinkLost, why.empty() ? "job " + job.job + " still runs" : why});
  }
  if (options.json)
    print(json_line(job_json(job, state)));
  else
    print("job " + job.job + ": " + state_text(job, state) + (state.why.empty() ? "" : ": " + state.why) +
          '\n');
  return *state.exit_code;
}

int report_earlier_end(const JobEntry& job, const RunState& state) {
  std::fprintf(stderr, "ddplaunch: job %s had ended before: %s%s\n", job.job.c_str(),
               state_text(job, state).c_str(), state.why.empty() ? "" : one_line(": " + state.why).c_str());
  return kHadEnded;
}

int wait(const OperateOptions& options, const JobEntry& job) {
  if (state_of(job).kind == Kind::kRunning) {
    if (const auto waited = wait_for_end(job); !waited) return fail(waited.error());
  }
  return report_end(options, job, Verb::kWait);
}

int stop(const OperateOptions& options, const JobEntry& job) {
  const RunState state = state_of(job);
  if (state.kind == Kind::kRunning) {
    const auto asked = ask_running_job(job, "POST", options.now ? "/v1/stop?now" : "/v1/stop", kAnswerTime);
    if (!asked && still_runs(job)) {
      Error error = asked.error();
      if (error.code != ErrorCode::kLinkLost)
        error.text += "; kill -TERM " + std::to_string(job.pid) + " stops it, too";
      return fail(error);
    }
    if (const auto waited = wait_for_end(job); !waited) return fail(waited.error());
  }
  if (state.kind == Kind::kEnded && !options.json) return report_earlier_end(job, state);
  const int code = report_end(options, job, Verb::kStop);
  if (state.kind == Kind::kEnded) return kHadEnded;
  return state_of(job).kind == Kind::kEnded ? 0 : code;
}

int attach(const OperateOptions& options, const JobEntry& job) {
  const RunState state = state_of(job);
  if (state.kind == Kind::kRunning) {
    const auto ended = print_logs(options, job);
    if (!ended) return fail(ended.error());
    if (!*ended) {
      std::fprintf(stderr, "ddplaunch: job %s goes on; ddplaunch stop %s stops it\n", job.job.c_str(),
                   job.job.c_str());
      return 128 + SIGINT;
    }
  } else if (state.kind == Kind::kEnded) {
    (void)report_earlier_end(job, state);
    return *state.exit_code;
  }
  return report_end(options, job, Verb::kAttach);
}

int show_page(Verb verb, const OperateOptions& options, const JobEntry& job) {
  const RunState state = state_of(job);
  if (state.kind == Kind::kDeleted) return fail({ErrorCode::kUsage, out_of_reach(job, state, verb)});
  const Result<> shown =
      verb == Verb::kDashboard ? serve_page(options, {.only = job}) : write_report(options, job);
  return shown ? 0 : fail(shown.error());
}

/// `ddplaunch dashboard` without JOB.
int show_pages(const OperateOptions& options, const ProcessContext& context) {
  const auto read = [&context] { return launcher::read_jobs(jobs_directories(context)); };
  const auto list = [](const std::vector<JobEntry>& jobs) {
    OrderedJson all = OrderedJson::array();
    for (auto job = jobs.rbegin(); job != jobs.rend(); ++job)  // the newest first
      all.push_back(listed_json(*job, state_of(*job)));
    return json_line(all);
  };
  const Result<> shown = serve_page(options, {.read = read, .list = list});
  return shown ? 0 : fail(shown.error());
}

/// Time for py-spy and gdb on the nodes.
constexpr std::chrono::seconds kStacksTime{30};
/// The end of an output that was cut (run_tool).
constexpr std::string_view kCutText = "\n(cut here)\n";
/// Bytes of a command. A request has at most 64 KiB, and JSON may escape some of them.
constexpr std::size_t kMostArguments = 32u << 10;
/// The time for the answer to arrive. The job answers earlier than this even if a node does not.
constexpr std::chrono::seconds kSlack{8};

/// Prints the bytes; on a terminal, control characters become `?`.
void print_text(const std::string& text) {
  const std::string shown = ::isatty(STDOUT_FILENO) == 1 ? replace_unsafe(text) : text;
  print(shown);
}

bool is_reply(const OrderedJson& reply) {
  return reply.is_object() && reply.contains("ranks") && reply["ranks"].is_array() &&
         reply.contains("exit_code") && reply["exit_code"].is_number_integer() &&
         reply.contains("troubles") && reply["troubles"].is_array();
}

/// Returns what a rank does without what differs between ranks that do the same: its number, ids of processes
/// and threads, addresses, ports. Line numbers stay.
std::string comparable(std::string_view text) {
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const bool digit = text[at] >= '0' && text[at] <= '9';
    if (!digit) {
      kept += text[at++];
      continue;
    }
    std::size_t end = at;
    const bool hex = text.substr(at).starts_with("0x");
    const char* const digits = hex ? "0123456789abcdefx" : "0123456789";
    while (end < text.size() && std::string_view(digits).find(text[end]) != std::string_view::npos)
      ++end;
    const bool line = kept.ends_with("line ") || (kept.ends_with(".py:") && !hex);
    kept += line ? text.substr(at, end - at) : "N";
    at = end;
  }
  return kept;
}

constexpr std::size_t kNodesNamed = 8;

/// Prints the stacks of ranks. Ranks that do the same share them, and the fewest come first, since the others
/// often wait for these.
void print_stacks(const OrderedJson& ranks) {
  struct Alike {
    std::vector<int> ranks;
    std::vector<std::string> nodes;  ///< without duplicates
    const OrderedJson* first;
  };
  std::map<std::string, Alike> groups;
  for (const OrderedJson& rank : ranks) {
    Alike& group = groups.try_emplace(comparable(rank.value("text", "")), Alike{{}, {}, &rank}).first->second;
    group.ranks.push_back(rank.value("rank", 0));
    const std::string node = one_line(rank.value("node", ""));
    if (std::ranges::find(group.nodes, node) == group.nodes.end()) group.nodes.push_back(node);
  }
  std::vector<const Alike*> order;
  for (const auto& [text, group] : groups)
    order.push_back(&group);
  std::ranges::stable_sort(
      order, {}, [](const Alike* group) { return std::pair(group->ranks.size(), group->ranks.front()); });
  for (const Alike* group : order) {
    if (group->ranks.size() > 1)
      print_text(format_ranks(group->ranks) + " on " + join_some(group->nodes, kNodesNamed) +
                 " do the same; this is rank " + std::to_string(group->ranks.front()) + ":\n");
    print_text("[" + one_line(group->first->value("node", "")) + "] " + group->first->value("text", ""));
  }
}

/// `ddplaunch exec` and `ddplaunch stacks`: asks a running job, prints the answer, and returns the exit code.
/// When this process ends, so does the command. kUsage: there is no command, or no such worker. Blocks.
Result<int> ask_workers(Verb verb, const OperateOptions& options, const JobEntry& job) {
  const bool exec = verb == Verb::kExec;
  std::size_t bytes = 0;
  for (const std::string& word : options.command)
    bytes += word.size();
  if (bytes > kMostArguments)
    return Error{ErrorCode::kUsage, "exec: the command has more than " + format_bytes(kMostArguments) +
                                        "; put it into a file that its node can read"};
  const std::chrono::milliseconds timeout = exec ? options.timeout : kStacksTime;
  OrderedJson request{{"timeout_ms", timeout.count()}};
  if (options.rank || exec) request["rank"] = options.rank.value_or(0);
  if (exec) request["argv"] = options.command;
  const auto answer = DDP_TRY(
      ask_running_job(job, "POST", exec ? "/v1/exec" : "/v1/stacks", timeout + kSlack, json_line(request)));
  const OrderedJson reply = OrderedJson::parse(answer, nullptr, false);
  if (!is_reply(reply))
    return Error{ErrorCode::kProtocol, "job " + job.job + ": its ddplaunch gave no answer"};
  if (options.json) {
    print_text(json_line(reply));
  } else if (!exec) {
    print_stacks(reply["ranks"]);
  } else {
    for (const OrderedJson& rank : reply["ranks"]) {
      print_text(rank.value("text", ""));
      if (rank.value("text", "").ends_with(kCutText))
        std::fputs("ddplaunch: the output has more than 1 MiB, and the rest was dropped\n", stderr);
    }
  }
  if (std::fflush(stdout) != 0) return system_error(errno, "standard output");
  for (const OrderedJson& trouble : reply["troubles"])
    if (trouble.is_string())
      std::fprintf(stderr, "ddplaunch: %s\n", one_line(trouble.get<std::string>()).c_str());
  if (!reply["troubles"].empty() && (exec || reply["ranks"].empty()))
    return Error{ErrorCode::kRefused, "job " + job.job + " gave no complete answer"};
  const int code = reply["exit_code"].get<int>();
  // The shell that executes the command says so: "sh: 1: exec: nosuch: not found". A command may end with
  // the same codes.
  const bool failed =
      exec && (code == 126 || code == 127) && !reply["ranks"].empty() &&
      reply["ranks"][0].value("text", "").find("exec: " + options.command.front() + ":") != std::string::npos;
  if (failed)
    std::fprintf(stderr, "ddplaunch: exit code %d on %s: %s is %s in the environment of rank %u there\n",
                 code, one_line(reply["ranks"][0].value("node", "")).c_str(),
                 one_line(options.command.front()).c_str(), code == 127 ? "no program" : "not executable",
                 options.rank.value_or(0));
  return code;
}

/// Time for the workers' answers, and for the job to pass them on.
constexpr std::chrono::seconds kHangTime{15};

Result<int> ask_hang(const OperateOptions& options, const JobEntry& job) {
  const auto answer = DDP_TRY(ask_running_job(job, "POST", "/v1/hang", kHangTime));
  const OrderedJson reply = OrderedJson::parse(answer, nullptr, false);
  if (!reply.is_object() || !reply.contains("hang"))
    return Error{ErrorCode::kProtocol, "job " + job.job + ": its ddplaunch gave no answer"};
  const OrderedJson& verdict = reply["hang"];
  if (!verdict.is_object()) return Error{ErrorCode::kRefused, "job " + job.job + ": no worker runs"};
  if (options.json) {
    print(json_line(OrderedJson{{"format", 1}, {"hang", verdict}}));
  } else {
    const std::chrono::milliseconds quiet(static_cast<std::int64_t>(1000 * verdict.value("quiet_s", 0.0)));
    const std::string state = verdict.value("state", "");
    print("job " + job.job + ": " +
          (quiet.count() > 0 ? "no progress for " + format_elapsed(quiet) : "its workers are active") +
          (state == "hung" ? ", being stopped" : "") + '\n' + hang_text(verdict));
  }
  return 0;
}

int ask_running(Verb verb, const OperateOptions& options, const JobEntry& job) {
  const RunState state = state_of(job);
  if (state.kind == Kind::kEnded) return report_earlier_end(job, state);
  const std::string why = out_of_reach(job, state, verb);
  if (!why.empty())
    return fail({state.kind == Kind::kCrashed ? ErrorCode::kLinkLost : ErrorCode::kUsage, why});
  const auto code = verb == Verb::kHang ? ask_hang(options, job) : ask_workers(verb, options, job);
  if (code || still_runs(job)) return code ? *code : fail(code.error());
  const RunState end = state_of(job);
  if (end.kind == Kind::kEnded) return report_earlier_end(job, end);
  return fail({ErrorCode::kLinkLost, out_of_reach(job, end, verb)});  // it was killed meanwhile
}

/// Ends with the picture of the end, which stays on the terminal.
int top(const JobEntry& job) {
  if (::isatty(STDOUT_FILENO) != 1)
    return fail(
        {ErrorCode::kUsage,
         "top needs a terminal; ddplaunch status --watch prints each change, and status --json is for "
         "programs"});
  TopJob shown;
  shown.runs = [&job] { return state_of(job).kind == Kind::kRunning; };
  shown.status = [&job](Error& error) {
    const OrderedJson live = live_status(job, kListTime, error);
    return live.is_null() ? live : job_json(job, state_of(job), live);
  };
  shown.print_output = [&job](std::uint32_t rank, std::size_t lines) {
    OperateOptions logs(Verb::kLogs);
    logs.rank = rank;
    logs.tail = lines;
    if (const auto printed = print_logs(logs, job); !printed) (void)fail(printed.error());
  };
  shown.print_stacks = [&job](std::uint32_t rank) {
    OperateOptions stacks(Verb::kStacks);
    stacks.rank = rank;
    if (const auto asked = ask_workers(Verb::kStacks, stacks, job); !asked) (void)fail(asked.error());
  };
  shown.stop = [&job]() -> Result<> {
    const auto asked = ask_running_job(job, "POST", "/v1/stop", kListTime);
    return asked ? Result<>() : asked.error();
  };
  if (!show_top(shown)) return 0;
  const RunState state = state_of(job);
  std::string text = ended_text(job, state);
  const launcher::TerminalView::Size size = launcher::terminal_size(STDOUT_FILENO);
  for (const std::string& row : failure_rows(job_json(job, state), size.columns, kFailureRows, false))
    text += row + '\n';
  print(text);
  return 0;
}

/// Returns the options of a job as its ddplaunch read them.
Result<RunJob> options_of(const JobEntry& job, ProcessContext context) {
  const auto cannot = [&job](const std::string& why) {
    return Error{ErrorCode::kUsage, "the hosts of job " + job.job + " are not known: " + why};
  };
  if (job.hosts.empty()) return cannot("its command line was not recorded");
  // Relative names of files are as in its directory.
  if (::chdir(job.cwd.c_str()) != 0) return cannot(system_error(errno, job.cwd).text);
  context.cwd = job.cwd;
  context.new_job_id = job.name;
  std::vector<std::string> arguments = job.arguments;
  arguments.emplace_back("true");  // the worker is not recorded
  ParsedOptions parsed = parse_options(arguments, context);
  if (const auto* usage = std::get_if<BadUsage>(&parsed)) return cannot(usage->errors.front());
  auto* const options = std::get_if<RunJob>(&parsed);
  if (options == nullptr) return cannot("its command line starts no job");
  std::vector<std::string> hosts;
  for (const remote::Host& host : options->spec.hosts)
    hosts.push_back(host.name);
  if (hosts != job.hosts) return cannot("its options now name other hosts than at its start");
  options->spec.job_id = job.job;
  return std::move(*options);
}

int clean(const OperateOptions& options, const JobEntry& job, const std::vector<JobEntry>& jobs,
          const ProcessContext& context, const CleanHosts& clean_hosts) {
  for (const JobEntry& other : jobs) {  // the processes of a job are known by its id
    const Kind kind = state_of(other).kind;
    if (other.job != job.job || (kind != Kind::kRunning && kind != Kind::kElsewhere)) continue;
    return fail({ErrorCode::kUsage, "job " + job.job + " runs" +
                                        (kind == Kind::kElsewhere ? " on " + other.host : "") +
                                        "; ddplaunch stop " + job.job + " stops it"});
  }
  auto run = options_of(job, context);
  if (!run) return fail(run.error());
  run->json = options.json;
  const int code = clean_hosts(*run);
  if (code != 0 || state_of(job).kind != Kind::kCrashed) return code;
  const auto marked = launcher::mark_cleaned(job, launcher::utc_text(std::chrono::system_clock::now()));
  return marked ? 0 : fail(within("the job is cleaned, but not marked", marked.error()));
}

int remove(const JobEntry& job) {
  std::error_code ignored;
  const bool had_files = std::filesystem::exists(job.directory, ignored);
  const auto deadline = std::chrono::steady_clock::now() + kLastStep;
  while (!remove_job(job)) {
    const RunState state = state_of(job);
    if (state.kind == Kind::kEnded && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kLastStep / 20);
      continue;
    }
    if (state.kind == Kind::kEnded)
      return fail(
          {ErrorCode::kUsage,
           "job " + job.job + " has ended, but its ddplaunch (process " + std::to_string(job.pid) +
               ") still runs a hook (--on), waits for the reader of its output, or serves its metrics "
               "(--metrics-linger)"});
    return fail(
        {ErrorCode::kUsage, state.kind == Kind::kElsewhere
                                ? out_of_reach(job, state, Verb::kRm)
                                : "job " + job.job + " runs; ddplaunch stop " + job.job + " stops it"});
  }
  const bool has_files = std::filesystem::exists(job.directory, ignored);
  print("job " + job.job +
        (had_files && !has_files ? ": removed " + job.directory : ": removed from the list") +
        (has_files ? "; its files stay in " + job.directory : "") + '\n');
  return 0;
}

/// As `docker rm`, goes on after a job that it cannot remove. Returns the code of the first of these.
int remove_each(const std::vector<std::string>& ids, std::vector<JobEntry> jobs) {
  if (ids.empty()) return fail({ErrorCode::kUsage, "rm needs the id of a job; ddplaunch ps --all lists all"});
  int code = 0;
  for (const std::string& id : ids) {
    const auto job = find_job(jobs, id, true);
    const int removed = job ? remove(*job) : fail(job.error());
    if (removed == 0) std::erase_if(jobs, [&](const JobEntry& other) { return other.file == job->file; });
    if (code == 0) code = removed;
  }
  return code;
}

int run_verb(Verb verb, const std::vector<std::string>& args, const ProcessContext& context,
             const CleanHosts& clean_hosts) {
  OperateOptions options(verb);
  std::vector<std::string> words(args.begin() + 1, args.end());
  if (const auto mark = std::find(words.begin(), words.end(), "--");
      verb == Verb::kExec && mark != words.end()) {
    options.command.assign(mark + 1, words.end());
    words.erase(mark, words.end());
  }
  const auto errors = parse_arguments("ddplaunch " + verb_name(verb), words, options.table);
  if (options.help) {
    print(options.table.help());
    return 0;
  }
  // Words and options before a forgotten -- are those of the command.
  if (verb == Verb::kExec && options.command.empty())
    return fail({ErrorCode::kUsage,
                 "exec needs a command behind --: ddplaunch exec --rank 0 -- nvidia-smi" +
                     (options.job.empty() ? "" : "; before -- \"" + options.job + "\" names a job")});
  for (const std::string& error : errors)
    std::fprintf(stderr, "ddplaunch %s: %s\n", verb_name(verb).c_str(), error.c_str());
  if (!errors.empty()) return launcher::exit_code_of(Error{ErrorCode::kUsage, "", 0});
  if (verb == Verb::kMcp) return serve_mcp();
  const std::vector<JobEntry> jobs = launcher::read_jobs(jobs_directories(context));
  if (verb == Verb::kPs) return list_jobs(options, jobs);
  if (verb == Verb::kRm) return remove_each(options.jobs, jobs);
  if (verb == Verb::kDashboard && options.job.empty()) return show_pages(options, context);
  std::vector<JobEntry> candidates = jobs;
  if (verb == Verb::kClean && options.job.empty()) {  // it is for jobs that run no more
    const auto runs = [](const JobEntry& job) { return state_of(job).kind == Kind::kRunning; };
    if (!std::ranges::all_of(jobs, runs)) std::erase_if(candidates, runs);
  }
  // A name that a person gave may begin another one: run1, run10.
  const bool ends = verb == Verb::kStop || verb == Verb::kClean;
  const auto job = find_job(candidates, options.job, ends);
  if (!job) return fail(job.error());
  // What goes on with a job is known only where its ddplaunch runs.
  const bool follows = verb == Verb::kStatus ? options.watch
                       : verb == Verb::kLogs
                           ? options.follow
                           : verb == Verb::kTop || verb == Verb::kAttach || verb == Verb::kDashboard ||
                                 verb == Verb::kStop || verb == Verb::kWait;
  if (const RunState state = state_of(*job); follows && state.kind == Kind::kElsewhere)
    return fail({ErrorCode::kUsage, out_of_reach(*job, state, verb)});
  switch (verb) {
    case Verb::kRun:
    case Verb::kCheck:
    case Verb::kHosts:
    case Verb::kPs:
    case Verb::kMcp:
    case Verb::kRm: break;
    case Verb::kStatus: return status(options, *job);
    case Verb::kTop: return top(*job);
    case Verb::kLogs: {
      const auto printed = print_logs(options, *job);
      return printed ? 0 : fail(printed.error());
    }
    case Verb::kStop: return stop(options, *job);
    case Verb::kWait: return wait(options, *job);
    case Verb::kAttach: return attach(options, *job);
    case Verb::kReport:
    case Verb::kDashboard: return show_page(verb, options, *job);
    case Verb::kHang:
    case Verb::kExec:
    case Verb::kStacks: return ask_running(verb, options, *job);
    case Verb::kClean: return clean(options, *job, jobs, context, clean_hosts);
  }
  return 0;
}

}  // namespace

int operate(Verb verb, const std::vector<std::string>& args, const ProcessContext& context,
            const CleanHosts& clean_hosts) {
  const int code = run_verb(verb, args, context, clean_hosts);
  if (code == 0 && was_closed(STDOUT_FILENO)) return fail(print_result("").error());
  if (std::fflush(stdout) != 0 && print_error == 0) print_error = errno;
  const bool written = print_error == 0 && std::ferror(stdout) == 0;
  return written || code != 0 ? code : fail(system_error(print_error, "standard output"));
}

}  // namespace ddp
