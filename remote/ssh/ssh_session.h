#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/unique_fd.h"
#include "remote/ssh/ssh_handshake.h"
#include "remote/transports/transport.h"

struct ssh_session_struct;
struct ssh_channel_struct;
struct ssh_event_struct;

namespace ddp::remote {

/// Moves bytes between an SSH channel and two local sockets, without waiting. It runs on the session's
/// thread. The owner waits for the events of interest(), and for the session's socket, and calls move()
/// again.
///
/// The pump reads packets even if a stream's reader is slow, up to the channel's window, so that one unread
/// stream does not stop the other. The end is the close of the channel or of the connection. End of file and
/// the exit status may come before it, in any order, or never.
class SshPump {
 public:
  enum class State {
    kRunning,
    kMore,    ///< call again soon; other sessions may go first
    kClosed,  ///< the channel was closed and everything was delivered
    kBroken,  ///< the connection has gone; all received bytes were delivered
  };

  struct Interest {
    bool packets = false;  ///< the session's socket
    bool stdio_read = false;
    bool stdio_write = false;
    bool errors_write = false;
  };

  /// Borrows session and channel. Create it before the command is executed, because its end may be reported
  /// at once.
  SshPump(ssh_session_struct* session, ssh_channel_struct* channel);
  ~SshPump();
  SshPump(const SshPump&) = delete;
  SshPump& operator=(const SshPump&) = delete;

  /// Borrows the non-blocking local sockets. After this call only the pump makes libssh read.
  void attach(int stdio, int errors);

  State move();
  void stdio_readable() { stdio_ready_ = true; }
  Interest interest() const;

  bool has_output() const { return has_output_; }        ///< the command has written something
  bool ended() const { return eof_; }                    ///< end of file has come
  std::optional<int> status() const { return status_; }  ///< exit status, or 128+n

  // Called by libssh while it reads packets.
  void on_data(bool is_errors) {
    (is_errors ? err_ : out_).held = true;
    has_output_ = true;
  }
  void on_status(int status) { status_ = status; }
  void on_signal(const char* name);

 private:
  struct PumpStream {
    std::array<char, 64 * 1024> bytes;
    std::size_t begin = 0;
    std::size_t end = 0;
    bool blocked = false;  ///< the receiver takes no more for now
    bool gone = false;     ///< the receiver takes nothing any more: bytes are discarded
    bool held = false;     ///< libssh has more bytes
    bool empty() const { return begin == end; }
  };
  struct Callbacks;

  void read_packets();
  bool from_channel(PumpStream& stream, int fd, bool is_errors);
  static bool to_local(PumpStream& stream, int fd);
  bool from_local();
  bool to_channel();
  bool all_delivered() const { return !out_.held && !err_.held && out_.empty() && err_.empty(); }

  ssh_session_struct* session_;
  ssh_channel_struct* channel_;
  ssh_event_struct* packets_ = nullptr;  ///< libssh's own poll, the only way to make it read at any time
  std::unique_ptr<Callbacks> callbacks_;
  int stdio_ = -1;
  int errors_ = -1;
  PumpStream out_;
  PumpStream err_;
  PumpStream in_;
  bool stdio_ready_ = true;
  bool in_ended_ = false;  ///< the owner has written its last byte
  bool eof_sent_ = false;
  bool has_output_ = false;
  bool eof_ = false;
  std::optional<int> status_;
};

/// The caller's ends of a command's streams.
struct SshOpened {
  UniqueFd stdio;
  UniqueFd errors;
  std::string address;  ///< numeric, without port
  std::uint16_t port = 0;
};

struct SshFailure {
  Error error;
  bool closed_early = false;    ///< the server closed before its banner: worth another try
  std::string needs_openssh{};  ///< why the ssh program may succeed: "KexAlgorithms in the SSH configuration"
  bool not_connected = false;   ///< no address accepted a connection
  bool offers_gssapi = false;   ///< the server took no key, but accepts a Kerberos ticket
};

/// One SSH connection that runs one command: connects, logs in, executes, moves bytes, ends. It is a state
/// machine driven by readiness and confined to the thread of `io`, and it never blocks. The exception is
/// signing with an ssh-agent, which libssh can only do blocking. Meanwhile the session is lent to the thread
/// of `agent_io`, and the session's deadline ends that wait.
///
/// Events are called on the thread of `io`. opened or failed is called once, then (after opened) ended once.
/// No event follows close().
class SshSession : public std::enable_shared_from_this<SshSession> {
 public:
  struct SshSessionEvents {
    std::function<void(const char*)> waiting;  ///< with each new step: "SSH greeting"
    std::function<void()> logged_in;
    std::function<void(SshOpened)> opened;
    std::function<void(SshFailure)> failed;
    std::function<void(ChannelEnd)> ended;
  };

  SshSession(asio::io_context& io, asio::io_context& agent_io, SshTarget target, SshSessionEvents events);
  ~SshSession();
  SshSession(const SshSession&) = delete;
  SshSession& operator=(const SshSession&) = delete;

  /// The index of its thread, for its owner only.
  void set_home(std::size_t home) { home_ = home; }
  std::size_t home() const { return home_; }

  // Only on the thread of `io`:
  void start();
  /// Ends the connection at once: the remote command sees end of file. `hang_up` first sends SIGHUP and
  /// SIGTERM. Servers that support this pass them to all processes of the command (OpenSSH does, but not for
  /// root).
  enum class HangUp : bool { kNo, kYes };
  void close(HangUp hang_up = HangUp::kNo);

 private:
  enum class Step { kConnect, kGreet, kLogin, kAgent, kOpen, kExecute, kRun, kDone };
  enum class StepResult { kNext, kAgain, kStop };  ///< next step; wait; the session is done or lent

  static UniqueFd duplicate(int fd);
  void connect_next();
  void await_connected();
  void on_connected(const error_code& error);
  void on_deadline();
  void begin_ssh();
  void on_connect_timeout();

  void advance();
  StepResult greet();
  StepResult login();
  StepResult lend_to_agent();
  StepResult second_factor();
  StepResult refused();
  StepResult open_channel();
  StepResult execute();
  StepResult hand_over();
  StepResult run();

  void ask_agent();           // on the ssh-agent's thread
  void on_agent(int answer);  // back on the thread of `io`

  void wait();
  void report_step();
  void wait_for_tcp();
  void wait_for_local();
  void on_ready(const error_code& error);

  StepResult stop_with(Error error);
  StepResult stop_with(SshFailure failure);
  StepResult stop_at_end(ChannelEnd end);
  void release();
  Error libssh_error(const std::string& what) const;
  Error login_broken() const;
  static void watch_peer(int fd);
  static void leave_to_heartbeats(int fd);
  std::string late_text(const std::string& limit) const;
  const Endpoint& endpoint() const { return target_.endpoints[endpoint_]; }

  std::size_t home_ = 0;
  asio::io_context& io_;
  asio::io_context& agent_io_;
  SshTarget target_;
  SshSessionEvents events_;
  Step step_ = Step::kConnect;
  const char* reported_ = nullptr;  ///< last argument of the event `waiting`

  std::size_t endpoint_ = 0;
  asio::posix::stream_descriptor tcp_;
  bool tcp_reading_ = false;
  bool tcp_writing_ = false;
  asio::steady_timer deadline_;
  asio::steady_timer attempt_;  ///< limit of one address while others are left; also ConnectTimeout

  ssh_session_struct* session_ = nullptr;
  ssh_channel_struct* channel_ = nullptr;
  bool heard_server_ = false;
  std::size_t key_ = 0;
  int offered_ = 0;
  bool agent_asked_ = false;
  std::string agent_problem_;  ///< why the ssh-agent could not be used
  bool none_asked_ = false;
  bool cut_off_ = false;   ///< failed or closed while lent
  UniqueFd agent_socket_;  ///< a second descriptor of the connection to the ssh-agent, to cut it off
  std::unique_ptr<asio::posix::stream_descriptor> agent_wait_;

  std::unique_ptr<SshPump> pump_;
  asio::posix::stream_descriptor stdio_;
  asio::posix::stream_descriptor errors_;
  bool stdio_reading_ = false;
  bool stdio_writing_ = false;
  bool errors_writing_ = false;
};

}  // namespace ddp::remote
