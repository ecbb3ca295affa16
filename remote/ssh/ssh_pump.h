#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

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
    bool link_read = false;
    bool link_write = false;
    bool errors_write = false;
  };

  /// Borrows session and channel. Create it before the command is executed, because its end may be reported
  /// at once.
  SshPump(ssh_session_struct* session, ssh_channel_struct* channel);
  ~SshPump();
  SshPump(const SshPump&) = delete;
  SshPump& operator=(const SshPump&) = delete;

  /// Borrows the non-blocking local sockets. After this call only the pump makes libssh read.
  void attach(int link, int errors);

  State move();
  void link_readable() { link_ready_ = true; }
  Interest interest() const;

  bool heard() const { return heard_; }                  ///< the command has written something
  bool ended() const { return eof_; }                    ///< end of file has come
  std::optional<int> status() const { return status_; }  ///< exit status, or 128+n

  // Called by libssh while it reads packets.
  void on_data(bool is_errors) {
    (is_errors ? err_ : out_).held = true;
    heard_ = true;
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
  int link_ = -1;
  int errors_ = -1;
  PumpStream out_;
  PumpStream err_;
  PumpStream in_;
  bool link_ready_ = true;
  bool in_ended_ = false;  ///< the owner has written its last byte
  bool eof_sent_ = false;
  bool heard_ = false;
  bool eof_ = false;
  std::optional<int> status_;
};

}  // namespace ddp::remote
