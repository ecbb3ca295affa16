#include "launcher/report/failure_hints.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <string_view>
#include <system_error>

namespace ddp::launcher {
namespace {

/// From NVIDIA's list of Xid errors (docs.nvidia.com/deploy/xid-errors); those that a training job meets.
struct XidRow {
  int number;
  const char* meaning;
};
constexpr XidRow kXids[] = {
    {13, "a kernel of the program made a wrong memory access on the GPU, as a rule a bug of the program"},
    {31, "the program used a wrong GPU address (MMU fault), as a rule a bug of the program"},
    {32, "the GPU got a broken command stream; driver, PCIe or the program"},
    {43, "the GPU stopped the program's work, as a rule a bug of the program"},
    {45, "the program's work was removed from the GPU because the program ended, or after another error"},
    {48, "the GPU's memory has an error that cannot be corrected; take the node out of use"},
    {61, "a fault of the GPU's firmware; reset the GPU"},
    {62, "a fault of the GPU's firmware; reset the GPU"},
    {63, "the GPU replaced bad memory; it takes effect at the next reset"},
    {64, "the GPU could not replace bad memory; take the node out of use"},
    {74, "an NVLink connection fails; look at the GPU and its links (nvidia-smi nvlink -e)"},
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

std::string signal_meaning(const Failure& failure) {
  switch (failure.signal) {
    case SIGSEGV:
      return "it used memory that is not its own: a bug in native code (an extension, a library), or a stack "
             "overflow";
    case SIGBUS:
      return "its memory had nothing behind it: as a rule /dev/shm or a disk is full, or a mapped file was "
             "cut short";
    case SIGFPE:
      return "a division by zero or the like in native code";
    case SIGILL:
      return "an instruction that this CPU does not have: the program was built for another one";
    case SIGABRT:
      return "it gave up by itself (abort): a failed check in native code, which its stderr names as a rule";
    case SIGKILL:
      if (!failure.evidence.oom.empty()) return {};
      return "not by ddplaunch. Somebody did it on purpose, or the memory killer did: look there with dmesg";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "not by ddplaunch. Somebody did it on that host, such as its scheduler or a shutdown";
    case SIGPIPE:
      return "it wrote to a pipe or socket that nobody reads any more";
    case SIGXCPU:
      return "it used up its limit of CPU time (ulimit -t)";
    case SIGXFSZ:
      return "a file that it wrote reached the limit (ulimit -f)";
    case SIGSYS:
      return "it made a system call that is forbidden to it, as in a sandbox";
    default:
      return {};
  }
}

std::string xid_meaning(const std::string& line) {
  const std::size_t xid = line.find("Xid");
  const std::size_t colon = xid == std::string::npos ? xid : line.find("): ", xid);
  if (colon == std::string::npos) return {};
  int number = 0;
  std::from_chars(line.data() + colon + 3, line.data() + line.size(), number);
  for (const XidRow& row : kXids) {
    if (row.number == number) return row.meaning;
  }
  return {};
}

std::string hint_for(const Failure& root) {
  if (says(root, "Address already in use") || says(root, "EADDRINUSE")) {
    return "a port was taken. If the script itself serves MASTER_PORT (TCPStore with is_master, tcp://), "
           "ddplaunch\nalready does; run it with --store worker";
  }
  const bool timeout =
      says(root, "The client socket has timed out") || says(root, "seconds waiting for clients");
  if (timeout) {
    return "a script that makes a store of its own (init_process_group(\"tcp://…\"), TCPStore) on another "
           "port\nthan MASTER_PORT gets clients without a server; run it with --store worker";
  }
  if (says(root, "insufficient shared memory") || says(root, "No space left on device: '/dev/shm")) {
    return "/dev/shm is full; give the container more of it (docker run --shm-size), or use fewer "
           "data-loader workers";
  }
  return {};
}

}  // namespace ddp::launcher
