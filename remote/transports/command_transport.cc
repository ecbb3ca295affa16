// A child process as a Channel, whatever it runs; then the command lines of its two users, the ssh program
// and srun.
#include "remote/transports/command_transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/blocking_calls.h"
#include "base/child_process.h"
#include "base/text.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/hosts/shell_command.h"

namespace ddp::remote {

Result<SocketPair> make_socket_pair(int flags, int send_buffer) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, ends) != 0)
    return system_error(errno, "make a local socket");
  for (const int end : ends)
    ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
  return SocketPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Result<asio::local::stream_protocol::socket> as_socket(const asio::any_io_executor& loop, UniqueFd fd) {
  asio::local::stream_protocol::socket socket(loop);
  error_code error;
  socket.assign(asio::local::stream_protocol(), fd.get(), error);
  if (error) return system_error(error.value(), "register a socket with the loop");
  fd.release();
  return socket;
}

namespace {

using Socket = Channel::Socket;

constexpr std::chrono::seconds kPatience{2};

Result<ChildProcess> run(const ChildCommand& command, int in_out, int errors) {
  auto found = DDP_TRY(own_child(command.argv));
  ChildSpec& spec = found;
  std::erase_if(spec.env, [&command](const std::string& entry) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    return std::find(command.unset.begin(), command.unset.end(), name) != command.unset.end();
  });
  if (command.kind == ChildCommand::Kind::kSshClient) {
    // BatchMode stops the program itself from asking. It does not stop a program that it starts for a jump
    // host, nor an older program that has a display.
    std::erase_if(spec.env, [](const std::string& entry) { return entry.rfind("SSH_ASKPASS", 0) == 0; });
    spec.env.insert(spec.env.end(), {"SSH_ASKPASS=/bin/false", "SSH_ASKPASS_REQUIRE=never"});
  }
  spec.in = in_out;
  spec.out = in_out;
  spec.err = errors;
  // A session of its own: Ctrl-C on the terminal does not reach the program first, and no password can be
  // asked there.
  spec.new_session = true;
  if (command.kind == ChildCommand::Kind::kSshClient) spec.death_signal = SIGTERM;
  return spawn(spec);
}

/// Returns whether the ssh program ended with 255 because a server closed the connection before its greeting.
/// The program's text is the only evidence. Any other line (for example a login refused at a jump host) means
/// another cause.
bool closed_early(const TailLines& tail) {
  constexpr std::string_view kSigns[] = {"kex_exchange_identification: ", "ssh_exchange_identification: ",
                                         "Connection closed by ", "Connection reset by "};
  bool exchange = false;
  for (const std::string& line : tail.lines()) {
    const auto* sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                    [&line](std::string_view words) { return line.starts_with(words); });
    if (sign == std::end(kSigns)) return false;
    exchange = exchange || sign - std::begin(kSigns) < 2;
  }
  return exchange;
}

/// The process and its known end. It lives as long as the Channel or the process, whichever ends later.
class Child : public std::enable_shared_from_this<Child> {
 public:
  Child(const asio::any_io_executor& loop, ChildProcess process, ChildCommand::Kind kind)
      : process_(std::move(process)),
        end_(loop, process_.end_fd()),
        kind_(kind),
        from_child_(loop),
        to_owner_(loop),
        patience_(loop),
        ended_(loop, std::chrono::steady_clock::time_point::max()) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { end_.release(); }  // process_ owns the descriptor, and kills a process that still runs

  void watch() {
    auto self = shared_from_this();
    end_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [self](const error_code& error) { self->on_exit(error); });
  }

  /// Relays stderr, so that its last lines can be reported as the reason of a failure.
  void relay_errors(UniqueFd from_child, UniqueFd to_owner) {
    from_child_.assign(asio::local::stream_protocol(), from_child.release());
    to_owner_.assign(asio::local::stream_protocol(), to_owner.release());
    relaying_ = true;
    read_errors();
  }

  /// Called when the owner has gone and nobody reads. A process that did not greet may hang and then never
  /// sees end of file.
  void drop(bool greeted) {
    dropped_ = true;
    stop_relay();
    if (!process_.running()) return;
    // An agent that has greeted sees the end of its link, and ends its workers first.
    if (greeted) {
      if (kind_ == ChildCommand::Kind::kSshClient) (void)process_.send_signal(SIGTERM);
      return;
    }
    ending_ = true;
    (void)process_.send_group_signal(SIGTERM);
    patience_.expires_after(kPatience);
    patience_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error && self->process_.running()) (void)self->process_.send_group_signal(SIGKILL);
    });
  }

  void terminate() {
    if (process_.running()) (void)process_.send_signal(SIGTERM);
  }

  bool over() const { return status_ && !relaying_; }
  const ExitStatus& status() const { return *status_; }
  asio::steady_timer& ended() { return ended_; }
  const TailLines& tail() const { return tail_; }

 private:
  void on_exit(const error_code& error) {
    if (error) return;  // the loop is being destroyed, and process_ with this object
    // Kill before the leader is reaped: without its PID the group cannot be signaled.
    if (ending_ && process_.peek()) (void)process_.send_group_signal(SIGKILL);
    status_ = process_.try_wait();
    if (!status_) return watch();
    end_.release();
    patience_.cancel();
    // A process that outlives its parent (a shared connection of the ssh program) may hold stderr open. Take
    // the available bytes and do not wait for end of file.
    error_code ignored;
    // While a write is pending, on_written() goes on with what is left.
    if (relaying_ && !writing_) from_child_.cancel(ignored);
    ended_.cancel();
  }

  void read_errors() {
    auto self = shared_from_this();
    from_child_.async_read_some(asio::buffer(buffer_), [self](const error_code& error, std::size_t size) {
      self->on_errors(error, size);
    });
  }

  void on_errors(const error_code& error, std::size_t size) {
    if (dropped_) return;
    if (error == asio::error::operation_aborted && status_) {
      error_code none;
      from_child_.non_blocking(true, none);
      error_code drained;
      size = from_child_.read_some(asio::buffer(buffer_), drained);
      if (drained) return stop_relay();
    } else if (error) {
      return stop_relay();
    }
    tail_.feed(std::string_view(buffer_.data(), size));
    writing_ = true;
    auto self = shared_from_this();
    asio::async_write(to_owner_, asio::buffer(buffer_.data(), size),
                      [self](const error_code& failed, std::size_t) { self->on_written(failed); });
  }

  void on_written(const error_code& failed) {
    writing_ = false;
    if (dropped_) return;
    error_code ignored;
    if (failed) to_owner_.close(ignored);  // keep reading: a full stderr would block the process
    if (status_) {
      on_errors(asio::error::operation_aborted, 0);
    } else {
      read_errors();
    }
  }

  void stop_relay() {
    relaying_ = false;
    error_code ignored;
    from_child_.close(ignored);
    to_owner_.close(ignored);
    ended_.cancel();
  }

  ChildProcess process_;
  asio::posix::stream_descriptor end_;  ///< process_.end_fd()
  const ChildCommand::Kind kind_;
  Socket from_child_;
  Socket to_owner_;
  asio::steady_timer patience_;  ///< time between SIGTERM and SIGKILL
  asio::steady_timer ended_;     ///< never expires; cancelled when more of the end is known
  std::optional<ExitStatus> status_;
  bool relaying_ = false;
  bool writing_ = false;
  bool dropped_ = false;
  bool ending_ = false;  ///< the whole group is being ended
  std::array<char, 4096> buffer_;
  TailLines tail_;
};

class ChildChannel final : public Channel {
 public:
  ChildChannel(ChildCommand command, std::shared_ptr<Child> child, Socket stdio, Socket errors)
      : command_(std::move(command)),
        child_(std::move(child)),
        socket_(std::move(stdio)),
        errors_(std::move(errors)) {}
  ~ChildChannel() override { child_->drop(greeted_); }

  bool is_local() const override { return command_.kind == ChildCommand::Kind::kProgram; }
  Socket& socket() override { return socket_; }
  Socket& errors() override { return errors_; }
  void greeted() override {
    greeted_ = true;
    command_.held.reset();
    command_.advice.clear();
  }

  void terminate() override { child_->terminate(); }

  Awaitable<ChannelEnd> end() override {
    const bool over = co_await wait_until(child_->ended(), [this] { return child_->over(); });
    if (!over) co_return cancelled_end(command_.host);
    command_.held.reset();
    co_return end_state();
  }

 private:
  ChannelEnd end_state() const {
    const ExitStatus& status = child_->status();
    if (command_.kind == ChildCommand::Kind::kProgram) return ChannelEnd{status.exit_code(), std::nullopt};
    const std::string client = command_.host + ": " + command_.argv[0];
    // Only a process on this machine kills the client by a signal. A signal that ends the remote command
    // makes the client exit with 255.
    if (status.kind != ExitStatus::Kind::kExited) {
      const ErrorCode code = greeted_ ? ErrorCode::kLinkLost : ErrorCode::kUnreachable;
      return ChannelEnd{std::nullopt, Error{code, client + " was " + status.text()}};
    }
    // ssh(1) ends with the exit status of the remote command, or with 255 if an error occurred.
    if (status.number != 255) return ChannelEnd{status.number, std::nullopt};
    const std::string last = child_->tail().text();
    const std::string advice = (greeted_ ? "" : mismatch_advice(last)) + command_.advice;
    std::string text = client + " failed (exit status 255)" + advice;
    text += last.empty() ? "; it printed nothing" : (advice.empty() ? ":" : "; its last lines:") + last;
    return ChannelEnd{std::nullopt, Error{ErrorCode::kUnreachable, std::move(text)},
                      closed_early(child_->tail())};
  }

  ChildCommand command_;
  std::shared_ptr<Child> child_;
  Socket socket_;
  Socket errors_;
  bool greeted_ = false;
};

}  // namespace

std::string mismatch_advice(std::string_view words) {
  constexpr std::pair<std::string_view, const char*> kRows[] = {{"key exchange method", "KexAlgorithms"},
                                                                {"host key type", "HostKeyAlgorithms"},
                                                                {"cipher", "Ciphers"},
                                                                {"MAC", "MACs"}};
  for (const auto& [kind, option] : kRows) {
    const std::string begin = concat("no matching ", kind, " found. Their offer: ");
    const std::size_t found = words.find(begin);
    if (found == words.npos) continue;
    const std::string_view list = words.substr(found + begin.size());
    std::vector<std::string> offer;
    for (const std::string_view one : split(list.substr(0, list.find_first_of(" \r\n")), ','))
      if (!one.empty() && !one.starts_with("kex-strict-") &&
          !one.starts_with("ext-info-"))  // signals, no algorithms
        offer.emplace_back(one);
    if (offer.empty()) return {};
    return concat("; the server supports none of the ", option, " allowed here, but ", join(offer, ","),
                  "; allow one that \"ssh -Q ", option, "\" lists for this host in the SSH configuration (",
                  option, " +", offer.front(), "), or update its SSH server");
  }
  return {};
}

Result<std::unique_ptr<Channel>> open_child(const asio::any_io_executor& loop, ChildCommand command) {
  const bool relays = command.kind == ChildCommand::Kind::kSshClient;
  auto stdio = DDP_TRY(within(command.host, make_socket_pair(0)));
  auto errors = DDP_TRY(within(command.host, make_socket_pair(0)));
  SocketPair relay;
  if (relays) relay = DDP_TRY(within(command.host, make_socket_pair(0)));
  auto process = DDP_TRY(within(command.host, run(command, stdio.theirs.get(), errors.theirs.get())));
  stdio.theirs.reset();
  errors.theirs.reset();
  auto child = std::make_shared<Child>(loop, std::move(process), command.kind);
  child->watch();
  if (relays) child->relay_errors(std::move(errors.ours), std::move(relay.theirs));
  auto stdio_socket = DDP_TRY(within(command.host, as_socket(loop, std::move(stdio.ours))));
  auto error_socket =
      DDP_TRY(within(command.host, as_socket(loop, std::move(relays ? relay.ours : errors.ours))));
  return std::unique_ptr<Channel>(std::make_unique<ChildChannel>(
      std::move(command), std::move(child), std::move(stdio_socket), std::move(error_socket)));
}

namespace {

/// Starts a client that carries a command of another host. Returns kUnreachable with `advice` if it cannot be
/// executed: no worker failed, but the way to the host.
Result<std::unique_ptr<Channel>> open_client(const asio::any_io_executor& loop, ChildCommand command,
                                             std::string_view advice) {
  auto channel = open_child(loop, std::move(command));
  if (channel || channel.error().code != ErrorCode::kExec) return channel;
  return Error{ErrorCode::kUnreachable, concat(channel.error().text, advice), channel.error().sys};
}

}  // namespace

std::vector<std::string> CommandTransport::command_line(const CommandTransportOptions& options,
                                                        const Route& route, const Host& host,
                                                        const std::string& remote_line, long seconds) {
  std::vector<std::string> line = options.words;
  auto option = [&line](const std::string& setting) {
    line.push_back("-o");
    line.push_back(setting);
  };
  if (!options.config.empty()) {
    line.push_back("-F");
    line.push_back(options.config);
  }
  // No terminal, which would change bytes of the link, and no X11.
  line.push_back("-T");
  line.push_back("-x");
  for (const std::string& setting : route.settings)
    option(setting);
  option("BatchMode=yes");
  option("ConnectTimeout=" + std::to_string(seconds));
  // Override settings for interactive use, and settings that fail when 64 sessions use them at once.
  option("ClearAllForwardings=yes");
  option("PermitLocalCommand=no");
  option("RemoteCommand=none");
  option("StdinNull=no");
  // The heartbeats of master and agent decide when a link is dead: an outage shorter than --node-timeout is
  // none.
  option("ServerAliveInterval=0");
  // Use an existing shared connection, but create none: it would outlive the job.
  option("ControlMaster=no");
  if (options.accept_new_host_keys) option("StrictHostKeyChecking=accept-new");
  if (options.accept_new_host_keys && !route.proxy_jump.empty()) {
    // ssh passes its own -o options to no jump host.
    std::vector<std::string> jump = options.words;
    if (!options.config.empty()) jump.insert(jump.end(), {"-F", options.config});
    jump.insert(jump.end(), {"-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"});
    if (auto command = jump_command(jump, route.proxy_jump)) option("ProxyCommand=" + *command);
  }
  // Set after ProxyCommand, which then takes precedence.
  if (!host.jump.empty()) option("ProxyJump=" + host.jump);
  if (!host.address.empty()) option("HostName=" + without_tokens(host.address));
  if (host.port != 0) option("Port=" + std::to_string(host.port));
  if (!host.user.empty()) option("User=" + host.user);
  if (!host.identity.empty()) {
    line.push_back("-i");
    line.push_back(host.identity);
  }
  line.push_back("--");  // a host named "-oProxyCommand=…" is not an option
  line.push_back(host.name);
  line.push_back(remote_line);
  return line;
}

std::string CommandTransport::by_hand(const CommandTransportOptions& options, const Host& host) {
  std::vector<std::string> words = options.words;
  if (!options.config.empty()) words.insert(words.end(), {"-F", options.config});
  if (!host.jump.empty()) words.insert(words.end(), {"-J", host.jump});
  if (host.port != 0) words.insert(words.end(), {"-p", std::to_string(host.port)});
  if (!host.address.empty()) words.insert(words.end(), {"-o", "HostName=" + without_tokens(host.address)});
  if (!host.identity.empty()) words.insert(words.end(), {"-i", host.identity});
  words.push_back(host.user.empty() ? host.name : host.user + "@" + host.name);
  auto line = shell_quote(words);
  return line ? *line : options.words.front() + " " + host.name;
}

Awaitable<Result<std::unique_ptr<Channel>>> CommandTransport::open_through(Route route, Host host,
                                                                           std::vector<std::string> argv,
                                                                           Deadline deadline) {
  auto remote_line = shell_quote(argv);
  if (!remote_line) co_return within(host.name, remote_line.error());
  if (!host.jump.empty()) route.proxy = route.proxy_jump = host.jump == "none" ? "" : host.jump;
  std::shared_ptr<LoginWindow::Slot> slot;
  if (!route.proxy.empty()) {
    auto turn = co_await window_.acquire(route.proxy, host.name, deadline);
    if (!turn) co_return turn.error();
    slot = std::make_shared<LoginWindow::Slot>(std::move(*turn));
  }
  // One second less than the time left, so that the program's own timeout message arrives before the
  // deadline.
  const auto left =
      std::chrono::duration_cast<std::chrono::seconds>(deadline - std::chrono::steady_clock::now());
  long seconds = std::clamp<long>(left.count() - 1, 1, 3600);
  if (route.connect_timeout > 0) seconds = std::min<long>(seconds, route.connect_timeout);
  auto line = command_line(options_, route, host, *remote_line, seconds);
  ChildCommand command{host.name, std::move(line), ChildCommand::Kind::kSshClient};
  command.held = slot;
  command.advice = "; ddplaunch never prompts; run \"" + by_hand(options_, host) +
                   " true\" in a terminal to see whether ssh asks for a passphrase (then run ssh-add first), "
                   "a password, or a host key";
  co_return open_client(loop_, std::move(command), "; it is the program of --ssh-command");
}

namespace {

/// Options of the batch job that srun would apply again to the agent's step, as if it were one of the user's
/// tasks. The step would then get one task's share of the node (CPUs, GPUs, memory), or none.
constexpr const char* kOfTheJob[] = {"SLURM_CPUS_PER_TASK",
                                     "SRUN_CPUS_PER_TASK",
                                     "SLURM_TRES_PER_TASK",
                                     "SLURM_NTASKS",
                                     "SLURM_NPROCS",
                                     "SLURM_NTASKS_PER_NODE",
                                     "SLURM_NTASKS_PER_CORE",
                                     "SLURM_NTASKS_PER_SOCKET",
                                     "SLURM_NTASKS_PER_GPU",
                                     "SLURM_GPUS",
                                     "SLURM_GPUS_PER_TASK",
                                     "SLURM_GPUS_PER_NODE",
                                     "SLURM_GPUS_PER_SOCKET",
                                     "SLURM_GPU_BIND",
                                     "SLURM_MEM_PER_CPU",
                                     "SLURM_MEM_PER_GPU",
                                     "SLURM_MEM_PER_NODE",
                                     "SLURM_EXACT",
                                     "SLURM_EXCLUSIVE",
                                     "SLURM_THREADS_PER_CORE",
                                     "SLURM_HINT",
                                     "SLURM_CPU_BIND",
                                     "SLURM_MEM_BIND",
                                     "SLURM_DISTRIBUTION",
                                     "SLURM_ARBITRARY_LIST",
                                     "SLURM_MULTI_PROG",
                                     "SLURM_STDOUTMODE",
                                     "SLURM_STDINMODE",
                                     "SLURM_STDERRMODE",
                                     "SLURM_LABELIO",
                                     "SLURM_TIMELIMIT",
                                     "SLURM_STEP_TASKS_PER_NODE"};

}  // namespace

std::vector<std::string> SrunTransport::command_line(const Host& host, const std::vector<std::string>& argv) {
  std::vector<std::string> line = {
      "srun", "--nodes=1", "--ntasks=1", "--nodelist=" + (host.address.empty() ? host.name : host.address),
      // Runs beside other steps without waiting for them.
      "--overlap",
      // The step gets the node's whole share of the job, not one core of it.
      "--cpu-bind=none", "--mem=0", "--mpi=none",
      // Suppresses srun's own notes, for example that this Slurm binds nothing.
      "--quiet",
      // Otherwise bytes of the link wait on the node for a line feed.
      "--unbuffered",
      // The job's variables go over the link. LD_PRELOAD, device masks and the like are not passed on.
      "--export=HOME,USER,LOGNAME,SHELL,PATH",
      // The job's directory is entered later, where a missing directory is reported.
      "--chdir=/"};
  line.insert(line.end(), argv.begin(), argv.end());
  return line;
}

Awaitable<Result<std::unique_ptr<Channel>>> SrunTransport::open(Host host, std::vector<std::string> argv,
                                                                Deadline) {
  ChildCommand command{host.name, command_line(host, argv), ChildCommand::Kind::kSshClient};
  command.unset.assign(std::begin(kOfTheJob), std::end(kOfTheJob));
  co_return open_client(loop_, std::move(command), "");
}

}  // namespace ddp::remote
