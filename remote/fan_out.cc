#include "remote/fan_out.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

namespace ddp::remote {
namespace {

constexpr std::size_t kErrorsKept = 64 * 1024;

}  // namespace

/// One host on its way. Held by its coroutines and by FanOut until it is reported.
struct FanOut::Start {
  Start(const asio::any_io_executor& loop, std::size_t place, Host target, const FanOutOptions& settings)
      : index(place),
        host(std::move(target)),
        options(settings),
        boot(host.name, settings.argv.at(0)),
        drained(loop, std::chrono::steady_clock::time_point::max()) {}

  std::size_t index;
  Host host;
  const FanOutOptions& options;
  Bootstrap boot;
  asio::cancellation_signal stop;
  std::optional<ErrorCode> given_up;  ///< kTimeout or kCancelled
  std::unique_ptr<Channel> channel;   ///< set once the command runs
  std::string errors;
  bool draining = false;
  bool stop_draining = false;
  asio::steady_timer drained;  ///< never expires; cancelled when drain_errors has ended

  void give_up(ErrorCode why) {
    if (given_up) return;
    given_up = why;
    stop.emit(asio::cancellation_type::terminal);
  }
  void let_errors_go() {
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

FanOut::FanOut(asio::any_io_executor loop, RemoteShell& remote, RemoteShell& local, FanOutOptions options)
    : loop_(std::move(loop)),
      remote_(remote),
      local_(local),
      options_(std::move(options)),
      deadline_(loop_),
      all_reported_(loop_, std::chrono::steady_clock::time_point::max()) {}

FanOut::~FanOut() = default;

Awaitable<void> FanOut::run(std::vector<Host> hosts, Report report) {
  report_ = std::move(report);
  missing_ = hosts.size();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    starts_.push_back(std::make_shared<Start>(loop_, i, std::move(hosts[i]), options_));
  }
  if (options_.deadline != Deadline::max()) {
    deadline_.expires_at(options_.deadline);
    deadline_.async_wait([this](const error_code& error) {
      if (!error) on_deadline();
    });
  }
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    // A copy: a start that fails at once is reported, and leaves the list, inside co_spawn.
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
  report_(start->index, std::move(outcome));
}

void FanOut::cancel() {
  cancelled_ = true;
  const auto copy = starts_;  // giving up may report, which changes the list
  for (const auto& start : copy) {
    if (start) start->give_up(ErrorCode::kCancelled);
  }
}

void FanOut::on_deadline() {
  const auto copy = starts_;
  for (const auto& start : copy) {
    // While it connects, the shell keeps the deadline itself and knows better which step was slow.
    if (start && start->channel) start->give_up(ErrorCode::kTimeout);
  }
}

std::vector<FanOut::Waiting> FanOut::waiting() const {
  std::vector<Waiting> list;
  for (const auto& start : starts_) {
    if (start) list.push_back({start->index, start->channel ? "waiting for the agent" : "connecting"});
  }
  return list;
}

Awaitable<Result<StartedAgent>> FanOut::start(std::shared_ptr<Start> start) {
  co_await asio::this_coro::throw_if_cancelled(false);
  if (cancelled_) start->given_up = ErrorCode::kCancelled;
  if (start->given_up) co_return start->reason_given_up();

  const bool over_ssh = options_.ssh_localhost || !is_localhost(start->host);
  RemoteShell& shell = over_ssh ? remote_ : local_;
  auto opened = co_await shell.open(start->host, options_.argv, options_.deadline);
  if (start->given_up) co_return start->reason_given_up();
  if (!opened && opened.error().code == ErrorCode::kExec && opened.error().sys == ENOENT && !over_ssh) {
    co_return start->boot.ended(127);
  }
  if (!opened) co_return opened.error();
  start->channel = std::move(*opened);
  if (std::chrono::steady_clock::now() >= options_.deadline) start->given_up = ErrorCode::kTimeout;

  start->draining = true;
  asio::co_spawn(loop_, drain_errors(start), asio::detached);  // ended and awaited by greet()
  co_return co_await greet(start);
}

Awaitable<void> FanOut::drain_errors(std::shared_ptr<Start> start) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto [error, size] =
        co_await start->channel->errors().async_read_some(asio::buffer(buffer), kUseTuple);
    if (size > 0) start->take_errors({buffer.data(), size});
    // Cancelling misses a read that has completed and waits for its turn, so there is a flag as well.
    if (error || start->stop_draining) break;
  }
  start->draining = false;
  start->drained.cancel();
}

Awaitable<Result<StartedAgent>> FanOut::greet(std::shared_ptr<Start> start) {
  std::array<char, 8192> buffer;
  std::optional<Error> failure;
  while (!failure && start->boot.state() == Bootstrap::State::kReading) {
    if (start->given_up) break;
    const auto [error, size] =
        co_await start->channel->link().async_read_some(asio::buffer(buffer), kUseTuple);
    start->boot.feed({buffer.data(), size});
    if (error && !start->given_up && start->boot.state() == Bootstrap::State::kReading) {
      failure = co_await explain_end(start);
    }
  }
  // The reader of stderr lets go before the channel is handed on; nothing it has read is lost.
  start->let_errors_go();
  while (start->draining)
    co_await start->drained.async_wait(kUseTuple);

  if (!failure && start->boot.state() == Bootstrap::State::kFailed) failure = start->boot.failure();
  if (!failure && start->boot.state() == Bootstrap::State::kReading) failure = start->reason_given_up();
  if (!failure && start->options.expected) {
    const auto fits = check_hello(start->host.name, start->boot.hello(), *start->options.expected);
    if (!fits) failure = fits.error();
  }
  if (failure) {
    start->channel.reset();
    co_return *failure;
  }
  start->channel->greeted();
  co_return StartedAgent{std::move(start->channel), start->boot.hello(), start->boot.rest(),
                         start->boot.noise(), std::move(start->errors)};
}

Awaitable<Error> FanOut::explain_end(std::shared_ptr<Start> start) {
  const ChannelEnd end = co_await start->channel->end();
  if (start->given_up) co_return start->reason_given_up();
  if (end.broken) co_return *end.broken;
  // All of stderr lies in the socket by now: take it without waiting for an end that a grandchild may hold
  // back.
  start->let_errors_go();
  while (start->draining)
    co_await start->drained.async_wait(kUseTuple);
  error_code error;
  start->channel->errors().non_blocking(true, error);
  std::array<char, 4096> buffer;
  while (!error) {
    const std::size_t size = start->channel->errors().read_some(asio::buffer(buffer), error);
    if (!error) start->take_errors({buffer.data(), size});
  }
  co_return start->boot.ended(end.status);
}

}  // namespace ddp::remote
