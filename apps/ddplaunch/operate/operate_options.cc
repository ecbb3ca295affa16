#include "apps/ddplaunch/operate/operate_options.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>

#include "apps/ddplaunch/options/options.h"
#include "base/text.h"

namespace ddp {
namespace {

struct VerbRow {
  OperateVerb verb;
  const char* name;
  const char* usage;
};
constexpr std::array<VerbRow, 12> kVerbs{{
    {OperateVerb::kPs, "ps",
     "usage: ddplaunch ps [options]\n\nLists your jobs on this machine: those that run, and those whose "
     "ddplaunch was killed.\n"},
    {OperateVerb::kStatus, "status",
     "usage: ddplaunch status [options] [JOB]\n\nShows the state of a job, its nodes and its ranks.\n"},
    {OperateVerb::kLogs, "logs",
     "usage: ddplaunch logs [options] [JOB]\n\nPrints what the workers of a job wrote, while it runs and "
     "after its end.\n"},
    {OperateVerb::kStop, "stop",
     "usage: ddplaunch stop [options] [JOB]\n\nStops a job as SIGTERM does, and returns when it has "
     "ended.\n"},
    {OperateVerb::kWait, "wait",
     "usage: ddplaunch wait [options] [JOB]\n\nWaits for the end of a job, and exits with its exit code.\n"},
    {OperateVerb::kClean, "clean",
     "usage: ddplaunch clean [options] [JOB]\n\nEnds what is left of a job on its hosts, whose ddplaunch was "
     "killed.\n"},
    {OperateVerb::kRm, "rm",
     "usage: ddplaunch rm [options] JOB…\n\nDeletes the files of jobs that have ended, and their entries in "
     "the list of jobs. Files of --job-dir stay.\n"},
    {OperateVerb::kExec, "exec",
     "usage: ddplaunch exec [options] [JOB] -- COMMAND [ARG…]\n\nRuns a command in the environment and the "
     "directory of a worker, on its node.\n"},
    {OperateVerb::kStacks, "stacks",
     "usage: ddplaunch stacks [options] [JOB]\n\nPrints what each worker does now: its state, and the stacks "
     "of its threads.\n"},
    {OperateVerb::kAttach, "attach",
     "usage: ddplaunch attach [options] [JOB]\n\nShows the output of a running job from now on and the "
     "changes of its state, and exits with its exit code. Ctrl-C leaves the job alone.\n"},
    {OperateVerb::kReport, "report",
     "usage: ddplaunch report -o FILE [JOB]\n\nWrites a page about a job into one file, for a browser: how "
     "it "
     "ended, its attempts and events, and the last output of failed ranks.\n"},
    {OperateVerb::kDashboard, "dashboard",
     "usage: ddplaunch dashboard [options] [JOB]\n\nServes a page that shows a job while it runs, and "
     "metrics for "
     "Prometheus. Ctrl-C ends the page, not the job.\n"},
}};

static_assert(std::ranges::all_of(kVerbs, [](const VerbRow& row) {
  return std::ranges::find(kVerbNames, std::string_view(row.name)) != std::end(kVerbNames);
}));

const VerbRow& row_of(OperateVerb verb) {
  return kVerbs.at(static_cast<std::size_t>(verb));
}

constexpr char kJobText[] =
    "\nJOB is an id or its beginning; without it the running job is meant, or the newest "
    "(docs/users/operate.md).\n";

std::string usage_of(OperateVerb verb) {
  return std::string(row_of(verb).usage) +
         (verb == OperateVerb::kPs || verb == OperateVerb::kRm ? "" : kJobText);
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
                  "`2026-11-21T03:14:39Z`. Lines of the 10 s before T may be shown, too."},
      [&options](const std::string& text) -> std::string {
        using std::chrono::milliseconds;
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        options.since = parse_moment(text, std::chrono::duration_cast<milliseconds>(now));
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
       .details = "It is when the line was written, or up to 10 s before that. With `--follow` "
                  "new lines have the time at which they were read. `-` is unknown."},
      options.timestamps);
  options.table.value({.names = "--grep",
                       .value = "REGEX",
                       .help = "only lines that match",
                       .details = "The regular expression is extended, as in `grep -E`."},
                      text_into(options.grep));
}

/// Reads ADDRESS:PORT; an IPv6 address is in brackets.
std::string read_listen(OperateOptions& options, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string address = text.substr(0, colon == std::string::npos ? 0 : colon);
  const auto port = parse_number<std::uint16_t>(std::string_view(text).substr(colon + 1));
  if (address.size() > 2 && address.front() == '[' && address.back() == ']')
    address = address.substr(1, address.size() - 2);
  else if (address.find(':') != std::string::npos)
    address.clear();
  if (address.empty() || !port) return ": give ADDRESS:PORT, such as 127.0.0.1:8080 or [::1]:8080";
  options.address = std::move(address);
  options.port = *port;
  return "";
}

void add_page_options(OperateOptions& options) {
  options.table.value(
      {.names = "--listen",
       .value = "ADDRESS:PORT",
       .help = "where the page is served",
       .details =
           "Without it, 127.0.0.1 and a free port. Data are not encrypted, so use another address only in a "
           "network that you trust."},
      [&options](const std::string& text) { return read_listen(options, text); });
  options.table.value(
      {.names = "--token-file",
       .value = "FILE",
       .help = "read the token from this file",
       .details = "Only letters and digits, at least 16. Without it, each start makes a new one."},
      text_into(options.token_file));
}

}  // namespace

std::optional<OperateVerb> find_operate_verb(const std::vector<std::string>& args) {
  for (const VerbRow& row : kVerbs)
    if (!args.empty() && args.front() == row.name) return row.verb;
  return {};
}

std::string mistyped_verb(const std::vector<std::string>& args) {
  // Verbs of torchrun's relatives, of schedulers and of container tools, and what is meant here.
  static const std::map<std::string_view, std::string_view> kOthers{
      {"help", "--help"},     {"version", "--version"}, {"list", "ps"},       {"jobs", "ps"},
      {"queue", "ps"},        {"squeue", "ps"},         {"show", "status"},   {"info", "status"},
      {"describe", "status"}, {"inspect", "status"},    {"top", "status -w"}, {"monitor", "status -w"},
      {"kill", "stop"},       {"cancel", "stop"},       {"scancel", "stop"},  {"abort", "stop"},
      {"remove", "rm"},       {"delete", "rm"},         {"prune", ""},        {"launch", "WORKER"},
      {"start", "WORKER"},    {"submit", "WORKER"}};
  if (args.empty()) return {};
  const std::string word = lower_case(args.front());
  if (word.find_first_of("/.") != std::string::npos || word.starts_with('-')) return {};
  const std::vector<std::string_view> verbs(std::begin(kVerbNames), std::end(kVerbNames));
  if (std::ranges::find(verbs, args.front()) != verbs.end()) return {};
  const auto other = kOthers.find(word);
  // Two letters are near to too many programs: "ls" to "ps".
  const auto same = std::ranges::find(verbs, word);  // "Ps"
  const std::string_view meant = other != kOthers.end() ? other->second
                                 : same != verbs.end()  ? *same
                                 : word.size() > 2      ? nearest_word(word, verbs)
                                                        : "";
  if (other == kOthers.end() && meant.empty()) return {};
  return '"' + args.front() + "\" is no verb of ddplaunch" +
         (meant.empty() ? "" : "; did you mean `ddplaunch " + std::string(meant) + "`?") +
         (meant.empty() ? "; a" : " A") + " program of this name runs with `ddplaunch -- " + args.front() +
         '`';
}

const char* verb_name(OperateVerb verb) {
  return row_of(verb).name;
}

OperateOptions::OperateOptions(OperateVerb verb)
    : follow(verb == OperateVerb::kAttach), attach(follow), table(usage_of(verb), true) {
  table.group("Options");
  if (verb == OperateVerb::kRm) {
    table.list({.names = "JOB", .help = "ids of jobs", .completion = Completion::kJobId},
               [this](const std::string& text) -> std::string {
                 jobs.push_back(text);
                 return text.empty() ? "is empty; give an id" : "";
               });
  } else if (verb != OperateVerb::kPs) {
    table.value({.names = "JOB", .help = "id of the job, or its beginning", .completion = Completion::kJobId},
                checked([](std::string_view text) { return !text.empty(); },
                        "is empty; give an id, or leave it out", text_into(job)));
  }
  if (verb == OperateVerb::kPs)
    table.flag({.names = "-a,--all", .help = "also list jobs that have ended"}, all);
  if (verb == OperateVerb::kStatus)
    table.flag({.names = "-w,--watch", .help = "print each change until the job has ended"}, watch);
  if (verb == OperateVerb::kLogs || attach) add_log_options(*this);
  if (verb == OperateVerb::kExec || verb == OperateVerb::kStacks) {
    const char* const help = verb == OperateVerb::kExec ? "the worker; without it rank 0" : "only this rank";
    table.value({.names = "--rank", .value = "R", .help = help},
                number_into(rank, 0, std::numeric_limits<std::uint32_t>::max()));
  }
  if (verb == OperateVerb::kExec) {
    table.value(
        {.names = "--timeout", .value = "TIME", .help = "end the command after this time, at most 1h"},
        checked([](std::string_view text) { return parse_duration(text) <= std::chrono::hours(1); },
                ": give a time of at most 1h", time_into(timeout, std::chrono::milliseconds(1))));
  }
  if (verb == OperateVerb::kStop)
    table.flag({.names = "--now", .help = "kill the workers at once, without a grace period"}, now);
  if (verb == OperateVerb::kReport)
    table.value({.names = "-o,--output", .value = "FILE", .help = "the file; - is standard output"},
                text_into(output));
  if (verb == OperateVerb::kDashboard) add_page_options(*this);
  if (verb != OperateVerb::kReport && verb != OperateVerb::kDashboard && verb != OperateVerb::kRm)
    table.flag({.names = "--json", .help = "print JSON"}, json);
  table.flag({.names = "-h,--help", .help = "print this text"}, help);
}

std::vector<std::pair<std::string, std::vector<OptionGroup>>> operate_option_groups() {
  std::vector<std::pair<std::string, std::vector<OptionGroup>>> all;
  for (const VerbRow& row : kVerbs)
    all.emplace_back(std::string("ddplaunch ") + row.name, OperateOptions(row.verb).table.groups());
  return all;
}

}  // namespace ddp
