#include "launcher/links/daemon_listener.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/asio.h"
#include "launcher/links/daemon_line.h"
#include "launcher/links/daemon_session.h"
#include "rendezvous/secure/secure_acceptor.h"
#include "rendezvous/secure/secure_stream_key.h"

namespace ddp::launcher {
namespace {

using rendezvous::LinkIdentity;
using rendezvous::SecureAcceptor;
using rendezvous::SecureStream;

constexpr int kSignals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};

/// One write, so that lines of several processes do not mix.
void say(const std::string& line) {
  const std::string text = "ddplaunchd: " + line + "\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

void close_from(unsigned first, unsigned last) {
  if (first > last || ::close_range(first, last, 0) == 0) return;
  rlimit files{};  // Linux before 5.9
  ::getrlimit(RLIMIT_NOFILE, &files);
  for (unsigned fd = first; fd <= last && fd < files.rlim_cur; ++fd)
    ::close(static_cast<int>(fd));
}

/// In the child of the fork, deep in the listener's loop, which never runs again here: all of its descriptors
/// are closed under it, so that no event of its reaches this process, and nothing of it is destroyed. A
/// session of its own keeps the terminal's signals, and those to the listener's group, away.
[[noreturn]] void become_session(std::unique_ptr<SecureStream> stream, std::string name, std::string agent,
                                 const sigset_t& mask) {
  for (const int number : kSignals)
    ::signal(number, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "ddp-session");
  const auto link = static_cast<unsigned>(stream->native_socket());
  close_from(STDERR_FILENO + 1, link - 1);
  close_from(link + 1, ~0U);
  asio::io_context loop(1);
  stream->move_to(loop.get_executor());
  DaemonSessionOptions options;
  options.agent = std::move(agent);
  options.log = [name](const std::string& line) { say(name + ": " + line); };
  asio::co_spawn(loop, serve_daemon_session(std::move(stream), std::move(options)),
                 [&loop](const std::exception_ptr& failure) {
                   loop.stop();
                   daemon_task_end(failure);
                 });
  loop.run();
  ::_exit(0);
}

class DaemonListener {
 public:
  explicit DaemonListener(std::string agent) : agent_(std::move(agent)), signals_(loop_) {}

  int run(DaemonListenerOptions options);

 private:
  Result<> open(DaemonListenerOptions options);
  void await_signal();
  void reap();
  void joined(std::unique_ptr<SecureStream> stream, const LinkIdentity& who, const asio::ip::address& peer);

  asio::io_context loop_{1};
  std::string agent_;
  std::string where_;
  asio::signal_set signals_;
  std::shared_ptr<SecureAcceptor> acceptor_;
  std::set<pid_t> sessions_;
};

Result<> DaemonListener::open(DaemonListenerOptions options) {
  auto context = rendezvous::SecureContext::make();
  if (!context) return context.error();
  where_ = options.where;
  rendezvous::SecureAcceptorOptions settings;
  settings.where = options.where;
  settings.token = std::move(options.token);
  settings.admits = [](const LinkIdentity& who) -> std::optional<rendezvous::LinkRefusal> {
    if (who.role == rendezvous::LinkRole::kMaster) return std::nullopt;
    return rendezvous::LinkRefusal::kOtherRole;
  };
  rendezvous::SecureAcceptorCallbacks callbacks;
  callbacks.on_joined = [this](std::unique_ptr<SecureStream> stream, const LinkIdentity& who,
                               const asio::ip::address& peer) { joined(std::move(stream), who, peer); };
  callbacks.on_note = say;
  auto acceptor =
      SecureAcceptor::start(loop_.get_executor(), std::move(*context), std::move(options.listener),
                            std::move(settings), std::move(callbacks));
  if (!acceptor) return acceptor.error();
  acceptor_ = std::move(*acceptor);
  return {};
}

int DaemonListener::run(DaemonListenerOptions options) {
  const std::string token =
      options.token.origin + " (check " + rendezvous::token_check(options.token.secret) + ")";
  const auto opened = open(std::move(options));
  if (!opened) {
    say(opened.error().text);
    return 110;
  }
  ::signal(SIGCHLD, SIG_DFL);
  for (const int number : kSignals) {
    struct sigaction action {};
    // nohup: what the parent ignored stays ignored.
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) signals_.add(number);
  }
  await_signal();
  say("listening at " + where_ + " for masters with the token of " + token);
  loop_.run();
  return 0;
}

void DaemonListener::await_signal() {
  signals_.async_wait([this](const error_code& error, int number) {
    if (error) return;
    reap();
    if (number == SIGCHLD) return await_signal();
    const std::size_t left = sessions_.size();
    say(std::string("ending at ") + ::strsignal(number) +
        (left == 0 ? std::string()
                   : "; " + std::to_string(left) + (left == 1 ? " job goes" : " jobs go") + " on"));
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

/// The stream's state cannot be handed to another program, so this forks and does not execute; the one thread
/// makes that safe. This process lets go of the stream without a goodbye.
void DaemonListener::joined(std::unique_ptr<SecureStream> stream, const LinkIdentity& who,
                            const asio::ip::address& peer) {
  std::string name = "job " + who.job + " of " + peer.to_string();
  // The handlers write into a pipe that is the listener's: none may run in the child.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become_session(std::move(stream), std::move(name), agent_, before);
  const int failed = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return say(name + ": no process for it: " + std::strerror(failed));
  sessions_.insert(pid);
  say(name + ": process " + std::to_string(pid) + " serves it as node " + who.node);
}

}  // namespace

int run_daemon_listener(DaemonListenerOptions options) {
  DaemonListener listener(options.agent);
  return listener.run(std::move(options));
}

}  // namespace ddp::launcher
