#include "launcher/report/root_cause.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <csignal>
#include <map>
#include <string>
#include <string_view>

#include "base/parse_text.h"

namespace ddp::launcher {
namespace {

/// Time from the first effect of a death on the peers to its end: writing a core of some GB, freeing much GPU
/// memory.
constexpr std::chrono::seconds kDyingTime{2};

/// Time from an end to the moment at which its agent sees it. The end may be this much earlier than seen.
constexpr std::chrono::microseconds kNoticed{500};

/// Messages of a rank whose peer has gone: PyTorch's and NCCL's watchdogs, gloo, NCCL's network, the kernel.
constexpr std::array<std::string_view, 21> kEchoes{
    "collective operation timeout",  // "Watchdog caught collective operation timeout: …"
    "Connection reset",
    "Connection closed by",  // peer, remote peer
    "connection was closed by",
    "Connection refused",
    "Broken pipe",
    "Socket Timeout",
    "Socket closed",
    "Timed out waiting",            // gloo: "Timed out waiting 1800000ms for recv operation to complete"
    "seconds waiting for clients",  // TCPStore: "Timed out after 301 seconds waiting for clients."
    "The client socket has",        // TCPStore: "… timed out after 300s", "… failed to connect"
    "remote process exited or there was a network error",
    "ncclRemoteError",
    "NCCL communicator was aborted",
    "ailed to recv, got 0 bytes",
    "DistStoreError",
    "DistNetworkError",
    "Connection was likely closed",
    "watchdog thread terminated",  // "Process group watchdog thread terminated with exception: …"
    "eartbeat monitor timed out",
    " lost rank ",  // the bundled trainer
};

bool has_echo(std::string_view text) {
  return std::any_of(kEchoes.begin(), kEchoes.end(),
                     [&](std::string_view words) { return text.find(words) != std::string_view::npos; });
}

/// True for a line that starts with the name of an exception: "ValueError: boom",
/// "torch.distributed.DistBackendError: …", "KeyboardInterrupt".
bool is_exception_line(std::string_view line) {
  const std::string_view name = line.substr(0, line.find(':'));
  const bool word = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.';
  });
  return word && (name.ends_with("Error") || name.ends_with("Exception") || name.ends_with("Interrupt") ||
                  name.ends_with("Exit") || name.ends_with("Iteration"));
}

/// Returns the last exception in a Python program's stderr with its message, if any.
std::optional<std::string> last_exception(const std::vector<std::string>& lines) {
  const auto found = std::find_if(lines.rbegin(), lines.rend(), is_exception_line);
  if (found == lines.rend()) return std::nullopt;
  std::string text;
  for (auto line = found.base() - 1; line != lines.end(); ++line)
    text += *line + "\n";
  return text;
}

std::string all_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines)
    text += line + "\n";
  return text;
}

/// Returns the worker's own explanation of its end. An exception is preferred to the whole stderr, so that
/// old warnings do not count.
std::string last_text(const Failure& failure) {
  if (failure.evidence.exception) {
    return failure.evidence.exception->type + ": " + failure.evidence.exception->message;
  }
  if (auto exception = last_exception(failure.last_stderr)) return *exception;
  return all_lines(failure.last_stderr);
}

bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE || signal == SIGSYS;
}

bool noticed_a_loss(const Failure& failure) {
  return failure.lost_peers || has_echo(last_text(failure));
}

/// True for an exception that neither a stop nor the loss of a peer raises.
bool is_own_exception(const std::string& words) {
  return !has_echo(words) && !words.starts_with("KeyboardInterrupt") && !words.starts_with("SystemExit") &&
         words.find("SignalException") == std::string::npos;
}

/// True if the worker failed by itself although our stop was already on its way. The effects of a stop look
/// different.
bool failed_while_stopped(const Failure& failure) {
  const bool reported = failure.evidence.exception && is_own_exception(last_text(failure));
  switch (failure.kind) {
    case Failure::Kind::kSignaled:
      // `@record` has written the reason, and our SIGTERM arrived while the program was exiting.
      return reported || is_crash(failure.signal) ||
             (failure.signal == SIGKILL && !failure.evidence.oom.empty());
    case Failure::Kind::kExited:
      return reported || (last_exception(failure.last_stderr) && is_own_exception(last_text(failure)));
    case Failure::Kind::kExec:
      return true;
    case Failure::Kind::kHung:
    case Failure::Kind::kNode:
      return false;
  }
  return false;
}

/// True if `a` is the better cause, when neither failure is certainly first.
bool better(const Failure& a, const Failure& b) {
  const Blame blame_a = blame_of(a);
  const Blame blame_b = blame_of(b);
  if (blame_a != blame_b) return blame_a < blame_b;
  return a.at < b.at;
}

/// Returns the failure that caused an echo and ended at most kDyingTime after it. Prefers a worker's own
/// failure, then a rank that others terminated, then a node.
std::optional<std::size_t> source_of_echo(const std::vector<Failure>& failures, const Failure& echo) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const Failure& failure = failures[i];
    if (failure.at > echo.at + kDyingTime) continue;
    if (failure.stopped_by_us ? !failed_while_stopped(failure) : blame_of(failure) == Blame::kEcho) continue;
    if (!best || better(failure, failures[*best])) best = i;
  }
  return best;
}

/// True if it ended without an exception. A program that only saw a peer go may end like this.
bool is_silent_end(const Failure& failure) {
  const bool ended = failure.kind == Failure::Kind::kExited ||
                     (failure.kind == Failure::Kind::kSignaled && failure.signal == SIGABRT);
  return ended && !failure.evidence.exception && !last_exception(failure.last_stderr);
}

/// Returns the first rank that others terminated, if its end was in progress when `silent` ended. A dying
/// process closes its sockets before its agent sees its end.
std::optional<std::size_t> terminated_before(const std::vector<Failure>& failures, const Failure& silent) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const Failure& failure = failures[i];
    if (failure.stopped_by_us || blame_of(failure) != Blame::kTerminated) continue;
    if (failure.at > silent.at + kDyingTime) continue;
    if (!first || failure.at < failures[*first].at) first = i;
  }
  return first;
}

/// NVIDIA's Xid errors (docs.nvidia.com/deploy/xid-errors) that are relevant to training jobs.
struct XidRow {
  int number;
  const char* meaning;
};
constexpr XidRow kXids[] = {
    {13, "a kernel of the program made an invalid memory access on the GPU, usually a bug of the program"},
    {31, "the program used an invalid GPU address (MMU fault), usually a bug of the program"},
    {32, "the GPU got an invalid command stream; check the driver, PCIe and the program"},
    {43, "the GPU stopped the program's work, usually a bug of the program"},
    {45, "the program's work was removed from the GPU because the program ended, or after another error"},
    {48, "the GPU's memory has an uncorrectable error; take the node out of use"},
    {61, "a fault of the GPU's firmware; reset the GPU"},
    {62, "a fault of the GPU's firmware; reset the GPU"},
    {63, "the GPU replaced bad memory; it takes effect at the next reset"},
    {64, "the GPU could not replace bad memory; take the node out of use"},
    {74, "an NVLink connection failed; check the GPU and its links (nvidia-smi nvlink -e)"},
    {79, "the GPU has fallen off the bus: power, cooling or hardware; take the node out of use"},
    {92, "many memory errors were corrected; watch this GPU"},
    {94, "a memory error hit this program only; start the job again, reset the GPU soon"},
    {95, "a memory error hit the whole GPU; reset it before anything runs there"},
    {119, "the GPU's system processor does not answer; reset the GPU or restart the node"},
    {120, "the GPU's system processor failed; reset the GPU or restart the node"},
};

bool says(const Failure& failure, std::string_view words) {
  if (failure.evidence.exception && failure.evidence.exception->message.find(words) != std::string::npos) {
    return true;
  }
  return std::any_of(failure.last_stderr.begin(), failure.last_stderr.end(),
                     [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

}  // namespace

Blame blame_of(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::kNode:
      return Blame::kNode;
    case Failure::Kind::kExec:
    case Failure::Kind::kHung:
      return Blame::kOwn;
    case Failure::Kind::kExited:
      return noticed_a_loss(failure) ? Blame::kEcho : Blame::kOwn;
    case Failure::Kind::kSignaled:
      break;
  }
  switch (failure.signal) {
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return Blame::kTerminated;
    case SIGPIPE:
      return Blame::kEcho;
    case SIGABRT:
      return noticed_a_loss(failure) ? Blame::kEcho : Blame::kOwn;
    default:
      return Blame::kOwn;
  }
}

std::optional<std::size_t> pick_root_cause(const std::vector<Failure>& failures) {
  // A failure that is certainly later than another one was not first. The order of ends on one node is
  // certain.
  std::optional<std::chrono::nanoseconds> surely_over;
  std::map<std::string_view, std::chrono::nanoseconds> first_on;
  for (const Failure& failure : failures) {
    if (failure.stopped_by_us) continue;
    const auto latest = failure.at + failure.at_error;
    surely_over = std::min(surely_over.value_or(latest), latest);
    if (!failure.of_worker()) continue;
    const auto first = first_on.try_emplace(failure.host, failure.at).first;
    first->second = std::min(first->second, failure.at);
  }
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const Failure& failure = failures[i];
    if (failure.stopped_by_us || failure.at - failure.at_error - kNoticed > *surely_over) continue;
    if (failure.of_worker() && failure.at > first_on[failure.host]) continue;
    if (!best || better(failure, failures[*best])) best = i;
  }
  if (!best) return best;
  const Failure& first = failures[*best];
  std::optional<std::size_t> source;
  if (blame_of(first) == Blame::kEcho) {
    source = source_of_echo(failures, first);
  } else if (is_silent_end(first)) {
    source = terminated_before(failures, first);
  }
  return source ? source : best;
}

std::string signal_meaning(const Failure& failure) {
  switch (failure.signal) {
    case SIGSEGV:
      return "it used memory that is not its own: a bug in native code (an extension, a library), or a stack "
             "overflow";
    case SIGBUS:
      return "its mapped memory has no backing: usually /dev/shm or a disk is full, or a mapped file was "
             "truncated";
    case SIGFPE:
      return "a division by zero or the like in native code";
    case SIGILL:
      return "an instruction that this CPU does not have: the program was built for another one";
    case SIGABRT:
      return "it called abort: a failed check in native code, which its stderr usually names";
    case SIGKILL:
      if (!failure.evidence.oom.empty()) return {};
      return "not sent by ddplaunch, but by another process or by the OOM killer; check dmesg on that host";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "not sent by ddplaunch, but by another process on that host, such as its scheduler or a "
             "shutdown";
    case SIGPIPE:
      return "it wrote to a pipe or socket whose reader is closed";
    case SIGXCPU:
      return "it used up its limit of CPU time (ulimit -t)";
    case SIGXFSZ:
      return "a file that it wrote reached the limit (ulimit -f)";
    case SIGSYS:
      return "it made a forbidden system call, for example in a sandbox";
    default:
      return {};
  }
}

int xid_number(std::string_view line) {
  const std::size_t xid = line.find("Xid");
  const std::size_t colon = xid == std::string::npos ? xid : line.find("): ", xid);
  if (colon == std::string::npos) return 0;
  return leading_number<int>(line.substr(colon + 3)).value_or(0);
}

std::string xid_meaning(const std::string& line) {
  const int number = xid_number(line);
  for (const XidRow& row : kXids) {
    if (row.number == number) return row.meaning;
  }
  return {};
}

std::string hint_for(const Failure& root) {
  if (says(root, "Address already in use") || says(root, "EADDRINUSE")) {
    return "a port is in use. If the script itself serves MASTER_PORT (TCPStore with is_master, tcp://), "
           "ddplaunch\nalready serves it; run the job with --store worker";
  }
  const bool timeout =
      says(root, "The client socket has timed out") || says(root, "seconds waiting for clients");
  if (timeout) {
    return "the script creates its own store (init_process_group(\"tcp://…\"), TCPStore) on another "
           "port\nthan MASTER_PORT, so clients find no server; run the job with --store worker";
  }
  if (says(root, "insufficient shared memory") || says(root, "No space left on device: '/dev/shm")) {
    return "/dev/shm is full; give the container more of it (docker run --shm-size), or use fewer "
           "data-loader workers";
  }
  return {};
}

}  // namespace ddp::launcher
