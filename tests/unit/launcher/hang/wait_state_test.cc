#include "launcher/hang/wait_state.h"

#include <sys/syscall.h>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

ThreadSnapshot snapshot(char state, const std::string& wchan, const std::string& call = {}) {
  ThreadSnapshot snapshot;
  snapshot.state = state;
  snapshot.wchan = wchan;
  parse_syscall(call, snapshot);
  return snapshot;
}
std::string in_call(long number, const std::string& argument) {
  return std::to_string(number) + " " + argument + " 0x7ffc 0x1 0x0 0x0 0x0 0x7ffeb 0x7f85e\n";
}

TEST_CASE("the state of a thread is described in words") {
  CHECK(wait_text(snapshot('R', "0", "running\n"), "") == "running");
  CHECK(wait_text(snapshot('S', "futex_do_wait", in_call(SYS_futex, "0x7fce")), "") == "sleeping in futex");
  CHECK(wait_text(snapshot('S', "hrtimer_nanosleep", in_call(SYS_clock_nanosleep, "0x1")), "") ==
        "sleeping in nanosleep");
  CHECK(wait_text(snapshot('S', "wait_woken", in_call(SYS_recvfrom, "0x5")), "10.0.0.3:29500") ==
        "sleeping in recv, 10.0.0.3:29500");
  CHECK(wait_text(snapshot('T', "do_signal_stop"), "") == "stopped by a signal");
  CHECK(wait_text(snapshot('t', "ptrace_stop"), "") == "held by a debugger");
  CHECK(wait_text(snapshot('Z', "0"), "") == "ended");
}

TEST_CASE("the descriptor of a wait is known for the calls whose first argument is one") {
  const ThreadSnapshot none = snapshot('S', "unknown_function");
  for (const long number :
       {SYS_accept4, SYS_read, SYS_readv, SYS_pread64, SYS_recvfrom, SYS_recvmsg, SYS_write, SYS_writev,
        SYS_sendto, SYS_sendmsg, SYS_connect, SYS_ioctl, SYS_flock, SYS_fcntl, SYS_fsync, SYS_fdatasync}) {
    INFO(number);
    const ThreadSnapshot thread = snapshot('S', "unknown_function", in_call(number, "0x5"));
    CHECK(waits_for_descriptor(thread));
    CHECK(wait_text(thread, "a pipe") == wait_text(thread, "") + ", a pipe");
    CHECK(wait_text(thread, "") != wait_text(none, ""));  // the call has a name
  }
  for (const long number :
       {SYS_ppoll, SYS_pselect6, SYS_epoll_pwait, SYS_futex, SYS_nanosleep, SYS_clock_nanosleep, SYS_wait4,
        SYS_waitid, SYS_rt_sigtimedwait, SYS_rt_sigsuspend, SYS_openat, SYS_semtimedop, SYS_msgrcv}) {
    INFO(number);
    const ThreadSnapshot thread = snapshot('S', "unknown_function", in_call(number, "0x5"));
    CHECK_FALSE(waits_for_descriptor(thread));
    CHECK(wait_text(thread, "a pipe") == wait_text(thread, ""));
    CHECK(wait_text(thread, "") != wait_text(none, ""));
  }
}

TEST_CASE("the kernel's function is named when the system call is unknown") {
  CHECK(wait_text(snapshot('S', "poll_schedule_timeout.constprop.0"), "") == "sleeping in poll");
  CHECK(wait_text(snapshot('S', "do_epoll_wait"), "") == "sleeping in epoll_wait");
  CHECK(wait_text(snapshot('S', "some_new_function.isra.0"), "") == "sleeping in some_new_function");
  CHECK(wait_text(snapshot('S', "0"), "") == "sleeping");
  CHECK(wait_text(snapshot('S', ""), "") == "sleeping");
  CHECK(wait_text(snapshot('S', "do_syscall_64", in_call(SYS_restart_syscall, "0x0")), "") == "sleeping");
  // After a SIGSTOP and SIGCONT the number of the call means only that.
  CHECK(wait_text(snapshot('S', "do_wait", in_call(100'000, "0x0")), "") == "sleeping in wait for a child");
}

TEST_CASE("an unkillable wait is named by the kernel's function") {
  CHECK(wait_text(snapshot('D', "nfs_wait_bit_killable"), "") ==
        "stuck in the kernel in nfs_wait_bit_killable, state D");
  CHECK(wait_text(snapshot('D', "folio_wait_bit.part.0", in_call(SYS_read, "0x3")), "/data/shard_3") ==
        "stuck in the kernel in folio_wait_bit (read, /data/shard_3), state D");
  CHECK(wait_text(snapshot('D', "0"), "") == "stuck in the kernel, state D");
}

TEST_CASE("malformed contents of /proc/PID/syscall are ignored") {
  for (const char* text : {"", "running\n", "-1 0x7ffc 0x7f85\n", "12", "x 0x1\n"})
    CHECK_FALSE(snapshot('S', "", text).call);
  CHECK_FALSE(waits_for_descriptor(snapshot('S', "", "")));
  CHECK(waits_for_descriptor(snapshot('S', "", in_call(SYS_read, "0x1f"))));
  CHECK(snapshot('S', "", in_call(SYS_read, "0x1f")).argument == 31);
  CHECK(snapshot('S', "", std::to_string(SYS_read) + " 0x1f").argument == 31);  // cut off behind it
  CHECK_FALSE(waits_for_descriptor(snapshot('S', "", in_call(SYS_futex, "0x1f"))));
#ifdef SYS_accept
  CHECK(waits_for_descriptor(snapshot('S', "", in_call(SYS_accept, "0x3"))));
#endif
}

TEST_CASE("sockets are named by their peer") {
  std::map<std::uint64_t, TcpSocket> sockets;
  parse_tcp_table(
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
      "   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 100 1 0\n"
      "   1: 0100007F:B0E2 0200007F:733C 01 00000000:00000000 00:00000000 00000000     0        0 101 1 0\n"
      "   2: 0100007F:B0E4 0300000A:733C 02 00000001:00000000 01:00000064 00000002     0        0 102 2 0\n"
      "   3: 0100007F:B0E4 0300000A:733C 06 00000000:00000000 03:00000064 00000000     0        0 0 3 0\n"
      "torn",
      sockets);
  parse_tcp_table(
      "  sl  local_address                         remote_address                        st …\n"
      "   0: 00000000000000000000000001000000:0016 B80D0120000000000000000001000000:0050 01 "
      "00000000:00000000 "
      "00:00000000 00000000     0        0 103 1 0\n"
      "   1: 0000000000000000FFFF00000100007F:0016 0000000000000000FFFF00000500007F:0050 01 "
      "00000000:00000000 "
      "00:00000000 00000000     0        0 104 1 0\n",
      sockets);
  REQUIRE(sockets.size() == 5);
  CHECK(descriptor_text("socket:[100]", sockets) == "127.0.0.1:29500");  // listening: its own address
  CHECK(descriptor_text("socket:[101]", sockets) == "127.0.0.2:29500");
  CHECK(sockets[100].uid == 1001);
  CHECK(sockets[102].state == kTcpConnecting);
  CHECK(descriptor_text("socket:[102]", sockets) == "10.0.0.3:29500");
  CHECK(descriptor_text("socket:[103]", sockets) == "[2001:db8::1]:80");
  CHECK(descriptor_text("socket:[104]", sockets) == "127.0.0.5:80");
  CHECK(descriptor_text("socket:[7]", sockets) == "a socket");
  CHECK(descriptor_text("pipe:[7]", sockets) == "a pipe");
  CHECK(descriptor_text("/dev/nvidia0", sockets) == "/dev/nvidia0");
}

TEST_CASE("malformed rows of the socket table are ignored") {
  std::map<std::uint64_t, TcpSocket> sockets;
  parse_tcp_table(
      "   0: 0100007F:733C 0200007F      01 00000000:00000000 00:00000000 00000000     0        0 100 1 0\n"
      "   1: 0100007F      0200007F:733C 01 00000000:00000000 00:00000000 00000000     0        0 101 1 0\n"
      "   2: 0100007F      0200007F      01 00000000:00000000 00:00000000 00000000     0        0 102 1 0\n"
      "   3: 0100007F:733C 0200007F:733C 0x 00000000:00000000 00:00000000 00000000     0        0 103 1 0\n"
      "   4: 0100007F:733C 0200007F:733C 01 00000000:00000000 00:00000000 00000000    0x        0 104 1 0\n"
      "   5: 0100007F:733C 0200007F:733C 01 00000000:00000000 00:00000000 00000000     0        0 0x9 1 0\n",
      sockets);
  CHECK(sockets.empty());
}

}  // namespace
}  // namespace ddp::launcher
