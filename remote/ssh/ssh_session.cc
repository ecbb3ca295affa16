// Connecting and waiting, the end, the steps that use libssh (greeting, login, channel, command), and the
// login through an ssh-agent on its thread.
#include "remote/ssh/ssh_session.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include <libssh/libssh.h>

#include "base/unique_fd.h"
#include "remote/transports/command_transport.h"

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
      stdio_(io),
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
  // Posted, so that start() and on_connected() do not nest for each address of a name.
  if (failed) {
    asio::post(io_, [self, why] { self->on_connected(error_code(why, boost::system::system_category())); });
    return;
  }
  // Each address gets an equal part of the rest, so that a dead first one does not use up the time of the
  // others.
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
                      return self->await_connected();  // base/asio.h
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
    case Step::kLogin: return where + "the login at " + endpoint().text + " did not finish" + limit;
    case Step::kAgent:
      return where + "the login at " + endpoint().text + " did not finish" + limit +
             "; check whether the ssh-agent waits for a touch or a passphrase";
    case Step::kOpen:
    case Step::kExecute:
    case Step::kRun:
    case Step::kDone: break;
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
  if (!pump_ || !pump_->has_output()) set_option(tcp_.native_handle(), IPPROTO_TCP, TCP_QUICKACK, 1);
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
  if (interest.stdio_read && !stdio_reading_) {
    stdio_reading_ = true;
    stdio_.async_wait(Descriptor::wait_read, [self](const error_code& error) {
      self->stdio_reading_ = false;
      if (self->pump_) self->pump_->stdio_readable();
      self->on_ready(error);
    });
  }
  if (interest.stdio_write && !stdio_writing_) {
    stdio_writing_ = true;
    stdio_.async_wait(Descriptor::wait_write, [self](const error_code& error) {
      self->stdio_writing_ = false;
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
  // Before close(), which drops the events.
  if (events_.failed) events_.failed(std::move(failure));
  close();
  return StepResult::kStop;
}

SshSession::StepResult SshSession::stop_at_end(ChannelEnd end) {
  // Moved out, because release() clears the events.
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
  // A command that has not greeted may hang and never read its end of file, so it is asked to end.
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
  stdio_.close(ignored);
  errors_.close(ignored);
}

// The steps of a session that use libssh: greeting, login, channel, command.
namespace {

/// An empty result leaves the reason in errno.
UniqueFd connect_to_agent(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  errno = ENAMETOOLONG;
  if (path.size() >= sizeof address.sun_path) return {};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // Even connecting must not wait: the queue of a stuck ssh-agent can be full.
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  return fd;
}

/// Returns whether OpenSSH's server refuses the connection instead of a greeting. It does so beyond
/// MaxStartups (since 8.6), and when the address has earlier failures (PerSourcePenalties).
bool refuses_more_logins(std::string_view line) {
  return line.starts_with("Exceeded MaxStartups") || line.starts_with("Not allowed at this time");
}

bool closed_by_peer(int fd) {
  char byte = 0;
  const ssize_t count = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

}  // namespace

void SshSession::advance() {
  for (;;) {
    StepResult progress = StepResult::kStop;
    switch (step_) {
      case Step::kGreet: progress = greet(); break;
      case Step::kLogin: progress = login(); break;
      case Step::kOpen: progress = open_channel(); break;
      case Step::kExecute: progress = execute(); break;
      case Step::kRun: progress = run(); break;
      case Step::kConnect:
      case Step::kAgent:
      case Step::kDone: break;
    }
    if (progress == StepResult::kStop) return;
    if (progress != StepResult::kAgain) continue;
    // A call that the server's disconnect interrupts keeps returning "again", and the socket stays readable.
    if (step_ != Step::kGreet && step_ != Step::kRun && ssh_is_connected(session_) == 0) {
      stop_with(login_broken());
      return;
    }
    return wait();
  }
}

SshSession::StepResult SshSession::greet() {
  const int answer = ssh_connect(session_);
  heard_server_ = heard_server_ || ssh_get_serverbanner(session_) != nullptr;
  if (answer == SSH_AGAIN) return StepResult::kAgain;
  if (answer != SSH_OK) {
    const char* line = ssh_get_serverbanner(session_);
    const auto wrong = line != nullptr ? wrong_greeting(line) : std::nullopt;
    if (wrong && !refuses_more_logins(line)) {
      return stop_with(
          Error{ErrorCode::kUnreachable, target_.label + ": " + endpoint().text + " " + *wrong, 0});
    }
    // libssh has given up although the peer is still there: what it sent is no SSH. A server that has closed
    // may only be over its limits, so the last case below is worth another try.
    if (line == nullptr && !closed_by_peer(tcp_.native_handle())) {
      return stop_with(Error{ErrorCode::kUnreachable,
                             target_.label + ": " + endpoint().text +
                                 " is not an SSH server: it sent no SSH greeting; check the port (port= in "
                                 "the hostfile, Port in the SSH configuration)",
                             0});
    }
    if (line != nullptr && !wrong) {
      // No login was tried that a server could count as a failure, and the ssh program knows more algorithms.
      SshFailure failure{libssh_error("no SSH connection with " + endpoint().text), false, {}};
      failure.needs_openssh =
          std::string("a key exchange that libssh does not support (") + ssh_get_error(session_) + ")";
      return stop_with(std::move(failure));
    }
    return stop_with(
        SshFailure{Error{ErrorCode::kUnreachable,
                         target_.label + ": " + endpoint().text +
                             " closed the connection before its SSH greeting; check that it is an SSH server "
                             "and allows this many concurrent logins (MaxStartups in sshd_config)",
                         0},
                   true,
                   {}});
  }
  attempt_.cancel();
  if (auto wrong = check_host_key(session_, target_, endpoint())) return stop_with(std::move(*wrong));
  step_ = Step::kLogin;
  return StepResult::kNext;
}

SshSession::StepResult SshSession::login() {
  // Keys from files come first, since they need no other thread and cannot block.
  while (key_ < target_.keys.size()) {
    const SshKey& key = *target_.keys[key_];
    if (key.get() == nullptr) {
      ++key_;
      continue;
    }
    switch (ssh_userauth_publickey(session_, nullptr, key.get())) {
      case SSH_AUTH_AGAIN: return StepResult::kAgain;
      case SSH_AUTH_SUCCESS: step_ = Step::kOpen; return StepResult::kNext;
      case SSH_AUTH_PARTIAL:
        offered_ = ssh_userauth_list(session_, nullptr);
        if ((offered_ & SSH_AUTH_METHOD_PUBLICKEY) == 0) return second_factor();
        ++key_;  // the server requires two keys
        break;
      case SSH_AUTH_DENIED:
        offered_ = ssh_userauth_list(session_, nullptr);
        ++key_;
        break;
      default: return stop_with(login_broken());
    }
  }
  if (!target_.agent_socket.empty() && !agent_asked_) return lend_to_agent();
  if (!none_asked_) {
    // Servers that know the user by other means (a private network) accept a login without a key. This comes
    // last, because each request costs a round trip. The request also returns the server's methods if there
    // was no key to try.
    const int answer = ssh_userauth_none(session_, nullptr);
    if (answer == SSH_AUTH_AGAIN) return StepResult::kAgain;
    none_asked_ = true;
    if (answer == SSH_AUTH_SUCCESS) {
      step_ = Step::kOpen;
      return StepResult::kNext;
    }
    if (answer == SSH_AUTH_DENIED) offered_ = ssh_userauth_list(session_, nullptr);
  }
  return refused();
}

SshSession::StepResult SshSession::refused() {
  SshFailure failure{
      login_refused(target_, endpoint(), offered_, agent_asked_ && agent_problem_.empty(), agent_problem_),
      false,
      {}};
  failure.offers_gssapi = (offered_ & SSH_AUTH_METHOD_GSSAPI_MIC) != 0;
  return stop_with(std::move(failure));
}

SshSession::StepResult SshSession::second_factor() {
  SshFailure failure{
      Error{ErrorCode::kUnreachable,
            target_.label + ": " + endpoint().text +
                " requires a second factor after the key, and ddplaunch never prompts; set ControlMaster "
                "auto, ControlPath and ControlPersist in the SSH configuration, and log in with \"" +
                target_.ssh_command + "\" before the start",
            0},
      false,
      {}};
  if (!target_.config.control_path.empty()) {
    failure.needs_openssh = "a second factor, which a shared connection (ControlPath) may already have";
  }
  return stop_with(std::move(failure));
}

/// Returns the error for a connection that the server closed, or that broke, while keys were tried.
Error SshSession::login_broken() const {
  Error broken = libssh_error("the login at " + endpoint().text + " was interrupted");
  if (key_ > 0 || (agent_asked_ && agent_problem_.empty())) {
    broken.text +=
        "; servers accept only a few wrong keys (MaxAuthTries): name the right key with identity= in the "
        "hostfile, or with IdentityFile and IdentitiesOnly in the SSH configuration";
  }
  return broken;
}

SshSession::StepResult SshSession::open_channel() {
  if (channel_ == nullptr) {
    // The server's limits (MaxStartups) count connections before the login, so the next login may begin now.
    if (events_.logged_in) events_.logged_in();
    channel_ = ssh_channel_new(session_);
    if (channel_ == nullptr) return stop_with(libssh_error("no channel to " + endpoint().text));
    pump_ = std::make_unique<SshPump>(session_, channel_);
  }
  const int answer = ssh_channel_open_session(channel_);
  if (answer == SSH_AGAIN) return StepResult::kAgain;
  if (answer != SSH_OK) return stop_with(libssh_error(endpoint().text + " opens no session"));
  step_ = Step::kExecute;
  return StepResult::kNext;
}

SshSession::StepResult SshSession::execute() {
  const int answer = ssh_channel_request_exec(channel_, target_.command.c_str());
  if (answer == SSH_AGAIN) return StepResult::kAgain;
  if (answer != SSH_OK) return stop_with(libssh_error(endpoint().text + " runs no command for this account"));
  return hand_over();
}

SshSession::StepResult SshSession::hand_over() {
  auto stdio = make_socket_pair(SOCK_NONBLOCK);
  if (!stdio) return stop_with(within(target_.label, stdio.error()));
  auto errors = make_socket_pair(SOCK_NONBLOCK);
  if (!errors) return stop_with(within(target_.label, errors.error()));
  stdio_.assign(stdio->ours.release());
  errors_.assign(errors->ours.release());
  pump_->attach(stdio_.native_handle(), errors_.native_handle());
  deadline_.cancel();
  leave_to_heartbeats(tcp_.native_handle());
  step_ = Step::kRun;
  events_.opened(
      SshOpened{std::move(stdio->theirs), std::move(errors->theirs), endpoint().host, target_.config.port});
  return StepResult::kNext;
}

SshSession::StepResult SshSession::run() {
  switch (pump_->move()) {
    case SshPump::State::kRunning: return StepResult::kAgain;
    case SshPump::State::kMore: {
      auto self = shared_from_this();
      // The pump has more to move. By way of the loop, so that other sessions of this thread get their turn.
      asio::post(io_, [self] { self->advance(); });
      return StepResult::kStop;
    }
    case SshPump::State::kClosed: return stop_at_end({pump_->status(), std::nullopt});
    case SshPump::State::kBroken: break;
  }
  // A server may close the connection right after the channel.
  if (pump_->ended() && pump_->status()) return stop_at_end({pump_->status(), std::nullopt});
  Error broken = libssh_error("the SSH connection to " + endpoint().text + " broke");
  broken.code = ErrorCode::kLinkLost;
  return stop_at_end({std::nullopt, std::move(broken)});
}

// ---- the ssh-agent

SshSession::StepResult SshSession::lend_to_agent() {
  agent_asked_ = true;
  UniqueFd agent = connect_to_agent(target_.agent_socket);
  if (!agent) {  // a stale SSH_AUTH_SOCK; login() goes on to its refusal
    agent_problem_ = std::strerror(errno);
    return StepResult::kNext;
  }
  // libssh owns the other descriptor. This one can be shut down while libssh waits at it on another thread.
  agent_socket_ = duplicate(agent.get());
  UniqueFd tcp = duplicate(tcp_.native_handle());
  if (!agent_socket_ || !tcp) {
    agent_problem_ = std::strerror(errno);  // too many open files
    return StepResult::kNext;
  }
  if (ssh_set_agent_socket(session_, agent.get()) != SSH_OK) {
    agent_problem_ = ssh_get_error(session_);
    return StepResult::kNext;
  }
  agent.release();
  step_ = Step::kAgent;
  report_step();
  agent_wait_ = std::make_unique<asio::posix::stream_descriptor>(agent_io_, tcp.release());
  asio::post(agent_io_, [self = shared_from_this()] { self->ask_agent(); });
  return StepResult::kStop;
}

void SshSession::ask_agent() {
  // Runs on the ssh-agents' thread. Nothing else of the session is touched until on_agent().
  const int answer = ssh_userauth_agent(session_, nullptr);
  auto self = shared_from_this();
  if (answer == SSH_AUTH_AGAIN && ssh_is_connected(session_) != 0) {
    agent_wait_->async_wait(asio::posix::stream_descriptor::wait_read,
                            [self](const error_code&) { self->ask_agent(); });
    return;
  }
  agent_wait_.reset();
  asio::post(io_, [self, answer] { self->on_agent(answer); });
}

void SshSession::on_agent(int answer) {
  step_ = Step::kLogin;
  agent_socket_.reset();
  if (cut_off_) return release();
  if (answer == SSH_AUTH_SUCCESS) {
    step_ = Step::kOpen;
  } else if (answer == SSH_AUTH_PARTIAL) {
    second_factor();
    return;
  } else if (ssh_is_connected(session_) == 0) {
    stop_with(login_broken());
    return;
  } else {
    offered_ = ssh_userauth_list(session_, nullptr);
  }
  advance();
}

}  // namespace ddp::remote
