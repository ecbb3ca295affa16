// The steps of a session that use libssh: greeting, login, channel, command.
#include <fcntl.h>
#include <libssh/libssh.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "remote/shells/socket_pair.h"
#include "remote/ssh/ssh_session.h"

namespace ddp::remote {
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
      case Step::kGreet:
        progress = greet();
        break;
      case Step::kLogin:
        progress = login();
        break;
      case Step::kOpen:
        progress = open_channel();
        break;
      case Step::kExecute:
        progress = execute();
        break;
      case Step::kRun:
        progress = run();
        break;
      case Step::kConnect:
      case Step::kAgent:
      case Step::kDone:
        break;
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
      failure.advice = mismatch_advice(ssh_get_error(session_));
      if (failure.advice.empty()) failure.advice = "; the key exchange with it fails";
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
  while (key_ < target_.keys.size()) {
    const SshKey& key = *target_.keys[key_];
    if (key.get() == nullptr) {
      ++key_;
      continue;
    }
    switch (ssh_userauth_publickey(session_, nullptr, key.get())) {
      case SSH_AUTH_AGAIN:
        return StepResult::kAgain;
      case SSH_AUTH_SUCCESS:
        step_ = Step::kOpen;
        return StepResult::kNext;
      case SSH_AUTH_PARTIAL:
        offered_ = ssh_userauth_list(session_, nullptr);
        if ((offered_ & SSH_AUTH_METHOD_PUBLICKEY) == 0) return second_factor();
        ++key_;  // the server requires two keys
        break;
      case SSH_AUTH_DENIED:
        offered_ = ssh_userauth_list(session_, nullptr);
        ++key_;
        break;
      default:
        return stop_with(login_broken());
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
  auto link = make_socket_pair(SOCK_NONBLOCK);
  if (!link) return stop_with(within(target_.label, link.error()));
  auto errors = make_socket_pair(SOCK_NONBLOCK);
  if (!errors) return stop_with(within(target_.label, errors.error()));
  link_.assign(link->ours.release());
  errors_.assign(errors->ours.release());
  pump_->attach(link_.native_handle(), errors_.native_handle());
  deadline_.cancel();
  leave_to_heartbeats(tcp_.native_handle());
  step_ = Step::kRun;
  events_.opened(
      SshOpened{std::move(link->theirs), std::move(errors->theirs), endpoint().host, target_.config.port});
  return StepResult::kNext;
}

SshSession::StepResult SshSession::run() {
  switch (pump_->move()) {
    case SshPump::State::kRunning:
      return StepResult::kAgain;
    case SshPump::State::kMore: {
      auto self = shared_from_this();
      asio::post(io_, [self] { self->advance(); });
      return StepResult::kStop;
    }
    case SshPump::State::kClosed:
      return stop_at_end({pump_->status(), std::nullopt});
    case SshPump::State::kBroken:
      break;
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
  agent_socket_ = duplicate(agent.get());
  UniqueFd tcp = duplicate(tcp_.native_handle());
  if (!agent_socket_ || !tcp || ssh_set_agent_socket(session_, agent.get()) != SSH_OK)
    return StepResult::kNext;
  agent.release();
  step_ = Step::kAgent;
  report_step();
  agent_wait_ = std::make_unique<asio::posix::stream_descriptor>(agent_io_, tcp.release());
  asio::post(agent_io_, [self = shared_from_this()] { self->ask_agent(); });
  return StepResult::kStop;
}

void SshSession::ask_agent() {
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
