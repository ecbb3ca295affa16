#include "launcher/hang/wait_state.h"

#include <arpa/inet.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.h"

namespace ddp::launcher {
namespace {

struct SystemCall {
  long number;
  const char* name;
  bool descriptor = false;  ///< its first argument is a descriptor
};

/// The system calls in which programs hang. Their numbers differ between machines. For a call that a machine
/// lacks, the name of the kernel function is used.
constexpr SystemCall kCalls[] = {
#ifdef SYS_poll
    {SYS_poll, "poll"},
#endif
#ifdef SYS_select
    {SYS_select, "select"},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait"},
#endif
#ifdef SYS_accept
    {SYS_accept, "accept", true},
#endif
#ifdef SYS_pause
    {SYS_pause, "pause"},
#endif
    {SYS_ppoll, "poll"},
    {SYS_pselect6, "select"},
    {SYS_epoll_pwait, "epoll_wait"},
    {SYS_accept4, "accept", true},
    {SYS_futex, "futex"},
    {SYS_nanosleep, "nanosleep"},
    {SYS_clock_nanosleep, "nanosleep"},
    {SYS_wait4, "wait for a child"},
    {SYS_waitid, "wait for a child"},
    {SYS_rt_sigtimedwait, "sigwait"},
    {SYS_rt_sigsuspend, "sigsuspend"},
    {SYS_read, "read", true},
    {SYS_readv, "read", true},
    {SYS_pread64, "read", true},
    {SYS_recvfrom, "recv", true},
    {SYS_recvmsg, "recv", true},
    {SYS_write, "write", true},
    {SYS_writev, "write", true},
    {SYS_sendto, "send", true},
    {SYS_sendmsg, "send", true},
    {SYS_connect, "connect", true},
    {SYS_ioctl, "ioctl", true},
    {SYS_flock, "flock", true},
    {SYS_fcntl, "fcntl", true},
    {SYS_fsync, "fsync", true},
    {SYS_fdatasync, "fdatasync", true},
    {SYS_openat, "open"},
    {SYS_semtimedop, "semop"},
    {SYS_msgrcv, "msgrcv"},
};

struct KernelName {
  const char* prefix;
  const char* name;
};
/// Used if only the kernel function is known. Longer prefixes come first.
constexpr KernelName kFunctions[] = {
    {"poll_schedule_timeout", "poll"},
    {"do_sys_poll", "poll"},
    {"do_select", "select"},
    {"do_epoll_wait", "epoll_wait"},
    {"ep_poll", "epoll_wait"},
    {"futex_", "futex"},
    {"hrtimer_nanosleep", "nanosleep"},
    {"do_nanosleep", "nanosleep"},
    {"do_wait", "wait for a child"},
    {"kernel_wait", "wait for a child"},
    {"pipe_read", "read"},
    {"anon_pipe_read", "read"},
    {"pipe_write", "write"},
    {"anon_pipe_write", "write"},
    {"inet_csk_accept", "accept"},
    {"sk_wait_data", "recv"},
    {"wait_woken", "recv"},
    {"unix_stream_read", "recv"},
    {"__skb_wait_for_more", "recv"},
    {"sk_stream_wait_memory", "send"},
    {"sk_stream_wait_connect", "connect"},
    {"inet_wait_for_connect", "connect"},
    {"do_sigtimedwait", "sigwait"},
    {"sigsuspend", "sigsuspend"},
    {"flock_", "flock"},
    {"locks_lock", "flock"},
};

const SystemCall* find_call(const ThreadSnapshot& snapshot) {
  if (!snapshot.call) return nullptr;
  for (const SystemCall& call : kCalls) {
    if (call.number == *snapshot.call) return &call;
  }
  return nullptr;
}

std::string kernel_name(const std::string& wchan) {
  // An interrupted call that continues (restart_syscall) may show only the kernel's entry function.
  if (wchan.empty() || wchan == "0" || wchan.starts_with("do_syscall") || wchan.starts_with("el0_svc"))
    return {};
  for (const KernelName& known : kFunctions) {
    if (wchan.starts_with(known.prefix)) return known.name;
  }
  return wchan.substr(0, wchan.find('.'));  // drop suffixes such as .constprop.0
}

/// Converts "0100007F:1F90": 32-bit words in this machine's byte order, and the port in plain hexadecimal.
std::optional<std::string> address_text(std::string_view text) {
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto port = parse_number<std::uint16_t>(text.substr(colon + 1), 16);
  if (!port) return std::nullopt;
  const std::string_view digits = text.substr(0, colon);
  if (digits.size() != 8 && digits.size() != 32) return std::nullopt;
  std::array<unsigned char, 16> bytes{};
  for (std::size_t word = 0; word < digits.size() / 8; ++word) {
    const auto value = parse_number<std::uint32_t>(digits.substr(word * 8, 8), 16);
    if (!value) return std::nullopt;
    std::memcpy(bytes.data() + word * 4, &*value, 4);
  }
  char name[INET6_ADDRSTRLEN] = {};
  constexpr std::array<unsigned char, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (digits.size() == 8) {
    inet_ntop(AF_INET, bytes.data(), name, sizeof name);
  } else if (std::equal(kMapped.begin(), kMapped.end(), bytes.begin())) {
    inet_ntop(AF_INET, bytes.data() + 12, name, sizeof name);
  } else {
    inet_ntop(AF_INET6, bytes.data(), name, sizeof name);
  }
  return format_endpoint(name, *port);
}

}  // namespace

void parse_syscall(std::string_view text, ThreadSnapshot& snapshot) {
  const auto words = split_at_blanks(text);
  // proc(5): "running" has one word, and -1 means that the process is blocked, but not in a system call.
  const long number = words.size() < 2 ? -1 : parse_number<long>(words[0]).value_or(-1);
  if (number < 0) return;
  snapshot.call = number;
  if (words[1].starts_with("0x"))
    snapshot.argument = parse_number<std::uint64_t>(words[1].substr(2), 16).value_or(0);
}

bool waits_for_descriptor(const ThreadSnapshot& snapshot) {
  const SystemCall* call = find_call(snapshot);
  return call != nullptr && call->descriptor;
}

std::string wait_text(const ThreadSnapshot& snapshot, const std::string& target) {
  switch (snapshot.state) {
    case 'R': return "running";
    case 'T': return kStoppedText;
    case 't': return "held by a debugger";
    case 'Z':
    case 'X': return "ended";
    default: break;
  }
  const SystemCall* call = find_call(snapshot);
  std::string where = call != nullptr ? call->name : kernel_name(snapshot.wchan);
  if (call != nullptr && call->descriptor && !target.empty()) where += ", " + target;
  if (snapshot.state != 'D') return where.empty() ? "sleeping" : "sleeping in " + where;
  // State D cannot even be killed: name the kernel function, since users search for it.
  if (!snapshot.wchan.empty() && snapshot.wchan != "0") {
    const std::string function = snapshot.wchan.substr(0, snapshot.wchan.find('.'));
    where = where.empty() || where == function ? function : function + " (" + where + ")";
  }
  return "stuck in the kernel" + (where.empty() ? "" : " in " + where) + ", state D";
}

void parse_tcp_table(std::string_view text, std::map<std::uint64_t, TcpSocket>& sockets) {
  for (const std::string_view line : split_lines(text)) {
    const auto words = split_at_blanks(line);
    // Columns: sl local rem st queues timer retransmits uid timeout inode …
    if (words.size() < 10) continue;
    const auto local = address_text(words[1]), remote = address_text(words[2]);
    const auto state = parse_number<int>(words[3], 16);
    const auto uid = parse_number<std::uint32_t>(words[7]);
    const auto inode = parse_number<std::uint64_t>(words[9]).value_or(0);
    if (local && remote && state && uid && inode != 0) sockets[inode] = {*state, *local, *remote, *uid};
  }
}

std::optional<std::uint64_t> socket_inode(std::string_view link) {
  if (!link.starts_with("socket:[") || !link.ends_with(']')) return std::nullopt;
  return parse_number<std::uint64_t>(link.substr(8, link.size() - 9));
}

std::string descriptor_text(std::string_view link, const std::map<std::uint64_t, TcpSocket>& sockets) {
  if (link.starts_with("pipe:")) return "a pipe";
  if (const auto inode = socket_inode(link)) {
    const auto known = sockets.find(*inode);
    if (known == sockets.end()) return "a socket";
    return known->second.state == kTcpListening ? known->second.local : known->second.remote;
  }
  return std::string(link);
}

}  // namespace ddp::launcher
