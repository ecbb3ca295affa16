#include "remote/ssh/ssh_session.h"

#include <libssh/callbacks.h>
#include <libssh/libssh.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <string_view>
#include <utility>

namespace ddp::remote {
namespace {

constexpr int kTurns = 8;          // before other sessions of the thread run
constexpr int kReadsPerTurn = 16;  // libssh takes 4 KiB from the socket at a time

int on_channel_data(ssh_session, ssh_channel, void*, std::uint32_t, int is_stderr, void* pump) {
  static_cast<SshPump*>(pump)->on_data(is_stderr != 0);
  return 0;  // bytes stay in libssh's buffer, so that its window makes the remote side wait
}

void on_exit_status(ssh_session, ssh_channel, int status, void* pump) {
  static_cast<SshPump*>(pump)->on_status(status);
}

void on_exit_signal(ssh_session, ssh_channel, const char* name, int, const char*, const char*, void* pump) {
  static_cast<SshPump*>(pump)->on_signal(name);
}

}  // namespace

struct SshPump::Callbacks {
  ssh_channel_callbacks_struct table{};
};

SshPump::SshPump(ssh_session_struct* session, ssh_channel_struct* channel)
    : session_(session), channel_(channel), callbacks_(std::make_unique<Callbacks>()) {
  ssh_channel_callbacks_struct& table = callbacks_->table;
  table.userdata = this;
  table.channel_data_function = on_channel_data;
  table.channel_exit_status_function = on_exit_status;
  table.channel_exit_signal_function = on_exit_signal;
  ssh_callbacks_init(&table);
  ssh_set_channel_callbacks(channel_, &table);
}

SshPump::~SshPump() {
  if (packets_ != nullptr) {
    ssh_event_remove_session(packets_, session_);
    ssh_event_free(packets_);
  }
  ssh_remove_channel_callbacks(channel_, &callbacks_->table);
}

void SshPump::attach(int stdio, int errors) {
  stdio_ = stdio;
  errors_ = errors;
  packets_ = ssh_event_new();
  if (packets_ != nullptr) ssh_event_add_session(packets_, session_);
}

void SshPump::on_signal(const char* name) {
  struct Row {
    std::string_view name;
    int number;
  };
  // The names are those of RFC 4254, 6.10.
  static constexpr Row kSignals[] = {
      {"ABRT", SIGABRT}, {"ALRM", SIGALRM}, {"FPE", SIGFPE},   {"HUP", SIGHUP},   {"ILL", SIGILL},
      {"INT", SIGINT},   {"KILL", SIGKILL}, {"PIPE", SIGPIPE}, {"QUIT", SIGQUIT}, {"SEGV", SIGSEGV},
      {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  // A signal that is not in the list. 255 is ssh's own code, which proves nothing about the workers.
  status_ = 255;
  for (const Row& row : kSignals) {
    if (row.name == name) status_ = 128 + row.number;
  }
}

void SshPump::read_packets() {
  // ssh_channel_poll does not work here: it reads nothing after end of file, and the close of the channel
  // comes later.
  for (int i = 0; i < kReadsPerTurn && !(out_.held && err_.held); ++i) {
    if (ssh_event_dopoll(packets_, 0) != SSH_OK) return;
  }
}

bool SshPump::to_local(PumpStream& stream, int fd) {
  bool moved = false;
  stream.blocked = false;
  while (!stream.empty()) {
    const ssize_t sent = stream.gone ? -1
                                     : ::send(fd, stream.bytes.data() + stream.begin,
                                              stream.end - stream.begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      stream.begin += static_cast<std::size_t>(sent);
      moved = true;
    } else if (!stream.gone && errno == EINTR) {
      continue;
    } else if (!stream.gone && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      stream.blocked = true;
      break;
    } else {
      // Its reader has closed. What still comes is thrown away, because an unread stream would fill the
      // channel's window and stop the other one.
      stream.gone = true;
      stream.begin = stream.end;
      moved = true;
    }
  }
  return moved;
}

bool SshPump::from_channel(PumpStream& stream, int fd, bool is_errors) {
  bool moved = to_local(stream, fd);
  while (stream.held && stream.empty()) {
    const int got = ssh_channel_read_nonblocking(
        channel_, stream.bytes.data(), static_cast<std::uint32_t>(stream.bytes.size()), is_errors ? 1 : 0);
    // The read gave nothing, the end, or an error. The state of channel and session shows which.
    stream.held = got == static_cast<int>(stream.bytes.size());
    if (got <= 0) break;
    stream.begin = 0;
    stream.end = static_cast<std::size_t>(got);
    moved = true;
    to_local(stream, fd);
  }
  return moved;
}

bool SshPump::from_local() {
  if (!in_.empty() || in_ended_ || !stdio_ready_) return false;
  const ssize_t got = ::recv(stdio_, in_.bytes.data(), in_.bytes.size(), MSG_DONTWAIT);
  if (got > 0) {
    in_.begin = 0;
    in_.end = static_cast<std::size_t>(got);
    return true;
  }
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    stdio_ready_ = false;
    return false;
  }
  in_ended_ = true;
  return true;
}

bool SshPump::to_channel() {
  bool moved = from_local();
  if (eof_sent_) {
    in_.begin = in_.end;
    return moved;
  }
  // While libssh holds unsent packets, more bytes would only grow its buffer.
  if (!in_.empty() && (ssh_get_poll_flags(session_) & SSH_WRITE_PENDING) == 0) {
    const int sent = ssh_channel_write(channel_, in_.bytes.data() + in_.begin,
                                       static_cast<std::uint32_t>(in_.end - in_.begin));
    if (sent == SSH_ERROR) {
      in_.begin = in_.end;  // the command takes no more input, but its output is still needed
      eof_sent_ = true;
      moved = true;
    } else if (sent > 0) {
      in_.begin += static_cast<std::size_t>(sent);
      moved = true;
    }
  }
  if (in_ended_ && in_.empty() && !eof_sent_) {
    eof_sent_ = true;
    ssh_channel_send_eof(channel_);
    moved = true;
  }
  return moved;
}

SshPump::State SshPump::move() {
  // Round by round while anything moves, since each direction may make room for the other.
  for (int turn = 0; turn < kTurns; ++turn) {
    read_packets();
    bool moved = from_channel(out_, stdio_, false);
    moved = from_channel(err_, errors_, true) || moved;
    moved = to_channel() || moved;
    const bool delivered = all_delivered();
    // Only when all bytes are delivered: the reader takes end of file for the end of the data.
    if (delivered && !eof_ && ssh_channel_is_eof(channel_) != 0) {
      eof_ = true;
      ::shutdown(stdio_, SHUT_WR);
      ::shutdown(errors_, SHUT_WR);
    }
    // Every channel counts as closed after the connection has ended, so check the connection first.
    if (delivered && ssh_is_connected(session_) == 0) return State::kBroken;
    if (delivered && ssh_channel_is_closed(channel_) != 0) return State::kClosed;
    if (!moved && !(out_.held && out_.empty()) && !(err_.held && err_.empty())) return State::kRunning;
  }
  return State::kMore;
}

SshPump::Interest SshPump::interest() const {
  Interest interest;
  // If both streams are held back, nothing is read from the connection. A broken connection then stays
  // readable forever.
  interest.packets = !(out_.held && err_.held) && ssh_is_connected(session_) != 0;
  interest.stdio_read = in_.empty() && !in_ended_ && !stdio_ready_;
  interest.stdio_write = out_.blocked;
  interest.errors_write = err_.blocked;
  return interest;
}

}  // namespace ddp::remote
