#include "apps/ddplaunch/operate/operate_options.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "apps/ddplaunch/options/option_readers.h"
#include "apps/ddplaunch/options/options.h"
#include "base/clock.h"
#include "base/text.h"

namespace ddp {
namespace {

constexpr char kJobText[] =
    "\nJOB is an id or its beginning; without it the running job is meant, or the newest "
    "(docs/users/operate.md).\n";

std::string usage_of(Verb verb) {
  return verb_usage(verb) + (verb == Verb::kPs || verb == Verb::kRm || verb == Verb::kMcp ? "" : kJobText);
}

void add_selection(OperateOptions& options) {
  options.table.value({.names = "--attempt", .value = "K", .help = "only this attempt; the first is 0"},
                      number_into(options.attempt, 0, std::numeric_limits<std::uint32_t>::max()));
  options.table.value(
      {.names = "-n,--tail",
       .value = "N",
       .help = "only the last N lines of each rank and stream",
       .details = "With `--grep` these are the last lines that match. With `--follow` all new "
                  "lines come behind them."},
      number_into(options.tail, 0, std::numeric_limits<std::uint32_t>::max()));
  options.table.value(
      {.names = "--since",
       .value = "T",
       .help = "only lines that were written since T",
       .details = "T is a time before now, such as `10m`, or a moment, such as "
                  "`2026-11-21T03:14:39Z`. Lines of the 10 s before T may be shown, too; of a job with "
                  "`--jsonl` only lines that are not UTF-8."},
      [&options](const std::string& text) -> std::string {
        options.since = parse_moment(text, unix_now());
        return options.since ? "" : ": give a time like 10m, or a moment like 2026-11-21T03:14:39Z";
      });
  options.table.flag({.names = "--failed",
                      .help = "only the rank of each attempt that is the root cause",
                      .details = "While the job runs, these are the ranks that failed before the others were "
                                 "stopped."},
                     options.failed);
}

void add_log_options(OperateOptions& options) {
  if (!options.attach)
    options.table.flag({.names = "-f,--follow", .help = "go on until the job has ended"}, options.follow);
  options.table.value({.names = "--rank", .value = "R", .help = "only this rank"},
                      number_into(options.rank, 0, std::numeric_limits<std::uint32_t>::max()));
  options.table.choice<std::string>({.names = "--stream", .help = "only this stream"}, options.stream,
                                    {{"stdout", "stdout"}, {"stderr", "stderr"}});
  if (!options.attach) add_selection(options);
  options.table.flag(
      {.names = "-t,--timestamps",
       .help = "print a time before each line, in UTC",
       .details = "Of a job with `--jsonl` it is exact. `~` marks a time that may be up to 10 s too early. "
                  "With `--follow` new lines have the time at which they were read. `-` is unknown."},
      options.timestamps);
  options.table.value({.names = "--grep",
                       .value = "REGEX",
                       .help = "only lines that match",
                       .details = "The regular expression is extended, as in `grep -E`."},
                      text_into(options.grep));
}

void add_page_options(OperateOptions& options) {
  options.table.value(
      {.names = "--listen",
       .value = "ADDRESS:PORT",
       .help = "where the page is served",
       .details =
           "Without it, 127.0.0.1 and a free port. Data are not encrypted, so use another address only in a "
           "network that you trust."},
      listen_into(options.address, options.port));
  options.table.value(
      {.names = "--token-file",
       .value = "FILE",
       .help = "read the token from this file",
       .details = "Only letters and digits, at least 16. Without it, each start makes a new one."},
      text_into(options.token_file));
  options.table.flag(
      {.names = "--detach",
       .help = "serve in the background",
       .details =
           "Returns when the page is served. The process ends a day after the last request, or by `kill`."},
      options.detach);
}

}  // namespace

std::string mistyped_verb(const std::vector<std::string>& args) {
  // Verbs of torchrun's relatives, of schedulers and of container tools, and what is meant here.
  static const std::map<std::string_view, std::string_view> kOthers{
      {"help", "--help"},    {"version", "--version"}, {"list", "ps"},
      {"jobs", "ps"},        {"queue", "ps"},          {"squeue", "ps"},
      {"show", "status"},    {"info", "status"},       {"describe", "status"},
      {"inspect", "status"}, {"monitor", "top"},       {"kill", "stop"},
      {"cancel", "stop"},    {"scancel", "stop"},      {"abort", "stop"},
      {"remove", "rm"},      {"delete", "rm"},         {"prune", ""},
      {"launch", "WORKER"},  {"start", "WORKER"},      {"submit", "WORKER"}};
  if (args.empty()) return {};
  const std::string word = lower_case(args.front());
  if (word.find_first_of("/.") != std::string::npos || word.starts_with('-')) return {};
  if (find_verb(args) != nullptr) return {};
  std::vector<std::string_view> names;
  for (const VerbRow& row : verbs())
    names.push_back(row.name);
  const auto other = kOthers.find(word);
  // Two letters are near to too many programs: "ls" to "ps".
  const auto same = std::ranges::find(names, word);  // "Ps"
  const std::string_view meant = other != kOthers.end() ? other->second
                                 : same != names.end()  ? *same
                                 : word.size() > 2      ? nearest_word(word, names)
                                                        : "";
  if (other == kOthers.end() && meant.empty()) return {};
  return '"' + args.front() + "\" is no verb of ddplaunch" +
         (meant.empty() ? "" : "; did you mean `ddplaunch " + std::string(meant) + "`?") +
         (meant.empty() ? "; a" : " A") + " program of this name runs with `ddplaunch -- " + args.front() +
         '`';
}

OperateOptions::OperateOptions(Verb verb)
    : follow(verb == Verb::kAttach), attach(follow), table(usage_of(verb), true) {
  table.group("Options");
  if (verb == Verb::kRm) {
    table.list({.names = "JOB", .help = "ids of jobs", .completion = Completion::kJobId},
               [this](const std::string& text) -> std::string {
                 jobs.push_back(text);
                 return text.empty() ? "is empty; give an id" : "";
               });
  } else if (verb != Verb::kPs && verb != Verb::kMcp) {
    table.value({.names = "JOB",
                 .help = verb == Verb::kDashboard ? "id of the job, or its beginning; without it all jobs"
                                                  : "id of the job, or its beginning",
                 .completion = Completion::kJobId},
                checked([](std::string_view text) { return !text.empty(); },
                        "is empty; give an id, or leave it out", text_into(job)));
  }
  if (verb == Verb::kPs) table.flag({.names = "-a,--all", .help = "also list jobs that have ended"}, all);
  if (verb == Verb::kStatus)
    table.flag({.names = "-w,--watch",
                .help = "print each change until the job has ended; on a terminal as top does"},
               watch);
  if (verb == Verb::kLogs || attach) add_log_options(*this);
  if (verb == Verb::kExec || verb == Verb::kStacks) {
    const char* const help = verb == Verb::kExec ? "the worker; without it rank 0" : "only this rank";
    table.value({.names = "--rank", .value = "R", .help = help},
                number_into(rank, 0, std::numeric_limits<std::uint32_t>::max()));
  }
  if (verb == Verb::kExec) {
    table.value(
        {.names = "--timeout", .value = "TIME", .help = "end the command after this time, at most 1h"},
        checked([](std::string_view text) { return parse_duration(text) <= std::chrono::hours(1); },
                ": give a time of at most 1h", time_into(timeout, std::chrono::milliseconds(1))));
  }
  if (verb == Verb::kStop)
    table.flag({.names = "--now", .help = "kill the workers at once, without a grace period"}, now);
  if (verb == Verb::kReport)
    table.value({.names = "-o,--output", .value = "FILE", .help = "the file; - is standard output"},
                text_into(output));
  if (verb == Verb::kDashboard) add_page_options(*this);
  if (verb == Verb::kReport)
    table.flag({.names = "--json", .help = "report.json instead of the page"}, json);
  else if (verb != Verb::kDashboard && verb != Verb::kMcp && verb != Verb::kRm && verb != Verb::kTop)
    table.flag({.names = "--json", .help = "print JSON"}, json);
  table.flag({.names = "-h,--help", .help = "print this text"}, help);
}

std::vector<std::pair<std::string, std::vector<OptionGroup>>> operate_option_groups() {
  std::vector<std::pair<std::string, std::vector<OptionGroup>>> all;
  for (const VerbRow& row : verbs()) {
    if (!row.is_about_new_job())
      all.emplace_back("ddplaunch " + std::string(row.name), OperateOptions(row.verb).table.groups());
  }
  return all;
}

}  // namespace ddp
