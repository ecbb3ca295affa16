// The agents that can be sent (AgentBundle); one host's start; and FanOut, which runs them all: a try, its
// greeting, what the host asks for, and why it ended.
#include "remote/start/fan_out.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

#include "base/crypto.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "remote/transports/transport.h"

namespace ddp::remote {
namespace {

std::string own_machine() {
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "";
}

Result<std::string> read_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) return system_error(errno, path);
  std::string bytes(static_cast<std::size_t>(found.st_size), '\0');
  std::size_t held = 0;
  while (held < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + held, bytes.size() - held);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, path);
    if (count == 0) break;
    held += static_cast<std::size_t>(count);
  }
  bytes.resize(held);
  return bytes;
}

constexpr const char* kAdvice = "; install the same version there or name it with --agent PATH";

constexpr std::size_t kErrorsKept = 64 * 1024;
constexpr std::size_t kLastErrors = 1 << 20;  // more than a socket holds
constexpr std::size_t kLongestWrapper = 100;  // characters, in messages

}  // namespace

AgentBundle::AgentBundle(BundleRequest request) : libexec_(request.bin_dir + "/../libexec/ddplaunch/") {
  wanted_.path = request.bin_dir + "/ddplaunchd";
  wanted_.hello = request.hello;
  wanted_.train = request.train;
  const std::string own = own_machine();
  add_program(own, wanted_.path, companion_program(request.bin_dir, "train"));
  for (const std::string machine : {"x86_64", "aarch64"}) {
    if (machine != own)
      add_program(machine, libexec_ + "ddplaunchd-" + machine, libexec_ + "train-" + machine);
  }
}

void AgentBundle::add_program(const std::string& machine, const std::string& agent,
                              const std::string& train) {
  Paths found{agent, {}, {}};
  for (const std::string& path : {agent, wanted_.train ? train : std::string()}) {
    if (path.empty()) continue;
    auto identity = read_elf_identity(path);
    if (!identity || identity->machine != machine) {
      // No error yet: only a node of that machine type needs to know.
      lacks_[machine] = identity ? path + " is for another machine" : identity.error().text;
      return;
    }
    found.key += (found.key.empty() ? "" : ".") + identity->build_id;
  }
  if (wanted_.train) found.train = train;
  wanted_.keys.push_back(found.key);
  paths_.emplace(machine, std::move(found));
}

Error AgentBundle::none_for(const std::string& machine) const {
  const auto why = lacks_.find(machine);
  return {ErrorCode::kAgentMissing,
          "it has no ddplaunchd" + std::string(wanted_.train ? " with train beside it" : "") +
              " of this build, and there is none here for a machine of type " + machine +
              (why == lacks_.end() ? std::string() : " (" + why->second + ")") + kAdvice};
}

Result<std::shared_ptr<const PushSet>> AgentBundle::set_for(const std::string& machine) {
  // Held while the files are read: nodes that need the same files wait for one read instead of reading them,
  // too.
  const std::lock_guard lock(loading_);
  if (const auto known = loaded_.find(machine); known != loaded_.end()) return known->second;
  const auto paths = paths_.find(machine);
  if (paths == paths_.end()) return none_for(machine);
  auto set = std::make_shared<PushSet>();
  set->key = paths->second.key;
  const auto add = [&set](const char* name, const std::string& path) -> Result<> {
    auto bytes = DDP_TRY(read_file(path));
    set->files.push_back({name, bytes.size(), sha256_hex(bytes)});
    set->bytes.push_back(std::move(bytes));
    return {};
  };
  // The agent comes last: its presence shows that the set is complete.
  if (!paths->second.train.empty()) {
    DDP_TRY(add("train", paths->second.train));
  }
  DDP_TRY(add("ddplaunchd", paths->second.agent));
  loaded_.emplace(machine, set);
  return std::shared_ptr<const PushSet>(std::move(set));
}

/// The start of one host. Its coroutines own it, and FanOut until the host is reported.
struct FanOut::Start {
  Start(const asio::any_io_executor& loop, std::size_t place, Host target, const FanOutOptions& settings,
        const Transport& remote)
      : index(place),
        host(std::move(target)),
        options(settings),
        over_ssh(settings.ssh_localhost || !is_localhost(host)),
        lookup(lookup_for(host, settings, over_ssh)),
        intermediary(intermediary_of(host, over_ssh ? remote.intermediary() : nullptr)),
        boot(host.name, settings.argv.at(0), lookup, intermediary),
        draining(loop),
        sending(loop) {}

  static Bootstrap::Lookup lookup_for(const Host& host, const FanOutOptions& settings, bool over_ssh) {
    const bool child = !over_ssh || settings.remote_is_here;
    // A plain child of this machine uses the agent beside this program, and needs no shell to find it. A
    // wrapper may lead into a container, which has other files.
    if (child && host.wrapper.empty()) return Bootstrap::Lookup::kNone;
    return settings.bundle ? Bootstrap::Lookup::kPush : Bootstrap::Lookup::kGiven;
  }
  static std::string intermediary_of(const Host& host, const char* reader) {
    if (host.wrapper.empty()) return reader != nullptr ? reader : "its shell";
    std::string words = join(host.wrapper, " ");
    if (words.size() > kLongestWrapper) words = words.substr(0, kLongestWrapper) + "...";
    return "the wrapper (" + words + ")" + (reader != nullptr ? std::string(" or ") + reader : std::string());
  }

  /// The command runs inside the host's container if there is one.
  std::vector<std::string> command() const {
    std::vector<std::string> agent = options.argv;
    if (lookup == Bootstrap::Lookup::kGiven) agent = given_lookup(options.argv);
    if (lookup == Bootstrap::Lookup::kPush) agent = first_lookup(options.bundle->wanted(), anew);
    std::vector<std::string> words = host.wrapper;
    words.insert(words.end(), agent.begin(), agent.end());
    return words;
  }

  /// Prepares another try, after the previous try has released everything.
  void begin_again() {
    boot = Bootstrap(host.name, options.argv.at(0), lookup, intermediary);
    channel.reset();
    errors.clear();
    set.reset();
    pushed = 0;
    stop_draining = stop_sending = false;
    again = closed_early = false;
  }

  std::size_t index;
  Host host;
  const FanOutOptions& options;
  const bool over_ssh;
  const Bootstrap::Lookup lookup;
  const std::string intermediary;
  Bootstrap boot;
  asio::cancellation_signal stop;
  std::optional<ErrorCode> given_up;  ///< kTimeout or kCancelled
  std::unique_ptr<Channel> channel;   ///< set once the command runs
  bool anew = false;                  ///< the agent in the cache sent no hello, and is replaced
  bool again = false;                 ///< this try failed, and another may succeed at once
  bool closed_early = false;          ///< this try failed, and another may succeed after a pause
  std::string errors;
  TaskGroup draining;  ///< drain_errors
  bool stop_draining = false;
  std::shared_ptr<const PushSet> set;  ///< files being pushed; empty: none
  std::string script;
  std::size_t pushed = 0;  ///< bytes of files
  TaskGroup sending;       ///< send
  bool stop_sending = false;

  void give_up(ErrorCode why) {
    if (given_up) return;
    given_up = why;
    stop.emit(asio::cancellation_type::terminal);
  }
  void stop_draining_errors() {
    stop_draining = true;
    error_code ignored;
    channel->errors().cancel(ignored);
  }
  void take_errors(std::string_view bytes) {
    boot.feed_errors(bytes);
    errors.append(bytes.substr(0, kErrorsKept - std::min(kErrorsKept, errors.size())));
  }
  Error reason_given_up() const {
    if (*given_up == ErrorCode::kTimeout) return boot.timed_out();
    return Error{ErrorCode::kCancelled, host.name + ": cancelled"};
  }
};

FanOut::FanOut(asio::any_io_executor loop, Transport& remote, Transport& local, FanOutOptions options)
    : loop_(std::move(loop)),
      disk_(loop_, 1),
      remote_(remote),
      local_(local),
      options_(std::move(options)),
      random_(std::random_device{}()),
      deadline_(loop_),
      all_reported_(loop_, std::chrono::steady_clock::time_point::max()) {}

FanOut::~FanOut() = default;

Awaitable<void> FanOut::run(std::vector<Host> hosts, ReportHost report) {
  report_ = std::move(report);
  missing_ = hosts.size();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    starts_.push_back(std::make_shared<Start>(loop_, i, std::move(hosts[i]), options_, remote_));
  }
  if (options_.deadline != Deadline::max()) {
    deadline_.expires_at(options_.deadline);
    deadline_.async_wait([this](const error_code& error) {
      if (!error) on_deadline();
    });
  }
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    // Copy the pointer: a start that fails at once is reported, and leaves the list, inside co_spawn.
    const std::shared_ptr<Start> one = starts_[i];
    auto done = [this, one](std::exception_ptr broken, Result<StartedAgent> outcome) {
      if (broken) std::rethrow_exception(broken);
      finished(one, std::move(outcome));
    };
    asio::co_spawn(loop_, start(one), asio::bind_cancellation_slot(one->stop.slot(), std::move(done)));
  }
  co_await asio::this_coro::throw_if_cancelled(false);
  while (missing_ > 0) {
    co_await all_reported_.async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) cancel();
  }
  deadline_.cancel();
}

void FanOut::finished(const std::shared_ptr<Start>& start, Result<StartedAgent> outcome) {
  starts_[start->index].reset();
  if (--missing_ == 0) all_reported_.cancel();
  // Last, since the report may cancel the others or end the loop.
  report_(start->index, std::move(outcome));
}

void FanOut::cancel() {
  if (std::exchange(cancelled_, true)) return;  // a start that begins later sees the flag
  const auto copy = starts_;                    // giving up may report, which changes the list
  for (const auto& start : copy) {
    if (start) start->give_up(ErrorCode::kCancelled);
  }
}

void FanOut::on_deadline() {
  const auto copy = starts_;
  for (const auto& start : copy) {
    // During the connection the transport enforces the deadline itself, and knows which step was slow.
    if (start && start->channel) start->give_up(ErrorCode::kTimeout);
  }
}

std::vector<FanOut::PendingHost> FanOut::waiting() const {
  std::vector<PendingHost> list;
  for (const auto& start : starts_) {
    if (!start) continue;
    const Transport& transport = start->over_ssh ? remote_ : local_;
    const char* step =
        start->set ? "copying ddplaunchd" : transport.step(start->host.name, start->channel != nullptr);
    list.push_back({start->index, step});
  }
  return list;
}

Awaitable<Result<StartedAgent>> FanOut::start(std::shared_ptr<Start> start) {
  co_await asio::this_coro::throw_if_cancelled(false);
  if (cancelled_) start->given_up = ErrorCode::kCancelled;
  if (start->given_up) co_return start->reason_given_up();
  LoginRetry retry;
  std::optional<Error> closed;
  for (;;) {
    auto outcome = co_await try_once(start);
    if (outcome || start->given_up) {
      // A last try that the start limit cut short has a less exact error than earlier ones.
      if (!outcome && closed && start->given_up == ErrorCode::kTimeout) co_return *closed;
      co_return outcome;
    }
    if (start->closed_early) {
      closed = outcome.error();
      const auto pause = retry.next(random_);
      if (!pause || std::chrono::steady_clock::now() + *pause >= options_.deadline) co_return outcome;
      co_await pause_for(loop_, *pause);
      if (start->given_up) co_return start->reason_given_up();
    } else if (!start->again) {
      co_return outcome;
    }
    start->begin_again();
  }
}

Awaitable<Result<StartedAgent>> FanOut::try_once(std::shared_ptr<Start> start) {
  Transport& transport = start->over_ssh ? remote_ : local_;
  auto opened = co_await transport.open(start->host, start->command(), options_.deadline);
  if (start->given_up) co_return start->reason_given_up();
  if (!opened && opened.error().code == ErrorCode::kExec) {
    const bool wrapped = !start->host.wrapper.empty();
    Error error = opened.error();
    // As a shell on another host would report it, so that one text explains both.
    if (!wrapped && error.sys == ENOENT) co_return start->boot.ended(127);
    // 126 is for workers, and none failed.
    error.code = wrapped ? ErrorCode::kUnreachable : ErrorCode::kAgentMissing;
    error.text +=
        wrapped ? "; it is the program of the wrapper" : "; name the program ddplaunchd with --agent PATH";
    co_return error;
  }
  if (!opened) co_return opened.error();
  start->channel = std::move(*opened);
  if (std::chrono::steady_clock::now() >= options_.deadline) start->given_up = ErrorCode::kTimeout;

  start->draining.start(drain_errors(start));  // ended and awaited by greet()
  co_return co_await greet(start);
}

Awaitable<void> FanOut::drain_errors(std::shared_ptr<Start> start) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto [error, size] =
        co_await start->channel->errors().async_read_some(asio::buffer(buffer), kUseTuple);
    if (size > 0) start->take_errors({buffer.data(), size});
    // Cancelling misses a read that has completed and is queued, so a flag is needed as well.
    if (error || start->stop_draining) break;
  }
}

Awaitable<Result<StartedAgent>> FanOut::greet(std::shared_ptr<Start> start) {
  std::array<char, 8192> buffer;
  std::optional<Error> failure;
  const std::unique_ptr<ByteStream> stream = start->channel->stream();
  const auto open = [&start] {
    return start->boot.state() != Bootstrap::State::kHello &&
           start->boot.state() != Bootstrap::State::kFailed;
  };
  while (!failure && open()) {
    if (start->given_up) break;
    if (start->boot.state() != Bootstrap::State::kReading) {
      failure = co_await answer(start);
      continue;
    }
    const auto [error, size] = co_await stream->read_some(asio::buffer(buffer));
    // Before the error is looked at: a read may bring the last bytes and the end together.
    start->boot.feed({buffer.data(), size});
    if (error && !start->given_up && start->boot.state() == Bootstrap::State::kReading) {
      failure = co_await explain_end(start);
    }
  }
  if (start->sending.running()) {
    // The agent sends its hello after it received all files. Only the completion of the last write can be
    // pending.
    start->stop_sending = true;
    error_code ignored;
    start->channel->socket().cancel(ignored);
  }
  co_await start->sending.all_ends();
  // The reader of stderr must stop before the channel is passed on; the bytes it has read are kept.
  start->stop_draining_errors();
  co_await start->draining.all_ends();

  if (!failure && start->boot.state() == Bootstrap::State::kFailed) failure = start->boot.failure();
  if (!failure && open()) failure = start->reason_given_up();
  if (!failure && start->options.expected) {
    const auto fits = check_hello(start->host.name, start->boot.hello(), *start->options.expected);
    if (!fits) failure = fits.error();
  }
  if (failure) {
    start->channel.reset();
    co_return *failure;
  }
  start->channel->greeted();
  co_return StartedAgent{std::move(start->channel), start->boot.hello(),      start->boot.rest(),
                         start->boot.noise(),       std::move(start->errors), start->pushed};
}

/// Sends the requested data while greet() keeps reading: the host may refuse it at any time.
Awaitable<std::optional<Error>> FanOut::answer(std::shared_ptr<Start> start) {
  // One write at a time: the text of the one before must stay until it is sent.
  while (start->sending.running() && !start->given_up)
    co_await start->sending.one_end();
  if (start->given_up) co_return start->reason_given_up();
  std::string_view bytes;
  if (start->boot.state() == Bootstrap::State::kNeed) {
    const AgentNeed& need = start->boot.need();
    auto set = co_await load(start);
    if (start->given_up) co_return set ? start->reason_given_up() : set.error();
    if (set) {
      start->set = *set;
      start->script = push_script(options_.bundle->wanted(), start->set->key, start->set->files, start->anew);
    } else if (!need.attempts.empty() && need.attempts[0] == kSameVersion) {
      start->script = installed_script();
    } else {
      Error error = within(start->host.name, set.error());
      if (!need.attempts.empty() && need.attempts[0] == kDistrusted)
        error.text +=
            "; " + options_.bundle->wanted().path + " there is not used, since other users could replace it";
      co_return error;
    }
    bytes = start->script;
  } else {
    const std::size_t file = start->boot.wanted_file();
    if (!start->set || file >= start->set->bytes.size()) {
      co_return Error{ErrorCode::kAgentMismatch,
                      start->host.name + ": it requested a file that does not exist", 0};
    }
    bytes = start->set->bytes[file];
    start->pushed += bytes.size();
  }
  start->sending.start(send(start, bytes));  // awaited by greet()
  start->boot.advance();
  co_return std::nullopt;
}

/// Returns the files for the machine of this host.
Awaitable<Result<std::shared_ptr<const PushSet>>> FanOut::load(std::shared_ptr<Start> start) {
  std::function<Result<std::shared_ptr<const PushSet>>()> read =
      [bundle = options_.bundle, machine = start->boot.need().machine] { return bundle->set_for(machine); };
  auto set = co_await disk_.run(std::move(read), options_.deadline);
  if (!set && set.error().code == ErrorCode::kTimeout) start->give_up(ErrorCode::kTimeout);
  if (set || !start->given_up) co_return set;
  if (start->given_up == ErrorCode::kCancelled) co_return start->reason_given_up();
  co_return Error{
      ErrorCode::kTimeout,
      start->host.name + ": " + options_.bundle->wanted().path +
          " or a file beside it was not read on this machine before the start limit; its disk hangs",
      0};
}

Awaitable<void> FanOut::send(std::shared_ptr<Start> start, std::string_view bytes) {
  while (!bytes.empty() && !start->stop_sending) {
    const auto [error, size] =
        co_await start->channel->socket().async_write_some(asio::buffer(bytes), kUseTuple);
    bytes.remove_prefix(size);
    if (error) break;  // the reader of the link sees the end as well, and knows why
  }
}

Awaitable<Error> FanOut::explain_end(std::shared_ptr<Start> start) {
  const ChannelEnd end = co_await start->channel->end();
  if (start->given_up) co_return start->reason_given_up();
  start->closed_early = end.closed_early;
  // The transport knows the reason. The host's own words would only hide it.
  if (end.broken) co_return *end.broken;
  // All of stderr is in the socket by this time. Read it without waiting for end of file, which a grandchild
  // may delay.
  start->stop_draining_errors();
  co_await start->draining.all_ends();
  error_code error;
  start->channel->errors().non_blocking(true, error);
  std::array<char, 4096> buffer;
  // Bound the read as well: a process may write forever.
  for (std::size_t taken = 0; !error && taken < kLastErrors;) {
    const std::size_t size = start->channel->errors().read_some(asio::buffer(buffer), error);
    if (!error) start->take_errors({buffer.data(), size});
    taken += size;
  }
  // An existing agent was started and sent no hello: send a new one, once.
  start->again = !start->anew && !start->set && !start->boot.began().empty() &&
                 start->lookup == Bootstrap::Lookup::kPush;
  if (start->again) start->anew = true;
  co_return start->boot.ended(end.status);
}

}  // namespace ddp::remote
