// From one failure to the whole report: what happened to a worker, the root cause with its facts, groups of
// equal failures, earlier attempts, and make_exit_report(), which joins them. Last, early exits and the
// summary.

#include "launcher/report/exit_report.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/exit_status.h"
#include "base/text.h"
#include "launcher/report/host_texts.h"
#include "launcher/report/root_cause.h"
#include "remote/hosts/host.h"

namespace ddp::launcher {

const std::vector<ExitCodeRow>& exit_code_table() {
  static const std::vector<ExitCodeRow> table{
      {ErrorCode::kUsage, "Usage", 2, "the command line or a file it names is wrong; nothing was started"},
      {ErrorCode::kInternal, "Internal", kInternalExit, "internal error of ddplaunch (please report)"},
      {ErrorCode::kProtocol, "Protocol", kInternalExit, "an agent sent what the protocol does not allow"},
      {ErrorCode::kUnreachable, "Unreachable", 111, "a host could not be resolved, reached or logged in to"},
      {ErrorCode::kTimeout, "Timeout", 112, "the job did not start in time"},
      {ErrorCode::kLinkLost, "LinkLost", 113, "a node was lost while the job ran"},
      {ErrorCode::kAgentMissing, "AgentMissing", 114, "a host has no ddplaunchd at the expected path"},
      {ErrorCode::kAgentMismatch, "AgentMismatch", 114,
       "a host's ddplaunchd has another version than this ddplaunch"},
      {ErrorCode::kRefused, "Refused", 115, "a node refused the job in its check before the start"},
      {ErrorCode::kSystem, "System", 116, "the operating system refused something that ddplaunch needs"},
      {ErrorCode::kHung, "Hung", 117,
       "no worker printed anything or used CPU time for --hang-timeout, or a line matched a --watch rule "
       "with the action hang"},
      {ErrorCode::kExec, "Exec", 126, "the worker's program could not be executed (127: not found)"},
      {ErrorCode::kCancelled, "Cancelled", 143, "stopped on request"},
  };
  return table;
}

int exit_code_of(const Error& error) {
  if (error.code == ErrorCode::kExec) return exec_exit_code(error.sys);
  if (error.code == ErrorCode::kCancelled && error.sys > 0 && error.sys < NSIG) return 128 + error.sys;
  for (const ExitCodeRow& row : exit_code_table()) {
    if (row.error == error.code) return row.exit_code;
  }
  return kInternalExit;
}

int exec_exit_code(int sys) {
  return sys == ENOENT || sys == ENOTDIR ? 127 : 126;
}

namespace {

constexpr int kExceptionExit = 1;  ///< code of a Python program that an exception ends
constexpr std::size_t kGroupsShown = 16;
constexpr std::size_t kAttemptsShown = 8;   ///< earlier attempts that are all listed
constexpr std::size_t kAttemptsAtEnds = 3;  ///< of more attempts: the first and the last ones that are listed

/// True if the worker had failed, but our signal arrived before its exit. Only its exception shows the
/// failure.
bool cut_short(const Failure& failure) {
  return failure.stopped_by_us && failure.kind == Failure::Kind::kSignaled &&
         (failure.signal == SIGTERM || (failure.signal == SIGKILL && failure.evidence.oom.empty()));
}

/// Returns what happened without naming the worker: "exited 3", "killed by SIGSEGV (core dumped)". `cause`
/// marks the root cause, which counts as a failure even if ddplaunch ended the worker.
std::string what_happened(const Failure& failure, bool cause) {
  // A crash after our signal is still a bug of the program, so it is not excused as a stop.
  const bool by_us = failure.stopped_by_us && !cause && !is_crash(failure);
  switch (failure.kind) {
    case Failure::Kind::kExited:
      return (by_us ? "stopped by ddplaunch, exited " : "exited ") + std::to_string(failure.status);
    case Failure::Kind::kSignaled:
      if (cause && cut_short(failure)) return "failed, and was stopped before it exited";
      return (by_us ? "stopped by ddplaunch, " : "killed by ") + signal_name(failure.signal) +
             (failure.core_dumped ? " (core dumped)" : "") +
             (failure.evidence.oom.empty() ? "" : ", out of memory");
    case Failure::Kind::kExec: return "could not be started: " + failure.error.text;
    case Failure::Kind::kMisbehaved:
    case Failure::Kind::kNode:
    case Failure::Kind::kHung: return failure.error.text;
  }
  return {};
}

int code_of(const Failure& cause) {
  switch (cause.kind) {
    case Failure::Kind::kExited: return cause.status;
    case Failure::Kind::kSignaled: return cut_short(cause) ? kExceptionExit : 128 + cause.signal;
    case Failure::Kind::kMisbehaved: return kExceptionExit;
    case Failure::Kind::kExec: return exec_exit_code(cause.error.sys);
    case Failure::Kind::kNode:
    case Failure::Kind::kHung: return exit_code_of(cause.error);
  }
  return kInternalExit;
}

/// Keeps a worker's output from controlling the terminal that shows the report. Colors and ASCII control
/// characters of progress bars are removed; any other unsafe character becomes '?'.
std::string printable(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto c = static_cast<unsigned char>(line[i]);
    // A CSI sequence (ECMA-48) ends with the first byte between @ and ~.
    if (c == 0x1b && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < 0x40 || line[i] > 0x7e))
        ++i;
    } else if ((c >= 0x20 && c != 0x7f) || c == '\t') {
      text += line[i];
    }
  }
  return replace_unsafe(text);
}

std::string indented(const std::string& text, const std::string& margin) {
  std::string made;
  for (const std::string_view line : split_lines(text))
    made += (made.empty() ? "" : margin) + std::string(line) + '\n';
  return made.empty() ? "\n" : made;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Returns what is known beyond the exit status, one fact per line.
std::string facts_text(const Failure& root) {
  std::string text;
  if (root.kind == Failure::Kind::kSignaled && !cut_short(root)) {
    const std::string meaning = signal_meaning(root);
    if (!meaning.empty()) text += "    " + signal_name(root.signal) + ": " + meaning + "\n";
  }
  const Evidence& evidence = root.evidence;
  if (!evidence.oom.empty()) text += "    out of memory: " + printable(evidence.oom) + "\n";
  for (const std::string_view line : split_lines(evidence.xid)) {
    text += "    NVIDIA driver: " + printable(line) + "\n";
    if (const std::string meaning = xid_meaning(line); !meaning.empty()) text += "      " + meaning + "\n";
  }
  if (evidence.exception) {
    const WorkerException& exception = *evidence.exception;
    text += "    exception: " + printable(first_line(exception_text(exception))) + "\n";
    if (!exception.frame.empty()) text += "      at " + printable(exception.frame) + "\n";
  }
  return text;
}

std::string root_text(const Failure& root) {
  std::string text;
  if (root.of_worker()) {
    text = "  root cause: rank " + std::to_string(root.rank) + " (local rank " +
           std::to_string(root.local_rank) + ") on " + root.host +
           (root.pid > 0 ? ", pid " + std::to_string(root.pid) : "") + ": ";
  } else if (root.kind == Failure::Kind::kHung) {
    text = "  root cause: ";
  } else {
    text = "  root cause: node " + root.host + ": ";
  }
  // A survivor of earlier attempts was not started by this one, so its age alone would mislead.
  const std::string since =
      root.start_attempt < root.attempt ? " in attempt " + std::to_string(root.start_attempt) : std::string();
  const std::string ran = root.ran ? ", " + format_elapsed(*root.ran) + " after its start" + since : "";
  text += indented(what_happened(root, true) + ran, "    ") + facts_text(root);
  if (!root.waited_for.empty()) text += "  collectives: " + root.waited_for + "\n";
  if (!root.last_stderr.empty()) {
    text += "  the last lines of its stderr:\n";
    for (const std::string& line : root.last_stderr)
      text += "    | " + printable(line) + "\n";
  }
  if (!root.stderr_path.empty()) text += "  all of its stderr: " + root.stderr_path + "\n";
  if (const std::string hint = hint_for(root); !hint.empty()) text += "  hint: " + indented(hint, "    ");
  return text;
}

/// Removes a final "; its last lines:", because these lines do not follow.
std::string standalone(std::string line) {
  if (!line.empty() && line.back() == ':') line.resize(std::min(line.rfind("; "), line.size() - 1));
  return line;
}

// Failures with equal texts, in one line. Groups keep the order of their first failures.
struct FailureGroup {
  bool workers = true;
  std::string what;
  std::size_t count = 0;
  std::set<int> ranks;
  std::set<std::string, remote::HostOrder> hosts;
  StartGroup nodes;  ///< not of workers: the hosts, and the words that their texts have in common
};

/// `causes`: each failure is the root cause of an attempt, and gets one line.
std::vector<FailureGroup> folded(const std::vector<const Failure*>& failures, bool causes) {
  std::vector<FailureGroup> groups;
  std::map<std::pair<bool, std::string>, std::size_t> known;  // a group's index
  std::vector<StartGroup> nodes;                              // of the groups that are not of workers
  std::vector<std::size_t> group_of;                          // of each of `nodes`, the group's index
  for (const Failure* failure : failures) {
    const std::string whole = what_happened(*failure, causes);
    std::string what = is_start_failure(*failure) && !causes ? whole : first_line(whole);
    if (causes) what = standalone(what);
    const auto& exception = failure->evidence.exception;
    // Uses the type only: messages contain addresses and ranks, which would separate equal failures.
    if (exception && !exception->type.empty()) what += " (" + printable(exception->type) + ")";
    const auto [at, is_new] = known.try_emplace({failure->of_worker(), what}, groups.size());
    // The same text with other names and numbers of one host is one. A hang of the whole job has no host.
    if (is_new && !failure->of_worker() && !failure->host.empty()) {
      const std::size_t same = add_to_groups(nodes, failure->host, what);
      if (same == group_of.size()) group_of.push_back(groups.size());
      at->second = group_of[same];
    }
    if (at->second == groups.size()) groups.push_back({failure->of_worker(), what, 0, {}, {}, {}});
    FailureGroup& group = groups[at->second];
    ++group.count;
    if (group.workers) group.ranks.insert(failure->rank);
    group.hosts.insert(failure->host);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    groups[group_of[i]].nodes = std::move(nodes[i]);
  return groups;
}

std::string group_text(const FailureGroup& group) {
  std::string who;
  if (group.hosts.contains("")) return indented(group.what, "      ");  // a hang of the whole job
  if (group.workers) {
    who = format_ranks({group.ranks.begin(), group.ranks.end()}) + " on " +
          host_list({group.hosts.begin(), group.hosts.end()});
  } else {
    StartGroup nodes = group.nodes;
    nodes.hosts.assign(group.hosts.begin(), group.hosts.end());  // a host may have failed repeatedly
    const std::string ranges = group_hosts_text(nodes);
    const bool shorter = ranges.find('[') != std::string::npos;
    return (nodes.hosts.size() == 1 ? "node " : "nodes ") + (shorter ? ranges : host_list(nodes.hosts)) +
           ": " + indented(reason_text(nodes), "      ");
  }
  return who + ": " + indented(group.what, "      ");
}

std::string more_kinds_text(std::size_t count) {
  return "    and " + counted(count, "more kind of failure", "more kinds of failures") + "\n";
}

std::string consequences_text(const JobEnd& end, const Failure* root) {
  std::vector<const Failure*> others;
  for (std::size_t i = 0; i < end.failures.size(); ++i) {
    if (&end.failures[i] != root) others.push_back(&end.failures[i]);
  }
  // In the order in which things happened, not in which the master heard of them.
  std::stable_sort(others.begin(), others.end(),
                   [](const Failure* a, const Failure* b) { return a->at() < b->at(); });
  const std::vector<FailureGroup> groups = folded(others, false);
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), kGroupsShown); ++i)
    text += "    " + group_text(groups[i]);
  if (groups.size() > kGroupsShown) {
    text += more_kinds_text(groups.size() - kGroupsShown);
  }
  return text.empty() || root == nullptr ? text : "  consequences:\n" + text;
}

/// Each reason once: that of `cause` is the last line of the report, and is printed before only if it has
/// further lines.
std::string start_failures_text(const std::vector<StartGroup>& groups) {
  std::string text;
  const std::string cause = start_text(groups[0]);
  if (cause.find('\n') != std::string::npos) text += "  root cause: " + indented(cause, "    ");
  if (groups.size() > 1) text += "  other nodes:\n";
  for (std::size_t i = 1; i < groups.size() && i <= kGroupsShown; ++i)
    text += "    " + indented(start_text(groups[i]), "      ");
  if (groups.size() > kGroupsShown + 1) text += more_kinds_text(groups.size() - 1 - kGroupsShown);
  return text;
}

std::string headline(const Failure& cause, int restarts) {
  if (is_start_failure(cause) && cause.attempt == 0)
    return "ddplaunch: the job did not start: failed after " + format_elapsed(cause.at()) + "\n";
  if (cause.attempt == 0) return "ddplaunch: the job failed after " + format_elapsed(cause.at()) + "\n";
  return "ddplaunch: the job failed " + format_elapsed(cause.at()) + " into attempt " +
         std::to_string(cause.attempt) + (restarts > 0 ? ", after " + counted(restarts, "restart") : "") +
         '\n';
}

/// Returns how often each cause ended an earlier attempt, the most frequent one first.
std::string causes_text(const std::vector<Failure>& earlier) {
  std::vector<const Failure*> causes;
  for (const Failure& cause : earlier)
    causes.push_back(&cause);
  std::vector<FailureGroup> groups = folded(causes, true);
  std::ranges::stable_sort(groups, std::ranges::greater(), &FailureGroup::count);
  std::string text = "  causes of the " + std::to_string(earlier.size()) + " earlier attempts:\n";
  for (std::size_t i = 0; i < std::min(groups.size(), kGroupsShown); ++i)
    text += "    " + std::to_string(groups[i].count) + " × " + group_text(groups[i]);
  if (groups.size() > kGroupsShown) text += more_kinds_text(groups.size() - kGroupsShown);
  return text;
}

/// Returns why each earlier attempt was restarted. Of many attempts, only the first and the last ones are
/// listed, and the causes are counted.
std::string earlier_text(const std::vector<Failure>& earlier) {
  if (earlier.empty()) return {};
  const std::size_t count = earlier.size();
  const bool many = count > kAttemptsShown;
  std::string text = "  earlier attempts:\n";
  for (std::size_t i = 0; i < count; ++i) {
    if (many && i == kAttemptsAtEnds) {
      i = count - kAttemptsAtEnds;
      text += "    attempts " + std::to_string(earlier[kAttemptsAtEnds].attempt) + " to " +
              std::to_string(earlier[i - 1].attempt) + ": in report.json\n";
    }
    text += "    attempt " + std::to_string(earlier[i].attempt) + ", after " +
            format_elapsed(earlier[i].at()) + ": " + failure_line(earlier[i]) + "\n";
  }
  return many ? text + causes_text(earlier) : text;
}

}  // namespace

const Failure* cause_of(const JobEnd& end) {
  if (end.stop_signal != 0) return nullptr;
  const std::optional<std::size_t> root =
      end.root && *end.root < end.failures.size() ? end.root : pick_root_cause(end.failures);
  return root ? &end.failures[*root] : nullptr;
}

std::string why_stopped(const JobEnd& end) {
  if (end.stop_signal == SIGINT && end.stopped_by.empty()) return "stopped by Ctrl-C (SIGINT)";
  return "stopped by " + signal_name(end.stop_signal) +
         (end.stop_signal == SIGHUP ? " (sent when a terminal closes)" : "") +
         (end.stopped_by.empty() ? "" : " from " + end.stopped_by);
}

/// In the order of precedence: the user's stop, a root cause, a failure of the master itself, and the
/// internal error that there is no reason. Success has no text. The last line is always the exit code and
/// why.
ExitReport make_exit_report(const JobEnd& end) {
  ExitReport report;
  if (end.stop_signal != 0) {
    report.exit_code = 128 + end.stop_signal;
    report.why = why_stopped(end);
    if (!end.awaited.empty()) report.why += " while waiting for " + end.awaited;
    if (!end.grace_ended_by.empty())
      report.why += "; the grace period was cut short by " + end.grace_ended_by;
    // Nodes with surviving processes are named, even if the user wanted the stop, but not those that got the
    // same signal.
    for (const Failure& failure : end.failures) {
      if (failure.kind == Failure::Kind::kNode && failure.error.sys != end.stop_signal)
        report.text += "  node " + failure.host + ": " + indented(failure.error.text, "    ");
    }
    // The user may have stopped the job because the others waited for these ranks.
    if (!end.early.empty()) report.text += "  note: " + early_ranks(end.early) + " exited 0 before that\n";
  } else if (const Failure* cause = cause_of(end)) {
    report.exit_code = code_of(*cause);
    report.why = failure_line(*cause);
    report.text = headline(*cause, end.restarts);
    if (is_start_failure(*cause)) {
      const std::vector<StartGroup> groups = start_groups(end, *cause);
      report.why = standalone(first_line(start_text(groups[0])));
      report.text += start_failures_text(groups);
    } else {
      report.text += root_text(*cause);
      if (!cause->of_worker() || cause->kind == Failure::Kind::kExec)  // the root cause has the details
        report.why = report.why.substr(0, report.why.find("; "));
    }
    if (const std::string early = early_exits_text(end, *cause); !early.empty())
      report.text += "  note: " + early + "\n";
    if (!end.grace_ended_by.empty())
      report.text += "  note: the grace period was cut short by " + end.grace_ended_by + "\n";
    if (!is_start_failure(*cause)) report.text += consequences_text(end, cause);
    report.text += earlier_text(end.earlier);
  } else if (end.master) {
    report.exit_code = exit_code_of(*end.master);
    report.why = first_line(end.master->text);
    // The first line is the last line of the report. Further ones are printed before it.
    if (report.why != end.master->text)
      report.text = indented("ddplaunch: " + end.master->text.substr(report.why.size() + 1), "  ");
  } else if (!end.failures.empty()) {
    // All workers were ended by our stop, but the stop has no reason. This is an internal error, not a
    // success.
    report.exit_code = kInternalExit;
    report.why = "internal error: stopped without a known cause (please report)";
    report.text = "ddplaunch: the job was stopped without a cause\n" + consequences_text(end, nullptr);
  } else {
    return report;
  }
  // Unless a line above names a file there.
  if (!end.job_dir.empty() && report.text.find(end.job_dir) == std::string::npos)
    report.text += (report.text.empty() ? "ddplaunch: " : "  ") + job_line(end) + "\n";
  report.text += "ddplaunch: exit " + std::to_string(report.exit_code) + ": " + report.why + "\n";
  return report;
}

std::string job_line(const JobEnd& end) {
  return end.job + (end.job.find(':') == std::string::npos ? ": " : ", ") + "files in " + end.job_dir;
}

std::string failure_line(const Failure& failure, bool cause) {
  const std::string what = standalone(first_line(what_happened(failure, cause)));
  if (failure.kind == Failure::Kind::kHung) return what;
  if (!failure.of_worker()) return "node " + failure.host + ": " + what;
  return "rank " + std::to_string(failure.rank) + " on " + failure.host + " " + what;
}

std::string early_ranks(const std::vector<EarlyExit>& exits) {
  std::vector<int> ranks;
  std::set<std::string, remote::HostOrder> hosts;
  for (const EarlyExit& exit : exits) {
    ranks.push_back(exit.rank);
    hosts.insert(exit.host);
  }
  return format_ranks(ranks) + " on " + host_list({hosts.begin(), hosts.end()});
}

/// Returns when the failure was there for certain. A hang begins with the last exit, so it counts from when
/// it was found.
std::chrono::nanoseconds since_when(const Failure& failure) {
  return failure.kind == Failure::Kind::kHung ? failure.happened.latest : failure.happened.earliest;
}

std::vector<EarlyExit> exits_before(const JobEnd& end, const Failure& failure) {
  std::vector<EarlyExit> exits = end.early;
  std::erase_if(exits,
                [&failure](const EarlyExit& exit) { return exit.happened.latest >= since_when(failure); });
  return exits;
}

std::string early_exits_text(const JobEnd& end, const Failure& failure) {
  const std::vector<EarlyExit> exits = exits_before(end, failure);
  if (exits.empty()) return {};
  const auto first = std::ranges::min(exits, {}, &EarlyExit::at).happened.middle();
  return early_ranks(exits) + " exited 0, " + (exits.size() == 1 ? "" : "the first ") +
         format_elapsed(since_when(failure) - first) + " earlier" +
         (failure.kind == Failure::Kind::kHung ? "; the others still ran, as with unequal amounts of data"
                                               : "");
}

namespace {

constexpr std::chrono::minutes kLongRun{1};

}  // namespace

std::string text_with_summary(const ExitReport& report, const JobEnd& end, const RunSummary& summary,
                              bool always) {
  const bool success = report.exit_code == 0;
  if (!always && summary.duration < kLongRun && !(success && end.restarts > 0)) return report.text;
  const std::string output = ", " + format_text("goodput %.1f %%, ", 100 * summary.goodput) +
                             format_bytes(summary.output_bytes) + " of output\n";
  const std::string usage = summary.usage.empty() ? "" : "used " + summary.usage + '\n';
  if (success) {
    return "ddplaunch: " + job_line(end) + "\nddplaunch: succeeded after " +
           format_elapsed(summary.duration) +
           (end.restarts > 0 ? ", " + counted(end.restarts, "restart") : "") + output +
           (usage.empty() ? "" : "ddplaunch: " + usage);
  }
  // Before the last line, because scripts and people read the exit code there.
  const std::size_t last_line = report.text.rfind('\n', report.text.size() - 2) + 1;
  return report.text.substr(0, last_line) + "  ran for " + format_elapsed(summary.duration) + output +
         (usage.empty() ? "" : "  " + usage) + report.text.substr(last_line);
}

}  // namespace ddp::launcher
