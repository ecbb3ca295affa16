#include "remote/ssh/ssh_session.h"

#include <fcntl.h>
#include <libssh/libssh.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/link_socket.h"
#include "base/readable.h"

namespace ddp::remote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDeadPeer = 30;  // seconds, until the agent's heartbeats begin

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

UniqueFd tcp_socket(const Endpoint& endpoint) {
  UniqueFd fd(::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return fd;
}

}  // namespace

UniqueFd SshSession::duplicate(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

SshSession::SshSession(asio::io_context& io, asio::io_context& agent_io, SshTarget target,
                       SshSessionEvents events)
    : io_(io),
      agent_io_(agent_io),
      target_(std::move(target)),
      events_(std::move(events)),
      tcp_(io),
      deadline_(io),
      attempt_(io),
      link_(io),
      errors_(io) {}

SshSession::~SshSession() {
  release();
}

// ---- connecting

/// Watches the connection until the agent's heartbeats do. The peer counts as dead after kDeadPeer without
/// any packet from its kernel.
void SshSession::watch_peer(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kDeadPeer * 1000);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
}

/// Leaves the connection to the agent's heartbeats, whose limits the user sets.
void SshSession::leave_to_heartbeats(int fd) {
  set_link_options(fd);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 7200);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 75);
}

void SshSession::start() {
  auto self = shared_from_this();
  if (target_.deadline != Clock::time_point::max()) {
    deadline_.expires_at(target_.deadline);
    deadline_.async_wait([self](const error_code& error) {
      if (!error) self->on_deadline();
    });
  }
  connect_next();
}

void SshSession::connect_next() {
  UniqueFd fd = tcp_socket(endpoint());
  if (!fd) {
    stop_with(system_error(errno, target_.label + ": socket"));
    return;
  }
  const auto* address = reinterpret_cast<const sockaddr*>(&endpoint().address);
  const bool failed = ::connect(fd.get(), address, endpoint().size) != 0 && errno != EINPROGRESS;
  const int why = errno;
  tcp_.assign(fd.release());
  auto self = shared_from_this();
  if (failed) {
    asio::post(io_, [self, why] { self->on_connected(error_code(why, boost::system::system_category())); });
    return;
  }
  const std::size_t left = target_.endpoints.size() - endpoint_;
  Clock::duration limit = Clock::duration::max();
  if (left > 1 && target_.deadline != Clock::time_point::max()) {
    limit = (target_.deadline - Clock::now()) / static_cast<long>(left);
  }
  if (target_.config.connect_timeout > 0) {
    limit = std::min<Clock::duration>(limit, std::chrono::seconds(target_.config.connect_timeout));
  }
  if (limit != Clock::duration::max()) {
    attempt_.expires_after(limit);
    attempt_.async_wait([self](const error_code& error) {
      if (!error && self->step_ == Step::kConnect) self->tcp_.cancel();
    });
  }
  await_connected();
}

void SshSession::await_connected() {
  tcp_.async_wait(asio::posix::stream_descriptor::wait_write,
                  [self = shared_from_this()](const error_code& error) {
                    if (self->step_ != Step::kConnect) return;
                    if (!error && !is_writable(self->tcp_.native_handle()))
                      return self->await_connected();  // base/readable.h
                    self->on_connected(error);
                  });
}

void SshSession::on_connected(const error_code& error) {
  if (step_ != Step::kConnect) return;
  attempt_.cancel();
  int why = error == asio::error::operation_aborted ? ETIMEDOUT : error.value();
  socklen_t size = sizeof why;
  if (!error) ::getsockopt(tcp_.native_handle(), SOL_SOCKET, SO_ERROR, &why, &size);
  if (why == 0) return begin_ssh();
  error_code ignored;
  tcp_.close(ignored);
  if (endpoint_ + 1 < target_.endpoints.size()) {
    ++endpoint_;
    return connect_next();
  }
  Error failed =
      system_error(why, target_.label + ": cannot connect to " + endpoint().text, ErrorCode::kUnreachable);
  failed.text += why == ECONNREFUSED ? "; check that sshd runs there, and on this port"
                                     : "; check that the host is up and reachable from here";
  SshFailure failure{std::move(failed), false, {}};
  failure.not_connected = true;
  stop_with(std::move(failure));
}

void SshSession::begin_ssh() {
  step_ = Step::kGreet;
  // Set before the first byte: each small packet of the handshake would otherwise wait for an acknowledgment.
  set_link_options(tcp_.native_handle());
  watch_peer(tcp_.native_handle());
  if (target_.config.connect_timeout > 0) {
    attempt_.expires_after(std::chrono::seconds(target_.config.connect_timeout));
    attempt_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->on_connect_timeout();
    });
  }
  session_ = ssh_new();
  // libssh closes its descriptor when the peer ends, at any time and without notice. The loop's registration
  // must not pass to the next owner of that number, so libssh and the loop have separate descriptors.
  UniqueFd own = duplicate(tcp_.native_handle());
  if (session_ == nullptr || !own) {
    stop_with(system_error(errno, target_.label + ": cannot create an SSH session"));
    return;
  }
  if (auto option = configure(session_, target_, own.release())) {
    stop_with(SshFailure{
        Error{ErrorCode::kUnreachable, target_.label + ": libssh supports no value of " + *option, 0}, false,
        *option + " in the SSH configuration"});
    return;
  }
  ssh_set_blocking(session_, 0);
  advance();
}

std::string SshSession::late_text(const std::string& limit) const {
  const std::string where = target_.label + ": ";
  switch (step_) {
    case Step::kConnect:
      return where + "no answer from " + endpoint().text + limit +
             "; check that the host is up and that no firewall drops the port";
    case Step::kGreet:
      if (!heard_server_) {
        return where + endpoint().text + " accepted the connection, but no SSH server answered" + limit +
               "; check the port, and whether sshd there hangs";
      }
      return where + "the key exchange with " + endpoint().text + " did not finish" + limit;
    case Step::kLogin:
      return where + "the login at " + endpoint().text + " did not finish" + limit;
    case Step::kAgent:
      return where + "the login at " + endpoint().text + " did not finish" + limit +
             "; check whether the ssh-agent waits for a touch or a passphrase";
    case Step::kOpen:
    case Step::kExecute:
    case Step::kRun:
    case Step::kDone:
      break;
  }
  return where + endpoint().text + " accepted the login, but did not run the command" + limit;
}

void SshSession::on_deadline() {
  if (step_ == Step::kDone || step_ == Step::kRun) return;
  stop_with(Error{ErrorCode::kTimeout, late_text(" before the start limit"), 0});
}

void SshSession::on_connect_timeout() {
  if (step_ != Step::kGreet) return;
  const std::string seconds = std::to_string(target_.config.connect_timeout);
  stop_with(Error{ErrorCode::kUnreachable, late_text(" within the " + seconds + " s of ConnectTimeout"), 0});
}

// ---- waiting

void SshSession::report_step() {
  const char* step = "starting ddplaunchd";
  if (step_ == Step::kGreet) step = heard_server_ ? "SSH key exchange" : "SSH greeting";
  if (step_ == Step::kLogin) step = "SSH login";
  if (step_ == Step::kAgent) step = "SSH login through the ssh-agent";
  if (std::exchange(reported_, step) != step && events_.waiting) events_.waiting(step);
}

void SshSession::wait() {
  report_step();
  const bool running = step_ == Step::kRun;
  if (!running || pump_->interest().packets) wait_for_tcp();
  if (running) wait_for_local();
}

void SshSession::wait_for_tcp() {
  auto self = shared_from_this();
  // Delayed acknowledgments of this side meet Nagle's algorithm of the server: 40 ms per session. The kernel
  // forgets the setting, so it is renewed until the command writes.
  if (!pump_ || !pump_->heard()) set_option(tcp_.native_handle(), IPPROTO_TCP, TCP_QUICKACK, 1);
  if (!tcp_reading_) {
    tcp_reading_ = true;
    tcp_.async_wait(asio::posix::stream_descriptor::wait_read, [self](const error_code& error) {
      self->tcp_reading_ = false;
      self->on_ready(error);
    });
  }
  if (!tcp_writing_ && (ssh_get_poll_flags(session_) & SSH_WRITE_PENDING) != 0) {
    tcp_writing_ = true;
    tcp_.async_wait(asio::posix::stream_descriptor::wait_write, [self](const error_code& error) {
      self->tcp_writing_ = false;
      self->on_ready(error);
    });
  }
}

void SshSession::wait_for_local() {
  using Descriptor = asio::posix::stream_descriptor;
  const SshPump::Interest interest = pump_->interest();
  auto self = shared_from_this();
  if (interest.link_read && !link_reading_) {
    link_reading_ = true;
    link_.async_wait(Descriptor::wait_read, [self](const error_code& error) {
      self->link_reading_ = false;
      if (self->pump_) self->pump_->link_readable();
      self->on_ready(error);
    });
  }
  if (interest.link_write && !link_writing_) {
    link_writing_ = true;
    link_.async_wait(Descriptor::wait_write, [self](const error_code& error) {
      self->link_writing_ = false;
      self->on_ready(error);
    });
  }
  if (interest.errors_write && !errors_writing_) {
    errors_writing_ = true;
    errors_.async_wait(Descriptor::wait_write, [self](const error_code& error) {
      self->errors_writing_ = false;
      self->on_ready(error);
    });
  }
}

void SshSession::on_ready(const error_code& error) {
  // Aborted: the session was stopped, or the descriptor closed. A lent session belongs to the ssh-agent's
  // thread.
  if (error == asio::error::operation_aborted || step_ == Step::kDone || step_ == Step::kAgent) return;
  advance();
}

// ---- the end

Error SshSession::libssh_error(const std::string& what) const {
  const char* why = ssh_get_error(session_);
  const std::string text = why != nullptr && *why != '\0' ? why : "the connection was closed";
  return {ErrorCode::kUnreachable, target_.label + ": " + what + ": " + text, 0};
}

SshSession::StepResult SshSession::stop_with(Error error) {
  return stop_with(SshFailure{std::move(error), false, {}});
}

SshSession::StepResult SshSession::stop_with(SshFailure failure) {
  if (cut_off_) return StepResult::kStop;
  if (events_.failed) events_.failed(std::move(failure));
  close();
  return StepResult::kStop;
}

SshSession::StepResult SshSession::stop_at_end(ChannelEnd end) {
  const SshSessionEvents events = std::move(events_);
  release();
  if (events.ended) events.ended(std::move(end));
  return StepResult::kStop;
}

void SshSession::close(HangUp hang_up) {
  events_ = {};
  if (step_ == Step::kAgent) {
    // The ssh-agent's thread has the session, and may be blocked in it. Cut both connections, and clean up
    // when that thread returns the session.
    cut_off_ = true;
    ::shutdown(agent_socket_.get(), SHUT_RDWR);
    ::shutdown(tcp_.native_handle(), SHUT_RDWR);
    deadline_.cancel();
    return;
  }
  if (step_ == Step::kRun && pump_) pump_->move();  // the owner's last bytes may still be in the socket
  if (step_ == Step::kRun && hang_up == HangUp::kYes && ssh_is_connected(session_) != 0) {
    for (const char* signal : {"HUP", "TERM"})
      ssh_channel_request_send_signal(channel_, signal);
  }
  release();
}

void SshSession::release() {
  step_ = Step::kDone;
  events_ = {};
  deadline_.cancel();
  attempt_.cancel();
  pump_.reset();
  if (channel_ != nullptr) ssh_channel_free(std::exchange(channel_, nullptr));
  if (session_ != nullptr) {
    // ssh_free alone closes the descriptor in every version. After ssh_disconnect (0.10) or
    // ssh_silent_disconnect (0.11) libssh has forgotten a descriptor that it was given, and leaves it open.
    ssh_free(std::exchange(session_, nullptr));
  }
  error_code ignored;
  tcp_.close(ignored);
  link_.close(ignored);
  errors_.close(ignored);
}

}  // namespace ddp::remote
