#include "launcher/exit_report.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <set>

#include "base/exit_status.h"

namespace ddp::launcher {
namespace {

constexpr int kInternalExit = 110;
constexpr std::size_t kHostsNamed = 4;

constexpr std::size_t kGroupsShown = 16;

bool is_worker(const Failure& failure) {
  return failure.kind != Failure::Kind::kNode;
}

// "exited 3", "killed by SIGSEGV (core dumped)": what happened, without who.
std::string what_happened(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::kExited:
      return failure.stopped_by_us ? "stopped by ddplaunch, exited " + std::to_string(failure.status)
                                   : "exited " + std::to_string(failure.status);
    case Failure::Kind::kSignaled:
      return (failure.stopped_by_us ? "stopped by ddplaunch, " : "killed by ") + signal_name(failure.signal) +
             (failure.core_dumped ? " (core dumped)" : "");
    case Failure::Kind::kExec:
      return "could not be started: " + failure.error.text;
    case Failure::Kind::kNode:
      return failure.error.text;
  }
  return {};
}

// A node that never got ready. Several such are no consequences of each other, and each has its own cure.
bool is_start_failure(const Failure& failure) {
  return failure.kind == Failure::Kind::kNode && failure.error.code != ErrorCode::kLinkLost;
}

int code_of(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::kExited:
      return failure.status > 0 && failure.status < 256 ? failure.status : kInternalExit;
    case Failure::Kind::kSignaled:
      return 128 + failure.signal;
    case Failure::Kind::kExec:
      return exec_exit_code(failure.error.sys);
    case Failure::Kind::kNode:
      return exit_code_of(failure.error);
  }
  return kInternalExit;
}

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time.count()) / 1000.0);
  return text;
}

std::string indented(const std::string& text, const std::string& margin) {
  std::string made;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (at > 0) made += margin;
    made += text.substr(at, end - at);
    made += '\n';
    at = end + 1;
  }
  return made.empty() ? "\n" : made;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string root_text(const Failure& root) {
  std::string text;
  if (is_worker(root)) {
    text = "  root cause: rank " + std::to_string(root.rank) + " (local rank " +
           std::to_string(root.local_rank) + ") on " + root.host +
           (root.pid > 0 ? ", pid " + std::to_string(root.pid) : "") + ": ";
  } else {
    text = "  root cause: node " + root.host + ": ";
  }
  text += indented(what_happened(root), "    ");
  if (!root.last_stderr.empty()) {
    text += "  the last lines of its stderr:\n";
    for (const std::string& line : root.last_stderr)
      text += "    | " + line + "\n";
  }
  if (!root.stderr_path.empty()) text += "  all of its stderr: " + root.stderr_path + "\n";
  return text;
}

std::string host_list(const std::set<std::string>& hosts) {
  std::string text;
  std::size_t named = 0;
  for (const std::string& host : hosts) {
    if (named == kHostsNamed && hosts.size() > kHostsNamed + 1) {
      return text + " and " + std::to_string(hosts.size() - named) + " more hosts";
    }
    if (named > 0) text += named + 1 == hosts.size() ? " and " : ", ";
    text += host;
    ++named;
  }
  return text;
}

// Failures that read alike, in one line. Kept in the order in which the first of each group came.
struct Group {
  bool workers = true;
  std::string what;
  std::vector<int> ranks;
  std::set<std::string> hosts;
};

std::vector<Group> folded(const std::vector<const Failure*>& failures) {
  std::vector<Group> groups;
  for (const Failure* failure : failures) {
    const std::string whole = what_happened(*failure);
    const std::string what = is_start_failure(*failure) ? whole : first_line(whole);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& known) {
      return known.what == what && known.workers == is_worker(*failure);
    });
    if (group == groups.end()) {
      groups.push_back({is_worker(*failure), what, {}, {}});
      group = groups.end() - 1;
    }
    if (group->workers) group->ranks.push_back(failure->rank);
    group->hosts.insert(failure->host);
  }
  return groups;
}

std::string group_text(const Group& group) {
  std::string who;
  if (group.workers) {
    who = (group.ranks.size() == 1 ? "rank " : "ranks ") + rank_set(group.ranks) + " on " +
          host_list(group.hosts);
  } else {
    who = (group.hosts.size() == 1 ? "node " : "nodes ") + host_list(group.hosts);
  }
  return "    " + who + ": " + indented(group.what, "      ");
}

std::string consequences_text(const JobEnd& end, std::optional<std::size_t> root) {
  std::vector<const Failure*> others;
  for (std::size_t i = 0; i < end.failures.size(); ++i) {
    if (i != root) others.push_back(&end.failures[i]);
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const Failure* a, const Failure* b) { return a->at < b->at; });
  const std::vector<Group> groups = folded(others);
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), kGroupsShown); ++i)
    text += group_text(groups[i]);
  if (groups.size() > kGroupsShown) {
    text += "    and " + std::to_string(groups.size() - kGroupsShown) + " more of other kinds\n";
  }
  if (text.empty() || !root) return text;
  return (is_start_failure(end.failures[*root]) ? "  also:\n" : "  consequences:\n") + text;
}

std::string last_line(int code, const std::string& why) {
  return "ddplaunch: exit " + std::to_string(code) + ": " + why + "\n";
}

/// One line that stands alone: "…; its last lines:" promises lines that are not there.
std::string standalone(std::string line) {
  if (!line.empty() && line.back() == ':') line.resize(std::min(line.rfind("; "), line.size() - 1));
  return line;
}

std::string why_root(const Failure& root) {
  const std::string what = standalone(first_line(what_happened(root)));
  if (!is_worker(root)) return "node " + root.host + ": " + what;
  return "rank " + std::to_string(root.rank) + " on " + root.host + " " + what;
}

std::string why_stopped(int signal) {
  switch (signal) {
    case SIGINT:
      return "stopped by Ctrl-C (SIGINT)";
    case SIGHUP:
      return "stopped because its terminal closed (SIGHUP)";
    default:
      return "stopped by " + signal_name(signal);
  }
}

ExitReport master_report(const Error& error) {
  ExitReport report;
  report.exit_code = exit_code_of(error);
  // A text of one line is its own last line; a longer one is told first.
  const bool one_line = error.text.find('\n') == std::string::npos;
  if (!one_line) report.text = indented("ddplaunch: " + error.text, "  ");
  const char* meaning = "";
  for (const ExitCodeRow& row : exit_code_table()) {
    if (row.error == error.code) meaning = row.meaning;
  }
  report.text += last_line(report.exit_code, one_line ? error.text : meaning);
  return report;
}

}  // namespace

ExitReport make_exit_report(const JobEnd& end) {
  ExitReport report;
  if (end.stop_signal != 0) {
    report.exit_code = 128 + end.stop_signal;
    // What could not be ended is named, whoever wanted the end.
    for (const Failure& failure : end.failures) {
      if (failure.kind == Failure::Kind::kNode)
        report.text += "  node " + failure.host + ": " + what_happened(failure) + "\n";
    }
    report.text += last_line(report.exit_code, why_stopped(end.stop_signal));
    return report;
  }
  const std::optional<std::size_t> root =
      end.root && *end.root < end.failures.size() ? end.root : pick_root_cause(end.failures);
  if (!root && end.master) return master_report(*end.master);
  if (!root && end.failures.empty()) return report;
  if (!root) {
    // Everything was ended by our own stop, and nobody told us why we stopped: that is a mistake of ours, not
    // success.
    report.exit_code = kInternalExit;
    report.text = "ddplaunch: the job was stopped without a cause\n" + consequences_text(end, root) +
                  last_line(kInternalExit, "stopped without a known cause");
    return report;
  }
  const Failure& cause = end.failures[*root];
  report.exit_code = code_of(cause);
  report.text = (is_start_failure(cause) ? "ddplaunch: the job did not start, given up after "
                                         : "ddplaunch: the job failed after ") +
                seconds(cause.at) + "\n" + root_text(cause) + consequences_text(end, root) +
                last_line(report.exit_code, why_root(cause));
  return report;
}

std::string failure_line(const Failure& failure) {
  return why_root(failure);
}

std::optional<std::size_t> pick_root_cause(const std::vector<Failure>& failures) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (failures[i].stopped_by_us) continue;
    if (!best || failures[i].at < failures[*best].at ||
        (failures[i].at == failures[*best].at && is_worker(failures[i]) && !is_worker(failures[*best]))) {
      best = i;
    }
  }
  return best;
}

const std::vector<ExitCodeRow>& exit_code_table() {
  static const std::vector<ExitCodeRow> table{
      {ErrorCode::kUsage, 2, "the command line or a file it names is wrong; nothing was started"},
      {ErrorCode::kInternal, kInternalExit, "a mistake of ddplaunch itself"},
      {ErrorCode::kProtocol, kInternalExit, "an agent sent what the protocol does not allow"},
      {ErrorCode::kUnreachable, 111, "a host could not be resolved, reached or logged in to"},
      {ErrorCode::kTimeout, 112, "the job did not start in time"},
      {ErrorCode::kLinkLost, 113, "a node was lost while the job ran"},
      {ErrorCode::kAgentMissing, 114, "a host has no ddplaunchd where it was looked for"},
      {ErrorCode::kAgentMismatch, 114, "a host's ddplaunchd does not fit this ddplaunch"},
      {ErrorCode::kRefused, 115, "a node refused the job in its check before the start"},
      {ErrorCode::kSystem, 116, "the operating system refused something that ddplaunch needs"},
      {ErrorCode::kExec, 126, "the worker's program could not be executed (127: not found)"},
      {ErrorCode::kCancelled, 143, "stopped on request"},
  };
  return table;
}

int exit_code_of(const Error& error) {
  if (error.code == ErrorCode::kExec) return exec_exit_code(error.sys);
  for (const ExitCodeRow& row : exit_code_table()) {
    if (row.error == error.code) return row.exit_code;
  }
  return kInternalExit;
}

int exec_exit_code(int sys) {
  return sys == ENOENT || sys == ENOTDIR ? 127 : 126;
}

std::string rank_set(std::vector<int> ranks) {
  constexpr int kParts = 8;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  int parts = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1)
      ++last;
    if (parts == kParts) return text + ",…";
    if (parts++ > 0) text += ',';
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace ddp::launcher
