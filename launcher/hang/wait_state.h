#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// The kernel's data about a thread (proc(5)); unset or empty: hidden from us.
struct ThreadSnapshot {
  char state = '?';            ///< R, S, D, T, t, …
  std::string wchan;           ///< the kernel function it sleeps in; "0": none, or hidden
  std::optional<long> call;    ///< number of the system call it is in
  std::uint64_t argument = 0;  ///< the call's first argument: a descriptor, if the call takes one
};

/// Parses /proc/PID/syscall into `snapshot`: "running", "-1 SP PC", or number and arguments.
void parse_syscall(std::string_view text, ThreadSnapshot& snapshot);

/// Returns whether the thread's system call waits for the descriptor in `argument`.
bool waits_for_descriptor(const ThreadSnapshot& snapshot);

/// wait_text of a thread that SIGSTOP holds.
inline constexpr const char* kStoppedText = "stopped by a signal";

/// Describes in a few words what the thread does, equal for ranks that do the same: "running", "sleeping in
/// poll", "sleeping in recv, 10.0.0.3:29500", "stuck in the kernel in nfs_wait_bit_killable, state D",
/// "stopped by a signal". `target`: text of the descriptor, if known.
std::string wait_text(const ThreadSnapshot& snapshot, const std::string& target);

/// A TCP socket, from the table of its network namespace.
struct TcpSocket {
  int state = 0;  ///< 1 established, 2 SYN_SENT, 10 listening, … (include/net/tcp_states.h)
  std::string local;
  std::string remote;  ///< ADDRESS:PORT, IPv6 in brackets
  std::uint32_t uid = 0;
};
inline constexpr int kTcpEstablished = 1;
inline constexpr int kTcpConnecting = 2;
inline constexpr int kTcpListening = 10;

/// Adds the sockets of a /proc/PID/net/tcp or tcp6, by inode.
void parse_tcp_table(std::string_view text, std::map<std::uint64_t, TcpSocket>& sockets);

/// The text for a /proc/PID/fd link such as "socket:[123]": the peer's address, "a pipe", "/dev/nvidia0".
std::string descriptor_text(std::string_view link, const std::map<std::uint64_t, TcpSocket>& sockets);

/// Inode of "socket:[123]".
std::optional<std::uint64_t> socket_inode(std::string_view link);

}  // namespace ddp::launcher
