#include "launcher/links/daemon.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/exit_status.h"
#include "base/text.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/transports/command_transport.h"

namespace ddp::launcher {
namespace {

using rendezvous::answer_line;
using rendezvous::JoinedPeer;
using rendezvous::LinkRefusal;
using rendezvous::SecureAcceptor;

/// Uses one write, so that lines of several processes do not mix.
void say(const std::string& line) {
  const std::string text = "ddplaunchd: " + line + "\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

/// The time for a master, which may have been stopped for a while, to read the agent's last output.
constexpr std::chrono::minutes kFlushTime{10};
constexpr std::size_t kLastErrors = 1 << 20;  // more than a socket holds

/// The work of a process that serves one authenticated master. It starts the agent beside it and carries the
/// agent's streams and its end over the link, as sshd would. If the link ends first, the agent sees the end
/// of its input, stops its workers and exits. The session ends with the agent. Loop thread only.
class DaemonSession {
 public:
  /// `name` is that of the session in the log, `job` that of the job, `agent` the path of ddplaunchd.
  DaemonSession(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream, std::string name,
                std::string job, std::string agent)
      : loop_(loop),
        line_(loop, std::move(stream)),
        name_(std::move(name)),
        job_(std::move(job)),
        agent_path_(std::move(agent)),
        input_(loop),
        output_(loop),
        errors_(loop),
        flush_(loop) {}

  /// Returns when the agent has ended and the master was notified.
  Awaitable<> run() {
    remote::ChildCommand command;
    command.host = "ddplaunchd";
    command.argv = {agent_path_, "--stdio"};
    // Variables that describe the daemon's service to systemd's services. A worker that used them would write
    // its output into the daemon's journal, or answer its watchdog.
    command.unset = {"DDPLAUNCH_TOKEN",
                     "INVOCATION_ID",
                     "JOURNAL_STREAM",
                     "LISTEN_FDNAMES",
                     "LISTEN_FDS",
                     "LISTEN_PID",
                     "MAINPID",
                     "MANAGERPID",
                     "MEMORY_PRESSURE_WATCH",
                     "MEMORY_PRESSURE_WRITE",
                     "NOTIFY_SOCKET",
                     "SYSTEMD_EXEC_PID",
                     "WATCHDOG_PID",
                     "WATCHDOG_USEC",
                     "CREDENTIALS_DIRECTORY"};
    auto channel = remote::open_child(loop_, std::move(command));
    // The texts are made before the co_await, which would destroy aggregates of its expression twice (gcc
    // 12).
    if (!channel) {
      log("cannot start an agent: " + channel.error().text);
      std::string refusal = answer_line({std::nullopt, {}, LinkRefusal::kNoAgent, channel.error().text});
      (void)co_await line_.send(std::move(refusal));
      line_.close();
      co_return;
    }
    agent_ = std::move(*channel);
    agent_->greeted();  // from here on, only the end of its input ends the agent
    std::string first = answer_line({0, job_});
    first += daemon_frame(DaemonFrame::kOutput, std::string(remote::kRunsPrefix) + agent_path_ + "\n");
    (void)co_await line_.send(std::move(first));
    input_.start(carry_input());
    output_.start(carry_output());
    errors_.start(carry_errors());
    co_await report_agent_end();
  }

 private:
  void log(const std::string& line) const { say(name_ + ": " + line); }

  Awaitable<> carry_input() {
    std::vector<char> buffer(kDaemonFrameHead + kMaxDaemonPayload);
    LocalSocket& input = agent_->socket();
    error_code error;
    while (!error && reader_.failure().empty()) {
      const auto [failed, size] = co_await line_.read_some(asio::buffer(buffer));
      error = failed;
      std::string_view bytes(buffer.data(), size);
      while (const auto piece = reader_.next(bytes)) {
        if (piece->kind == DaemonFrame::kInput) {
          (void)co_await asio::async_write(input, asio::buffer(piece->bytes),
                                           kUseTuple);  // an agent that stopped reading will end
        } else {
          error_code ignored;
          input.shutdown(LocalSocket::shutdown_send, ignored);
        }
      }
    }
    if (ended_) co_return;
    lost_ = true;
    log(reader_.failure().empty()
            ? "the link to the master is lost; the agent stops the job's workers on this node"
            : "the master sent " + reader_.failure() + "; the link is closed");
    line_.close();
    end_both_directions(input);
    // A scheduler may have stopped the agent. Its keeper passes the signal on, and wakes it.
    agent_->terminate();
  }

  Awaitable<> carry_output() {
    const bool all = co_await line_.carry(DaemonFrame::kOutput, agent_->socket());
    if (all) (void)co_await line_.send(daemon_frame(DaemonFrame::kOutputEnd, {}));
    if (!all) line_.close();
  }

  /// Keeps the agent's errors for the log when the master is gone.
  Awaitable<> carry_errors() {
    std::array<char, 4096> buffer;
    while (!stop_errors_) {
      const auto [error, size] = co_await agent_->errors().async_read_some(asio::buffer(buffer), kUseTuple);
      if (size > 0) co_await pass_errors({buffer.data(), size});
      if (error) break;
    }
  }

  Awaitable<> pass_errors(std::string_view bytes) {
    if (!lost_) (void)co_await line_.send(daemon_frame(DaemonFrame::kErrors, bytes));
    if (lost_) last_lines_.feed(bytes);
  }

  /// Waits for the agent's end, then sends the rest of its output, then its exit status.
  Awaitable<> report_agent_end() {
    const remote::ChannelEnd end = co_await agent_->end();
    flush_.expires_after(kFlushTime);
    flush_.async_wait([this](const error_code& error) {
      if (!error) line_.close();
    });
    co_await output_.all_ends();
    // A process that survives the agent may hold its stderr, so read what is there and do not wait for end of
    // file.
    stop_errors_ = true;
    error_code error;
    agent_->errors().cancel(error);
    co_await errors_.all_ends();
    agent_->errors().non_blocking(true, error);
    std::array<char, 4096> buffer;
    for (std::size_t taken = 0; !error && taken < kLastErrors;) {
      const std::size_t size = agent_->errors().read_some(asio::buffer(buffer), error);
      taken += size;
      if (size > 0) co_await pass_errors({buffer.data(), size});
    }
    ended_ = true;
    const int status = end.status.value_or(255);
    log("the agent ended with status " + std::to_string(status) + last_lines_.text());
    if (lost_) co_return;
    (void)co_await line_.send(daemon_ended(status));
    // The master closes the link after this frame. A side that closes before it has read everything resets
    // the connection, and drops what was not sent yet.
    co_await input_.all_ends();
    flush_.cancel();
  }

  asio::any_io_executor loop_;
  DaemonLine line_;
  std::string name_;
  std::string job_;
  std::string agent_path_;
  DaemonFrameReader reader_{DaemonFrameReader::FrameSender::kMaster};
  std::unique_ptr<remote::Channel> agent_;
  remote::TailLines last_lines_;
  TaskGroup input_;  ///< the tasks that carry the streams
  TaskGroup output_;
  TaskGroup errors_;
  asio::steady_timer flush_;
  bool stop_errors_ = false;
  bool lost_ = false;   ///< the link ended before the agent
  bool ended_ = false;  ///< the agent has ended, and all its output was sent
};

constexpr int kSignals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};

/// Runs in the forked child, inside the listener's loop, which never runs again here. All descriptors of the
/// loop are closed, so that none of its events reaches this process, and no object is destroyed. A session of
/// its own keeps the signals of the terminal and of the listener's group away.
[[noreturn]] void become_session(JoinedPeer peer, std::string name, std::string agent, const sigset_t& mask) {
  for (const int number : kSignals)
    ::signal(number, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "ddp-session");
  const auto link = static_cast<unsigned>(peer.stream->native_socket());
  close_descriptors(STDERR_FILENO + 1, link - 1);
  close_descriptors(link + 1, ~0U);
  asio::io_context loop(1);
  peer.stream->move_to(loop.get_executor());
  DaemonSession session(loop.get_executor(), std::move(peer.stream), std::move(name), std::move(peer.who.job),
                        std::move(agent));
  asio::co_spawn(loop, session.run(), [&loop](const std::exception_ptr& failure) {
    loop.stop();
    if (failure) std::terminate();
  });
  loop.run();
  ::_exit(0);
}

class DaemonListener {
 public:
  explicit DaemonListener(std::string agent) : agent_(std::move(agent)), signals_(loop_) {}

  int run(rendezvous::SecureAcceptorOptions port);

 private:
  void await_signal();
  void reap();
  void joined(JoinedPeer peer);

  asio::io_context loop_{1};
  std::string agent_;
  asio::signal_set signals_;
  std::shared_ptr<SecureAcceptor> acceptor_;
  std::set<pid_t> sessions_;
};

int DaemonListener::run(rendezvous::SecureAcceptorOptions port) {
  const std::string token = port.token.origin + " (check " + rendezvous::token_check(port.token.secret) + ")";
  const std::string where = port.where;
  port.awaited = rendezvous::LinkRole::kMaster;
  port.on_joined = [this](JoinedPeer peer) { joined(std::move(peer)); };
  port.on_note = say;
  auto acceptor = SecureAcceptor::start(loop_.get_executor(), std::move(port));
  if (!acceptor) {
    say(acceptor.error().text);
    return 110;
  }
  acceptor_ = std::move(*acceptor);
  ::signal(SIGCHLD, SIG_DFL);
  for (const int number : kSignals) {
    struct sigaction action {};
    // nohup: a signal that the parent ignored stays ignored.
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) signals_.add(number);
  }
  await_signal();
  say("listening at " + where + " for masters with the token of " + token);
  loop_.run();
  return 0;
}

void DaemonListener::await_signal() {
  signals_.async_wait([this](const error_code& error, int number) {
    if (error) return;
    reap();
    if (number == SIGCHLD) return await_signal();
    const std::size_t left = sessions_.size();
    say(signal_name(number) + ": shutting down" +
        (left == 0 ? std::string() : "; " + counted(left, "job keeps", "jobs keep") + " running"));
    acceptor_->stop();
    signals_.clear();
    loop_.stop();
  });
}

void DaemonListener::reap() {
  for (;;) {
    const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
    if (pid <= 0) return;
    sessions_.erase(pid);
    acceptor_->descriptor_freed();
  }
}

/// Forks without exec, because the stream's state cannot be handed to another program. A single thread makes
/// that safe. The listener drops its copy of the stream without a TLS goodbye.
void DaemonListener::joined(JoinedPeer peer) {
  std::string name = "job " + peer.who.job + " of " + peer.address.to_string();
  // Signal handlers write into a pipe of the listener, so none may run in the child.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become_session(std::move(peer), std::move(name), agent_, before);
  const int failed = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return say(name + ": cannot start a process for it: " + std::strerror(failed));
  sessions_.insert(pid);
  say(name + ": process " + std::to_string(pid) + " serves it as node " + peer.who.node);
}

}  // namespace

int run_daemon_listener(rendezvous::SecureAcceptorOptions port, std::string agent) {
  DaemonListener listener(std::move(agent));
  return listener.run(std::move(port));
}

}  // namespace ddp::launcher
