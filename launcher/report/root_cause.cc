// The texts of lost peers and how they are found; exceptions in a worker's stderr; the kinds of failures;
// causality; and pick_root_cause(), whose rules the header explains. Last, what signals and Xid errors mean.
#include "launcher/report/root_cause.h"

#include <algorithm>
#include <bitset>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/text.h"

namespace ddp::launcher {
namespace {

constexpr EchoText kEchoTexts[] = {
    // NCCL, and PyTorch's use of it
    {"collective operation timeout", "PyTorch, ProcessGroupNCCL.cpp",
     "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
     "Timeout(ms)=1800000) ran for 1800123 milliseconds before timing out."},
    {"eartbeat monitor timed out", "PyTorch, ProcessGroupNCCL.cpp",
     "Heartbeat monitor timed out! Process will be terminated after dumping debug info."},
    {"NCCL communicator was aborted", "PyTorch, NCCLUtils.hpp",
     "RuntimeError: NCCL communicator was aborted on rank 3."},
    {"ncclRemoteError", "PyTorch, NCCLUtils.hpp",
     "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
     "prematurely."},
    {"remote process exited or there was a network error", "NCCL, src/init.cc",
     "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or "
     "there was a network error, NCCL version 2.18.1"},
    {"IBV_WC_RETRY_EXC_ERR", "NCCL, src/transport/net_ib.cc",
     "NET/IB: Got completion from peer 10.0.0.1<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=129"},
    // Gloo
    {"send operation to complete", "Gloo, transport/tcp/unbound_buffer.cc",
     "RuntimeError: [/opt/gloo/transport/tcp/unbound_buffer.cc:119] Timed out waiting 1800000ms for send "
     "operation "
     "to complete"},
    {"recv operation to complete", "Gloo, transport/tcp/unbound_buffer.cc",
     "RuntimeError: [/opt/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
     "operation "
     "to complete"},
    {"Connection closed", "Gloo, transport/tcp/pair.cc; NCCL, src/misc/socket.cc",
     "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
     "[10.0.0.1]:7"},
    // PyTorch's TCPStore
    {"Socket Timeout", "PyTorch, TCPStore.cpp", "RuntimeError: Socket Timeout"},
    {"DistStoreError", "PyTorch, TCPStore.cpp",
     "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"},
    {"seconds waiting for clients", "PyTorch, TCPStore.cpp",
     "RuntimeError: Timed out after 301 seconds waiting for clients. 2/4 clients joined."},
    {"The client socket has", "PyTorch, socket.cpp",
     "torch.distributed.DistNetworkError: The client socket has timed out after 300s while trying to connect "
     "to "
     "(gpu01, 29500)."},
    {"ailed to recv, got 0 bytes", "PyTorch, c10d/Utils.hpp",
     "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the "
     "remote "
     "server shutdown or crash?"},
    {"Connection was likely closed", "PyTorch, c10d/Utils.hpp",
     "torch.distributed.DistNetworkError: failed to send. Connection was likely closed."},
    // MPI
    {"Communication error with rank", "MPICH, ch3",
     "MPIDI_CH3U_Recvq_FDU_or_AEP(629): Communication error with rank 3"},
    {"MPI_ERR_PROC_FAILED", "Open MPI, ULFM", "*** MPI_ERR_PROC_FAILED: Process Failure"},
    {"Transport retry count exceeded", "UCX, uct/ib",
     "Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)"},
    {"ndpoint timeout", "UCX, ucs/type/status.c",
     "Error: mca_pml_ucx_send_nbr failed: -80, Endpoint timeout"},
    // JAX and gRPC
    {"UNAVAILABLE: ", "gRPC, and what uses it",
     "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses"},
    {"Socket closed", "gRPC", "Error received from peer  {grpc_message:\"Socket closed\", grpc_status:14}"},
    {"heartbeat timeout", "XLA, coordination_service.cc",
     "Task /job:jax_worker/replica:0/task:0 heartbeat timeout. This indicates that the remote task has "
     "failed, got "
     "preempted, or crashed unexpectedly."},
    {"Barrier timed out", "XLA, coordination_service.cc",
     "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: "
     "PjRT_Client_Connect."},
    {"coordination service", "XLA, coordination_service_agent.cc",
     "Polled an error from coordination service (this can be an error from this or another task)."},
    {"distributed service detected fatal errors", "XLA, pjrt/distributed/client.h",
     "Terminating process because the JAX distributed service detected fatal errors. This most likely "
     "indicates that "
     "another task died"},
    // The kernel's own words, from any program
    {"Connection reset", "ECONNRESET", "ConnectionResetError: [Errno 104] Connection reset by peer"},
    {"Connection refused", "ECONNREFUSED", "ConnectionRefusedError: [Errno 111] Connection refused"},
    {"Connection timed out", "ETIMEDOUT", "RuntimeError: recv failed: Connection timed out"},
    {"Broken pipe", "EPIPE", "BrokenPipeError: [Errno 32] Broken pipe"},
    {"No route to host", "EHOSTUNREACH", "OSError: [Errno 113] No route to host"},
    // Python
    {"ConnectionResetError", "Python, asyncio", "ConnectionResetError: Connection lost"},
    {"EOFError\n", "Python, multiprocessing: without a message", "EOFError"},
    {"0 bytes read on a total of", "Python, asyncio",
     "asyncio.exceptions.IncompleteReadError: 0 bytes read on a total of 8 expected bytes"},
    // ddplaunch
    {" lost rank ", "the bundled trainer", "train: rank 3 lost rank 2 in an all-reduce: connection closed"},
};

/// The last lines of 80,000 ranks must not cost seconds, so a text is searched once for all words, by their
/// first bytes.
constexpr std::size_t kKeyBytes = 4;

std::size_t key_of(const char* bytes) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes, kKeyBytes);
  // Multiplicative hashing (Knuth): the upper half of the product depends on all bits of the key.
  return (value * 2654435761U) >> 16;
}

std::bitset<1 << 16> all_keys() {
  std::bitset<1 << 16> keys;
  for (const EchoText& echo : kEchoTexts)
    keys.set(key_of(echo.words.data()));
  return keys;
}

}  // namespace

std::span<const EchoText> echo_texts() {
  return kEchoTexts;
}

bool is_echo(std::string_view text) {
  static const std::bitset<1 << 16> keys = all_keys();
  for (std::size_t at = 0; at + kKeyBytes <= text.size(); ++at) {
    // Most positions end here. A set bit may also be another text's hash, so the words are compared as well.
    if (!keys.test(key_of(text.data() + at))) continue;
    const std::string_view rest = text.substr(at);
    if (std::ranges::any_of(kEchoTexts,
                            [rest](const EchoText& echo) { return rest.starts_with(echo.words); }))
      return true;
  }
  return false;
}

namespace {

/// Time from an end to the moment at which its agent sees it. The end may be this much earlier than seen.
constexpr std::chrono::microseconds kNoticed{500};

/// Native code prints one of these before it calls abort because of its own error. Other texts say nothing
/// about an abort: most programs have warnings and progress bars on stderr.
constexpr std::string_view kAbortReasons[] = {
    "what():",        "Assertion",           "assertion",   "Check failed", "CHECK failed",
    "corrupt",        "double free",         "free(): ",    "malloc(): ",   "munmap_chunk",
    "stack smashing", "pure virtual method", "panicked at", "CUDA error",
};

/// Removes the prefix that PyTorch gives each line of an uncaught exception: "[rank3]: ".
std::string_view without_rank(std::string_view line) {
  constexpr std::string_view kRank = "[rank";
  if (!line.starts_with(kRank)) return line;
  const std::size_t end = line.find("]: ");
  return end == std::string_view::npos ? line : line.substr(end + 3);
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

/// True for a line of a log in the form of glog, which PyTorch and JAX write: "[W1129 12:00:00 socket.cpp:…",
/// "[rank0]:[W socket.cpp:…", "E0000 12:00:00 …".
bool is_log_line(std::string_view line) {
  if (line.starts_with("[rank")) line.remove_prefix(std::min(line.find("]:"), line.size() - 2) + 2);
  const bool bracket = line.starts_with('[');
  line.remove_prefix(bracket ? 1 : 0);
  if (line.size() < 3 || std::string_view("IWEF").find(line[0]) == std::string_view::npos) return false;
  const auto digit = [line](std::size_t i) { return std::isdigit(static_cast<unsigned char>(line[i])) != 0; };
  return (bracket && line[1] == ' ') || (digit(1) && digit(2));
}

/// True for an exception that a fault of the program itself raises, whatever its message quotes. Libraries
/// report the loss of a peer by RuntimeError, ConnectionError and exceptions of their own.
bool is_own_type(std::string_view exception) {
  static constexpr std::string_view kOwnTypes[] = {
      "ArithmeticError",     "AssertionError",      "AttributeError", "FileExistsError",
      "FileNotFoundError",   "FloatingPointError",  "ImportError",    "IndentationError",
      "IndexError",          "IsADirectoryError",   "KeyError",       "LookupError",
      "MemoryError",         "ModuleNotFoundError", "NameError",      "NotADirectoryError",
      "NotImplementedError", "OutOfMemoryError",    "OverflowError",  "RecursionError",
      "ScriptError",         "SyntaxError",         "TypeError",      "UnboundLocalError",
      "UnicodeDecodeError",  "UnicodeEncodeError",  "ValueError",     "ZeroDivisionError"};
  const std::string_view name = exception.substr(0, exception.find_first_of(":\n"));
  const std::string_view type = name.substr(name.rfind('.') + 1);
  return std::ranges::find(kOwnTypes, type) != std::end(kOwnTypes);
}

bool is_traceback_head(std::string_view line) {
  return line.starts_with("Traceback (most recent call last)");
}

/// Returns the line of the last exception in a Python program's stderr; lines.end(): none.
std::vector<std::string>::const_iterator last_exception(const std::vector<std::string>& lines) {
  const auto found = std::find_if(lines.rbegin(), lines.rend(), [](const std::string& line) {
    return is_exception_line(without_rank(line));
  });
  return found == lines.rend() ? lines.end() : found.base() - 1;
}

std::string all_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines)
    text += line + "\n";
  return text;
}

/// Returns the frame that raised the exception in the line `at`, from the traceback above it. Empty: the
/// traceback is not all there, or is that of another exception.
std::string frame_of(const std::vector<std::string>& lines, std::vector<std::string>::const_iterator at) {
  std::string trace;
  while (at != lines.begin()) {
    const std::string_view line = without_rank(*--at);
    if (is_traceback_head(line)) return last_frame(trace);
    if (is_exception_line(line)) break;
    trace.insert(0, std::string(line) + '\n');
  }
  return {};
}

/// True if only a log may follow the exception in the worker's stderr: Python was exiting because of it.
bool ends_with_exception(const Failure& failure) {
  const auto last = std::find_if_not(failure.last_stderr.rbegin(), failure.last_stderr.rend(),
                                     [](const std::string& line) { return is_log_line(line); });
  return last != failure.last_stderr.rend() && is_exception_line(without_rank(*last));
}

}  // namespace

std::string exception_text(const WorkerException& exception) {
  return exception.type + (exception.type.empty() || exception.message.empty() ? "" : ": ") +
         exception.message;
}

std::optional<WorkerException> exception_of(const Failure& failure) {
  // The file of @record is exact. Without it the end of stderr has to be read as Python writes it.
  if (failure.evidence.exception) return failure.evidence.exception;
  const auto line = last_exception(failure.last_stderr);
  if (line == failure.last_stderr.end()) return std::nullopt;
  const std::string_view text = without_rank(*line);
  // Without a traceback it is a line of any program, unless Python's text ends there and its head is lost.
  const bool traceback = std::any_of(failure.last_stderr.begin(), line, [](const std::string& above) {
    return is_traceback_head(without_rank(above));
  });
  const bool last = ends_with_exception(failure) && (traceback || !text.starts_with("Error:"));
  if (!last && (!traceback || failure.kind != Failure::Kind::kExited)) return std::nullopt;
  WorkerException exception = split_exception(text);
  if (exception.type.empty()) std::swap(exception.type, exception.message);  // "AssertionError" alone
  exception.frame = frame_of(failure.last_stderr, line);
  return exception;
}

namespace {

/// Returns all that the worker says of its exception, for a search. What is logged while the program ends is
/// no part of it.
std::optional<std::string> whole_exception(const Failure& failure) {
  if (failure.evidence.exception) return exception_text(*failure.evidence.exception) + "\n";
  auto line = last_exception(failure.last_stderr);
  if (line == failure.last_stderr.end()) return std::nullopt;
  std::string text;
  for (; line != failure.last_stderr.end() && !is_log_line(*line); ++line)
    text.append(without_rank(*line)).append("\n");
  return text;
}

bool is_echo_exception(std::string_view exception) {
  return !is_own_type(exception) && is_echo(exception);
}

/// True if the worker says that it lost a peer.
bool noticed_a_loss(const Failure& failure) {
  // What the worker reported through its protocol needs no guess from its texts.
  if (failure.lost_peers) return true;
  const auto exception = whole_exception(failure);
  return exception ? is_echo_exception(*exception) : is_echo(all_lines(failure.last_stderr));
}

bool has_abort_reason(const Failure& failure) {
  const std::string text = all_lines(failure.last_stderr);
  return std::ranges::any_of(
      kAbortReasons, [&text](std::string_view reason) { return text.find(reason) != std::string::npos; });
}

/// True if the worker ended by an exception that neither a signal of ours nor the loss of a peer raises.
bool has_own_exception(const Failure& failure) {
  const auto text = whole_exception(failure);
  if (!text || is_echo_exception(*text) || text->starts_with("KeyboardInterrupt") ||
      text->starts_with("SystemExit") || text->find("SignalException") != std::string::npos ||
      text->find("killed by signal: Terminated") != std::string::npos)  // a data loader's process
    return false;
  if (failure.kind == Failure::Kind::kExited || failure.evidence.exception) return true;
  return ends_with_exception(failure);  // our signal ended it meanwhile
}

/// True for an end that began after our signal, whatever caused it.
bool began_after_stop(const Failure& failure) {
  return failure.stopped_by_us || failure.late_kill;
}

/// A failure that may be the root cause.
struct Cause {
  const Failure* failure = nullptr;
  Blame blame = Blame::kEcho;
};

/// The ends that began after our signal, counted by exit code and signal.
using EndCounts = std::map<std::pair<int, int>, int>;

/// True if the worker failed by itself although its end began after our signal. An abort or an exit code
/// without an exception may also be how the program answers the signal. It is an own failure if the signal
/// ended other ranks, so that the program does not handle it, or if no other rank failed after it and
/// the first failure only noticed a loss.
bool failed_despite_stop(const Failure& failure, const EndCounts& ends, const Cause& first) {
  if (failure.late_kill || is_crash(failure) || has_own_exception(failure)) return true;
  const bool unexplained = failure.kind == Failure::Kind::kExited
                               ? failure.status < 128
                               : failure.kind == Failure::Kind::kSignaled && failure.signal == SIGABRT;
  const bool alone = first.blame == Blame::kEcho && ends.size() == 1 && ends.begin()->second == 1;
  return unexplained && !whole_exception(failure) && (ends.contains({0, SIGTERM}) || alone);
}

using FailureList = std::vector<const Failure*>;

/// Sets `best` to `next` if that is the better cause, as far as causality allows both: by kind, then by time.
void choose(std::optional<Cause>& best, const Cause& next) {
  const bool better =
      !best || next.blame < best->blame ||
      (next.blame == best->blame && next.failure->happened.middle() < best->failure->happened.middle());
  if (better) best = next;
}

std::optional<Cause> best_of(const FailureList& failures) {
  std::optional<Cause> best;
  for (const Failure* failure : failures)
    choose(best, {failure, blame_of(*failure)});
  return best;
}

/// Returns those of `failures` that did not happen for certain after another one. The order of ends on one
/// node is certain, and so is that its agent reported them before the node was lost.
FailureList earliest_of(const FailureList& failures) {
  std::optional<std::chrono::nanoseconds> over;
  std::unordered_map<std::string_view, std::chrono::nanoseconds> first_on;
  for (const Failure* failure : failures) {
    // The earliest moment by which some failure had certainly happened. What began later is not among the
    // first.
    over = std::min(over.value_or(failure->happened.latest), failure->happened.latest);
    if (!failure->of_worker()) continue;
    const auto first = first_on.try_emplace(failure->host, failure->happened.middle()).first;
    first->second = std::min(first->second, failure->happened.middle());
  }
  FailureList earliest;
  for (const Failure* failure : failures) {
    if (failure->happened.earliest - kNoticed > *over) continue;
    const auto first = first_on.find(failure->host);
    const bool preceded =
        first != first_on.end() && (failure->of_worker() ? first->second < failure->happened.middle()
                                                         : first->second <= failure->happened.latest);
    if (!preceded) earliest.push_back(failure);
  }
  return earliest;
}

/// True if `failure` can be a death by a signal: kCrash, kTerminated, or that of a GPU. Reads no text.
bool may_be_death(const Failure& failure) {
  return failure.kind == Failure::Kind::kSignaled || !failure.evidence.oom.empty() ||
         !failure.evidence.xid.empty();
}

/// True if the end of `source`, a worker, may have caused `effect` although it was seen later. A dying
/// process closes its sockets before its core is written and its GPUs are freed, and its agent sees its end
/// only then. No time limits this.
bool explains(const Cause& source, const Cause& effect) {
  if (effect.blame != Blame::kExitCode) return source.blame < effect.blame;
  // A program chooses its exit code. Only a death that had begun before our signal explains it. The exception
  // of another rank may be an effect of this exit, in words that are not known.
  return !began_after_stop(*source.failure) &&
         (source.blame <= Blame::kCrash || source.blame == Blame::kTerminated);
}

/// NVIDIA's Xid errors (docs.nvidia.com/deploy/xid-errors) that are relevant to training jobs.
struct XidRow {
  int number;
  const char* meaning;
  bool hardware = false;  ///< the GPU or its firmware failed, not the program
};
constexpr XidRow kXids[] = {
    {13, "a kernel of the program made an invalid memory access on the GPU, usually a bug of the program"},
    {31, "the program used an invalid GPU address (MMU fault), usually a bug of the program"},
    {32, "the GPU got an invalid command stream; check the driver, PCIe and the program"},
    {43, "the GPU stopped the program's work, usually a bug of the program"},
    {45, "the program's work was removed from the GPU because the program ended, or after another error"},
    {48, "the GPU's memory has an uncorrectable error; take the node out of use", true},
    {61, "a fault of the GPU's firmware; reset the GPU", true},
    {62, "a fault of the GPU's firmware; reset the GPU", true},
    {63, "the GPU replaced bad memory; it takes effect at the next reset"},
    {64, "the GPU could not replace bad memory; take the node out of use", true},
    {74, "an NVLink connection failed; check the GPU and its links (nvidia-smi nvlink -e)", true},
    {79, "the GPU has fallen off the bus: power, cooling or hardware; take the node out of use", true},
    {92, "many memory errors were corrected; watch this GPU"},
    {94, "a memory error hit this program only; start the job again, reset the GPU soon"},
    {95, "a memory error hit the whole GPU; reset it before anything runs there", true},
    {119, "the GPU's system processor does not answer; reset the GPU or restart the node", true},
    {120, "the GPU's system processor failed; reset the GPU or restart the node", true},
};

bool says(const Failure& failure, std::string_view words) {
  if (failure.evidence.exception && failure.evidence.exception->message.find(words) != std::string::npos) {
    return true;
  }
  return std::any_of(failure.last_stderr.begin(), failure.last_stderr.end(),
                     [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

bool has_hardware_xid(const Failure& failure) {
  return !hardware_xids(failure).empty();
}

}  // namespace

bool is_crash(const Failure& failure) {
  if (failure.kind != Failure::Kind::kSignaled) return false;
  const int signal = failure.signal;
  // A SIGKILL without that evidence may be the administrator's, a scheduler's or our own.
  if (signal == SIGKILL) return !failure.evidence.oom.empty();
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE || signal == SIGSYS;
}

Blame blame_of(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::kNode: return Blame::kMachine;
    case Failure::Kind::kMisbehaved:
    case Failure::Kind::kExec:
    case Failure::Kind::kHung: return Blame::kOwn;
    case Failure::Kind::kExited:
      if (noticed_a_loss(failure)) return Blame::kEcho;
      if (has_hardware_xid(failure)) return Blame::kMachine;
      if (!failure.evidence.oom.empty()) return Blame::kCrash;  // a child of it
      return has_own_exception(failure) ? Blame::kOwn : Blame::kExitCode;
    case Failure::Kind::kSignaled: break;
  }
  switch (failure.signal) {
    case SIGTERM:
    case SIGINT:
    case SIGHUP: return has_own_exception(failure) ? Blame::kOwn : Blame::kTerminated;
    // It wrote to a peer that has gone. Python ignores SIGPIPE, so only native programs die of it.
    case SIGPIPE: return Blame::kEcho;
    case SIGABRT:
      if (noticed_a_loss(failure)) return Blame::kEcho;
      if (has_hardware_xid(failure)) return Blame::kMachine;
      return has_own_exception(failure) || has_abort_reason(failure) ? Blame::kOwn : Blame::kAbort;
    default: return has_hardware_xid(failure) ? Blame::kMachine : Blame::kCrash;
  }
}

std::optional<std::size_t> pick_root_cause(const std::vector<Failure>& failures) {
  FailureList before_stop;
  for (const Failure& failure : failures)
    if (!began_after_stop(failure)) before_stop.push_back(&failure);
  const std::optional<Cause> first = best_of(earliest_of(before_stop));
  if (!first) return std::nullopt;
  const auto index = [&failures](const Cause& cause) {
    return static_cast<std::size_t>(cause.failure - failures.data());
  };
  // It has a reason of its own. The rules below are for those that only noticed something.
  if (first->blame <= Blame::kTerminated) return index(*first);
  std::optional<Cause> source;
  FailureList late;  // their ends began after our signal
  EndCounts ends;
  for (const Failure& failure : failures)
    if (began_after_stop(failure)) ++ends[{failure.status, failure.signal}];
  for (const Failure& failure : failures) {
    if (!failure.of_worker() || (first->blame == Blame::kExitCode && !may_be_death(failure))) continue;
    if (began_after_stop(failure) && !failed_despite_stop(failure, ends, *first)) continue;
    const Cause next{&failure, blame_of(failure)};
    if (!explains(next, *first)) continue;
    if (began_after_stop(failure))
      late.push_back(&failure);
    else
      choose(source, next);
  }
  // A death that had begun before our signal explains more than one that came after it.
  if (!source) source = best_of(earliest_of(late));
  return index(source.value_or(*first));
}

std::string signal_meaning(const Failure& failure) {
  switch (failure.signal) {
    case SIGSEGV:
      return "it used memory that is not its own: a bug in native code (an extension, a library), or a stack "
             "overflow";
    case SIGBUS:
      return "its mapped memory has no backing: usually /dev/shm or a disk is full, or a mapped file was "
             "truncated";
    case SIGFPE: return "a division by zero or the like in native code";
    case SIGILL: return "an instruction that this CPU does not have: the program was built for another one";
    case SIGABRT: return "it called abort: a failed check in native code, which its stderr usually names";
    case SIGKILL:
      if (!failure.evidence.oom.empty()) return {};
      return "not sent by ddplaunch, but by another process or by the OOM killer; check dmesg on that host";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "not sent by ddplaunch, but by another process on that host, such as its scheduler or a "
             "shutdown";
    case SIGPIPE: return "it wrote to a pipe or socket whose reader is closed";
    case SIGXCPU: return "it used up its limit of CPU time (ulimit -t)";
    case SIGXFSZ: return "a file that it wrote reached the limit (ulimit -f)";
    case SIGSYS: return "it made a forbidden system call, for example in a sandbox";
    default: return {};
  }
}

int xid_number(std::string_view line) {
  const std::size_t xid = line.find("Xid");
  // "NVRM: Xid (PCI:0000:65:00): 79, pid=…": the number follows the address in brackets.
  const std::size_t colon = xid == std::string::npos ? xid : line.find("): ", xid);
  if (colon == std::string::npos) return 0;
  return leading_number<int>(line.substr(colon + 3)).value_or(0);
}

std::vector<int> hardware_xids(const Failure& failure) {
  std::vector<int> numbers;
  for (const std::string_view line : split_lines(failure.evidence.xid)) {
    const int number = xid_number(line);
    if (std::ranges::any_of(kXids,
                            [number](const XidRow& row) { return row.number == number && row.hardware; }))
      numbers.push_back(number);
  }
  return numbers;
}

std::string xid_meaning(std::string_view line) {
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
  // pdb at the end of its input; input() and Python's code.interact() there.
  if (says(root, "bdb.BdbQuit") || says(root, "EOF when reading a line")) {
    return "the worker reads standard input, as breakpoint() does, and has none; --stdin 0 gives rank 0, "
           "and no\nother, the terminal or input of ddplaunch";
  }
  return {};
}

}  // namespace ddp::launcher
