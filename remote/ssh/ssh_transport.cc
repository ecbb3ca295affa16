// A Kerberos ticket; the I/O threads; what is read from disk; and SshTransport::open(), which leads a host
// through all of it, or hands it to the ssh program.
#include "remote/ssh/ssh_transport.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/program.h"
#include "base/text.h"
#include "remote/hosts/shell_command.h"
#include "remote/ssh/ssh_handshake.h"
#include "remote/ssh/ssh_session.h"
#include "remote/transports/command_transport.h"
#include "remote/transports/transport.h"

namespace ddp::remote {

/// Finds out once for all hosts whether the user has a valid Kerberos ticket (`klist -s`). Loop thread only.
/// It is held by shared pointer, because the query may outlive its caller.
class KerberosTicket : public std::enable_shared_from_this<KerberosTicket> {
 public:
  explicit KerberosTicket(const asio::any_io_executor& loop)
      : loop_(loop), known_(loop, std::chrono::steady_clock::time_point::max()) {}

  /// Returns false if there is no klist program, if it does not answer in time, or if the wait is cancelled.
  Awaitable<bool> valid() {
    co_await asio::this_coro::throw_if_cancelled(false);
    const auto self = shared_from_this();
    if (!std::exchange(asked_, true)) spawn(loop_, ask(self));
    const bool known = co_await wait_until(known_, [this] { return valid_.has_value(); });
    co_return known&&* valid_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{5};  ///< for klist, which may wait for a network disk

  static Awaitable<> ask(std::shared_ptr<KerberosTicket> self) {
    ToolOutput answer;
    std::vector<std::string> argv{"klist", "-s"};
    if (auto klist = own_child(std::move(argv)))
      answer = co_await run_tool(std::move(*klist), std::chrono::steady_clock::now() + kPatience, 0);
    self->valid_ = answer.success();
    self->known_.cancel();
  }

  asio::any_io_executor loop_;
  std::optional<bool> valid_;
  bool asked_ = false;
  asio::steady_timer known_;  ///< never expires; cancelled when valid_ is set
};

/// The I/O threads of the SSH sessions, each with its own loop, and one more thread for logins through an
/// ssh-agent. Threads start when first needed. Use it on the loop thread only, except for the sessions' own
/// work.
class SshThreads {
 public:
  /// Uses at most `count` I/O threads.
  explicit SshThreads(unsigned count) {
    for (unsigned i = 0; i < count + 1; ++i)
      workers_.push_back(std::make_unique<Worker>());
  }
  SshThreads(const SshThreads&) = delete;
  SshThreads& operator=(const SshThreads&) = delete;
  /// Closes every session, then ends the threads. No event of a session follows.
  ~SshThreads() {
    for (const auto& worker : workers_) {
      asio::post(worker->io, [&worker = *worker] {
        for (const auto& weak : worker.sessions) {
          if (const auto session = weak.lock()) session->close();
        }
        worker.io.stop();
      });
    }
    // A session that waits for an ssh-agent was cut off by its own thread. The ssh-agents' thread, which is
    // last, ends as well.
    for (const auto& worker : workers_) {
      if (worker->thread.joinable()) worker->thread.join();
    }
    // Destroy the ssh-agents' loop first: its queue may hold the last reference to a session of another loop.
    while (!workers_.empty())
      workers_.pop_back();
  }

  /// Starts a session on one of the threads. The session lives as long as it has pending operations.
  std::weak_ptr<SshSession> start(SshTarget target, SshSession::SshSessionEvents events) {
    // In turn. A session stays on its thread, since libssh allows one thread at a time.
    const std::size_t index = next_++ % (workers_.size() - 1);
    Worker& worker = *workers_[index];
    run(worker);
    if (!target.agent_socket.empty()) run(*workers_.back());
    auto session =
        std::make_shared<SshSession>(worker.io, workers_.back()->io, std::move(target), std::move(events));
    session->set_home(index);
    std::weak_ptr<SshSession> weak = session;
    asio::post(worker.io, [&worker, session = std::move(session)] {
      std::erase_if(worker.sessions, [](const std::weak_ptr<SshSession>& one) { return one.expired(); });
      worker.sessions.push_back(session);
      session->start();
    });
    return weak;
  }

  /// Ends the session, and drops the reference on its thread. Null is allowed.
  void close(std::shared_ptr<SshSession> session, SshSession::HangUp hang_up = SshSession::HangUp::kNo) {
    if (!session) return;
    asio::io_context& home = workers_[session->home()]->io;
    asio::post(home, [session = std::move(session), hang_up] { session->close(hang_up); });
  }

 private:
  struct Worker {
    asio::io_context io{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
    std::vector<std::weak_ptr<SshSession>> sessions;  ///< sessions on this thread
    std::thread thread;
  };

  static void run(Worker& worker) {
    if (worker.thread.joinable()) return;
    const SignalsBlocked mask;
    worker.thread = std::thread([&worker] { worker.io.run(); });
  }

  std::vector<std::unique_ptr<Worker>> workers_;  ///< the last one serves the ssh-agents
  std::size_t next_ = 0;
};

namespace {

using Clock = std::chrono::steady_clock;

/// As in ssh: ConnectionAttempts are one per second.
constexpr std::chrono::seconds kPauseOfAttempts{1};

int address_family(const SshConfig& config) {
  if (config.address_family == "inet") return AF_INET;
  if (config.address_family == "inet6") return AF_INET6;
  return AF_UNSPEC;
}

std::string agent_socket(const SshConfig& config, const SshTokens& tokens) {
  std::string path = config.identity_agent;
  if (path == "none") return {};
  if (path.empty()) path = "$SSH_AUTH_SOCK";
  if (path.front() != '$') return expand_ssh_tokens(path, tokens).value_or("");
  const char* value = std::getenv(path.c_str() + 1);
  return value != nullptr ? value : "";
}

std::optional<std::string> own_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

std::vector<std::string> expand_all(const std::vector<std::string>& paths, const SshTokens& tokens) {
  std::vector<std::string> expanded;
  for (const std::string& path : paths) {
    if (auto one = expand_ssh_tokens(path, tokens)) expanded.push_back(std::move(*one));
  }
  return expanded;
}

/// Returns why libssh cannot log in with these keys, or an empty text. It drops the ssh-agent if libssh would
/// offer too many of its keys. `certificate` belongs to none of the keys.
std::string needs_openssh(SshTarget& target, const std::string& certificate) {
  for (const auto& key : target.keys) {
    if (key->problem() == SshKey::Problem::kUnknown)
      return "the key " + key->path() + ", which libssh cannot use";
  }
  if (target.agent_socket.empty()) return {};
  if (!certificate.empty()) return "the certificate " + certificate + " whose key is in the ssh-agent";
  if (!target.config.identities_only) return {};
  // libssh would offer every key of the ssh-agent.
  for (const auto& key : target.keys) {
    if (key->problem() == SshKey::Problem::kAbsent) continue;
    if (key->get() == nullptr) return "IdentitiesOnly with a key that only the ssh-agent can use";
  }
  // All keys are there as files, so the login works without the ssh-agent, and no key is offered that the
  // user has not named.
  target.agent_socket.clear();
  return {};
}

}  // namespace

/// The data read from disk, once for all hosts. It is used on the disk's thread only: a home directory on a
/// network disk may block its reader for minutes.
struct SshTransport::Files {
  const User user = local_user();
  SshKeys keys;

  /// A target with the data from disk.
  struct PreparedTarget {
    SshTarget target;
    std::string beyond_libssh;  ///< why libssh cannot serve this host; empty: it can
  };
  PreparedTarget prepare(const Host& host, SshTarget target);
  std::string complete(const Host& host, SshTarget& target);
  const KnownHosts& known_hosts(const std::vector<std::string>& paths);

  /// known_hosts is read again when it has changed: a new key may have been added.
  struct LoadedKnownHosts {
    std::string stamp;
    KnownHosts hosts;
  };
  std::map<std::vector<std::string>, LoadedKnownHosts> known;

  static std::string stamp(const std::vector<std::string>& files) {
    std::string text;
    for (const std::string& file : files) {
      struct stat info {};
      if (::stat(file.c_str(), &info) == 0) {
        text += std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec) + "/" +
                std::to_string(info.st_size);
      }
      text += ",";
    }
    return text;
  }
};

/// One session as the loop sees it.
struct SshTransport::Attempt {
  explicit Attempt(const asio::any_io_executor& loop) : changed(loop, Clock::time_point::max()) {}
  std::weak_ptr<SshSession> session;  ///< owned by the pending operations of its thread; it may not outlive
                                      ///< the threads
  std::optional<LoginWindow::Slot> slot;  ///< held until the login succeeds
  std::optional<SshOpened> opened;
  std::optional<SshFailure> failed;
  std::optional<ChannelEnd> ended;
  asio::steady_timer changed;  ///< never expires; cancelled when one of these was set
};

class SshTransport::SshChannel final : public Channel {
 public:
  SshChannel(std::string host, const asio::any_io_executor& loop, std::shared_ptr<Attempt> attempt,
             std::weak_ptr<SshThreads> threads)
      : host_(std::move(host)),
        attempt_(std::move(attempt)),
        threads_(std::move(threads)),
        address_(attempt_->opened->address),
        port_(attempt_->opened->port),
        socket_(loop, asio::local::stream_protocol(), attempt_->opened->stdio.release()),
        errors_(loop, asio::local::stream_protocol(), attempt_->opened->errors.release()) {}
  ~SshChannel() override {
    using HangUp = SshSession::HangUp;
    if (const auto threads = threads_.lock())
      threads->close(attempt_->session.lock(), greeted_ ? HangUp::kNo : HangUp::kYes);
  }

  Socket& socket() override { return socket_; }
  Socket& errors() override { return errors_; }
  std::string address() const override { return address_; }
  std::uint16_t port() const override { return port_; }
  void greeted() override { greeted_ = true; }

  Awaitable<ChannelEnd> end() override {
    const std::shared_ptr<Attempt> attempt = attempt_;
    const bool over = co_await wait_until(attempt->changed, [&] { return attempt->ended.has_value(); });
    co_return over ? *attempt->ended : cancelled_end(host_);
  }

 private:
  std::string host_;
  std::shared_ptr<Attempt> attempt_;
  std::weak_ptr<SshThreads> threads_;
  std::string address_;
  std::uint16_t port_;
  Socket socket_;
  Socket errors_;
  bool greeted_ = false;
};

SshTransport::SshTransport(asio::any_io_executor loop, SshTransportOptions options)
    : loop_(loop),
      options_(std::move(options)),
      configs_(std::make_shared<SshConfigSource>(loop, options_.ssh_program, options_.config)),
      resolver_(loop),
      openssh_options_{{options_.ssh_program}, options_.config, options_.accept_new_host_keys},
      openssh_(loop, openssh_options_),
      ticket_(std::make_shared<KerberosTicket>(loop)),
      window_(loop, options_.window),
      disk_(loop, 1),
      files_(std::make_shared<Files>()),
      random_(std::random_device{}()),
      steps_(std::make_shared<Steps>()) {}

SshTransport::~SshTransport() = default;

SshThreads& SshTransport::threads() {
  if (!threads_) {
    const unsigned cpus = std::clamp(std::thread::hardware_concurrency(), 1U, 4U);
    threads_ = std::make_shared<SshThreads>(options_.io_threads != 0 ? options_.io_threads : cpus);
  }
  return *threads_;
}

const KnownHosts& SshTransport::Files::known_hosts(const std::vector<std::string>& paths) {
  LoadedKnownHosts& read = known[paths];
  std::string now = stamp(paths);
  if (now == read.stamp) return read.hosts;
  read = {std::move(now), {}};
  for (const std::string& path : paths) {
    if (const auto text = read_regular_file(path)) read.hosts.add_file(path, *text);
  }
  return read.hosts;
}

SshTransport::Files::PreparedTarget SshTransport::Files::prepare(const Host& host, SshTarget target) {
  std::string reason = complete(host, target);
  return {std::move(target), std::move(reason)};
}

/// Completes the target from its configuration. Returns why libssh cannot serve this host, or an empty text.
std::string SshTransport::Files::complete(const Host& host, SshTarget& target) {
  const SshConfig& config = target.config;
  // In the order of cost: what the options say, what the files say, and last the keys, which have to be read.
  if (!host.jump.empty()) return "jump= of the host";
  if (!config.beyond_libssh.empty()) return config.beyond_libssh.front() + " in the SSH configuration";
  SshTokens tokens;
  tokens.home = user.home;
  tokens.local_user = user.name;
  tokens.host_name = config.host_name;
  tokens.given_name = host.name;
  tokens.remote_user = config.user;
  tokens.port = config.port;
  tokens.key_alias = config.host_key_alias;
  tokens.variable = own_variable;

  const std::string option = option_beyond_tokens(config, tokens);
  if (!option.empty()) return "a token in " + option + " that only ssh can expand";

  std::vector<std::string> files = expand_all(config.user_known_hosts, tokens);
  // As in ssh, new keys are written into the first file of the user.
  if (!files.empty()) target.known_hosts_file = files.front();
  const auto global_files = expand_all(config.global_known_hosts, tokens);
  files.insert(files.end(), global_files.begin(), global_files.end());
  target.known = known_hosts(files).find(config.host_name, config.port, config.host_key_alias);
  if (target.known.has_markers()) return "@cert-authority or @revoked lines in known_hosts";
  const std::string& strict = config.strict_host_key_checking;
  // Stricter than ssh: "no" accepts new keys only, and a changed key is refused in any case (check_host_key).
  target.accept_new_host_keys = target.accept_new_host_keys || strict == "accept-new" || strict == "no" ||
                                strict == "off" || strict == "false";

  const std::vector<std::string> certificates = expand_all(config.certificate_files, tokens);
  target.keys = keys.load(expand_all(config.identity_files, tokens), certificates);
  target.agent_socket = agent_socket(config, tokens);
  return needs_openssh(target, keys.lonely_certificate(target.keys, certificates));
}

/// As in ssh, a named key that cannot be used does not prevent the login with another key.
void SshTransport::warn_of_keys(const Host& host, const SshTarget& target) {
  for (const auto& key : target.keys) {
    std::string text = "the key " + key->path();
    if (key->problem() == SshKey::Problem::kOpen) {
      const std::string mode = format_text("%04o", key->mode());
      text += std::string(" is not used, since others may read or write it (mode ") + mode +
              "), as in ssh; fix it with chmod 600 " + key->path();
    } else if (key->problem() == SshKey::Problem::kAbsent) {
      text += " does not exist; other keys are tried";
    } else {
      continue;
    }
    if (reported_.insert(text).second && options_.notice) options_.notice(host.name + ": " + text);
  }
}

const char* SshTransport::step(const std::string& host, bool opened) const {
  const auto known = steps_->find(host);
  return known == steps_->end() ? Transport::step(host, opened) : known->second;
}

Awaitable<Result<std::unique_ptr<Channel>>> SshTransport::open(Host host, std::vector<std::string> argv,
                                                               Deadline deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  auto line = shell_quote(argv);
  if (!line) co_return within(host.name, line.error());
  (*steps_)[host.name] = "SSH configuration";
  auto config = co_await configs_->find(host, deadline);
  if (!config) co_return config.error();

  if (!config->unread_file.empty() && reported_.insert(config->unread_file).second && options_.notice) {
    options_.notice(config->unread_file + " is not used, since there is no " + options_.ssh_program +
                    " program here to read it: install OpenSSH's client");
  }
  if (options_.detail && !std::exchange(without_effect_noted_, true)) {
    const std::set<std::string>& names = configs_->without_effect();
    if (!names.empty())
      options_.detail("the SSH configuration sets " + join({names.begin(), names.end()}, ", ") +
                      ": without effect on hosts that are reached through libssh (docs/users/ssh.md)");
  }
  SshTarget target;
  target.label = host.name;
  target.config = std::move(*config);
  target.command = std::move(*line);
  target.deadline = deadline;
  target.accept_new_host_keys = options_.accept_new_host_keys;
  target.ssh_command = CommandTransport::by_hand(openssh_options_, host);
  CommandTransport::Route route{target.config.proxy, target.config.proxy_jump, target.config.connect_timeout,
                                target.config.for_a_command};
  std::function<Result<Files::PreparedTarget>()> prepare = [files = files_, host,
                                                            target = std::move(target)]() mutable {
    return files->prepare(host, std::move(target));
  };
  // One thread for all hosts: the files are read once, and a disk that hangs holds one thread only.
  auto prepared = co_await disk_.run(std::move(prepare), deadline);
  if (!prepared && prepared.error().code == ErrorCode::kTimeout) {
    co_return Error{
        ErrorCode::kTimeout,
        host.name + ": SSH keys and known_hosts were not read before the start limit; their disk hangs", 0};
  }
  if (!prepared) co_return within(host.name, prepared.error());
  target = std::move(prepared->target);
  warn_of_keys(host, target);
  std::string reason = std::move(prepared->beyond_libssh);
  if (!reason.empty()) {
    co_return co_await through_openssh(std::move(host), std::move(argv), deadline, std::move(reason),
                                       std::move(route));
  }
  (*steps_)[host.name] = "looking up its name";
  auto endpoints = co_await resolver_.resolve(target.config.host_name, target.config.port,
                                              address_family(target.config), deadline);
  if (!endpoints) co_return within(host.name, endpoints.error());
  target.endpoints = std::move(*endpoints);

  std::shared_ptr<Attempt> last;
  std::optional<Error> closed;  ///< error of a server that closed before its greeting
  LoginRetry retry;
  for (int connections = 1;; ++connections) {
    (*steps_)[host.name] = "its turn to log in";
    // The first address stands for the host: a name with several addresses is one server to its own limits.
    auto slot = co_await window_.acquire(target.endpoints.front().text, host.name, deadline);
    if (!slot) co_return slot.error();
    last = std::make_shared<Attempt>(loop_);
    last->slot.emplace(std::move(*slot));
    (*steps_)[host.name] = "connecting";
    co_await attempt(last, target);
    if (last->opened) {
      co_return std::unique_ptr<Channel>(std::make_unique<SshChannel>(host.name, loop_, last, threads_));
    }
    reason = last->failed->needs_openssh;
    if (last->failed->offers_gssapi && target.config.gssapi_authentication) {
      // Only if the server took no key: without a ticket the ssh program would fail after one more
      // connection.
      const bool ticket = co_await ticket_->valid();
      if (ticket) reason = "GSSAPIAuthentication with a Kerberos ticket";
    }
    if (!reason.empty()) {
      co_return co_await through_openssh(std::move(host), std::move(argv), deadline, std::move(reason),
                                         std::move(route));
    }
    // A last try that the start limit cut short has a less exact error than earlier ones.
    Error failure = last->failed->error;
    if (last->failed->closed_early) closed = failure;
    if (failure.code == ErrorCode::kTimeout && closed) failure = *closed;
    // Retry nothing else: servers lock out clients whose logins fail repeatedly.
    std::optional<Clock::duration> pause;
    if (last->failed->closed_early) pause = retry.next(random_);
    if (last->failed->not_connected && connections < target.config.connection_attempts)
      pause = kPauseOfAttempts;
    if (!pause || Clock::now() + *pause >= deadline) co_return failure;
    asio::steady_timer timer(loop_, *pause);
    co_await timer.async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      co_return Error{ErrorCode::kCancelled, host.name + ": cancelled", 0};
    }
  }
}

Awaitable<Result<std::unique_ptr<Channel>>> SshTransport::through_openssh(Host host,
                                                                          std::vector<std::string> argv,
                                                                          Deadline deadline,
                                                                          std::string reason,
                                                                          CommandTransport::Route route) {
  (*steps_)[host.name] = openssh_.step(host.name, false);
  // In parentheses stands libssh's last error, which differs for the same cause.
  if (reported_.insert(reason.substr(0, reason.find(" ("))).second && options_.notice) {
    options_.notice(host.name + ": connecting through the program " + options_.ssh_program + ", because of " +
                    reason + " (reported once; other hosts may have the same reason)");
  }
  return openssh_.open_through(std::move(route), std::move(host), std::move(argv), deadline);
}

Awaitable<void> SshTransport::attempt(std::shared_ptr<Attempt> attempt, SshTarget target) {
  co_await asio::this_coro::throw_if_cancelled(false);
  // The events are called on an I/O thread; the state that they set belongs to the loop.
  SshSession::SshSessionEvents events;
  const asio::any_io_executor loop = loop_;
  events.waiting = [loop, steps = steps_, label = target.label](const char* step) {
    asio::post(loop, [steps, label, step] { (*steps)[label] = step; });
  };
  events.logged_in = [loop, attempt] { asio::post(loop, [attempt] { attempt->slot.reset(); }); };
  events.opened = [loop, attempt](SshOpened opened) {
    asio::post(loop, [attempt, opened = std::move(opened)]() mutable {
      attempt->opened = std::move(opened);
      attempt->changed.cancel();
    });
  };
  events.failed = [loop, attempt](SshFailure failed) {
    asio::post(loop, [attempt, failed = std::move(failed)]() mutable {
      attempt->slot.reset();
      attempt->failed = std::move(failed);
      attempt->changed.cancel();
    });
  };
  events.ended = [loop, attempt](ChannelEnd end) {
    asio::post(loop, [attempt, end = std::move(end)]() mutable {
      attempt->ended = std::move(end);
      attempt->changed.cancel();
    });
  };
  const std::string label = target.label;
  attempt->session = threads().start(std::move(target), std::move(events));
  while (!attempt->opened && !attempt->failed) {
    co_await attempt->changed.async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() == asio::cancellation_type::none) continue;
    threads().close(attempt->session.lock());
    attempt->slot.reset();
    attempt->opened.reset();
    attempt->failed = SshFailure{Error{ErrorCode::kCancelled, label + ": cancelled", 0}, false, {}};
  }
}

}  // namespace ddp::remote
