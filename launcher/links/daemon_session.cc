#include "launcher/links/daemon_session.h"

#include <array>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/link_protocol/daemon_frame.h"
#include "launcher/links/daemon_line.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/shells/child_channel.h"

namespace ddp::launcher {
namespace {

/// For a master that does not read what an agent left behind: it may have been stopped for a while.
constexpr std::chrono::minutes kFlushTime{10};
constexpr std::size_t kLastErrors = 1 << 20;  // more than a socket holds

/// What systemd tells a service about itself. A worker that believed it would write its output straight
/// into the daemon's journal, or answer its watchdog.
const std::vector<std::string>& of_the_service() {
  static const std::vector<std::string> names = {"DDPLAUNCH_TOKEN",
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
  return names;
}

class DaemonSession : public std::enable_shared_from_this<DaemonSession> {
 public:
  DaemonSession(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream,
                DaemonSessionOptions options)
      : loop_(loop),
        line_(loop, std::move(stream)),
        options_(std::move(options)),
        changed_(loop, std::chrono::steady_clock::time_point::max()),
        flush_(loop) {}

  static Awaitable<> run(std::shared_ptr<DaemonSession> self) {
    (void)co_await self->line_.send(daemon_greeting());
    remote::ChildCommand command;
    command.host = "ddplaunchd";
    command.argv = {self->options_.agent, "--stdio"};
    command.unset = of_the_service();
    auto channel = remote::open_child(self->loop_, std::move(command));
    if (!channel) {
      self->options_.log("cannot start an agent: " + channel.error().text);
      (void)co_await self->line_.send(daemon_failed(channel.error().text));
      self->line_.close();
      co_return;
    }
    self->agent_ = std::move(*channel);
    self->agent_->greeted();  // from here on it is told to end by the end of its input alone
    (void)co_await self->line_.send(
        daemon_frame(DaemonFrame::kOutput, std::string(remote::kRunsPrefix) + self->options_.agent + "\n"));
    asio::co_spawn(self->loop_, carry_input(self), daemon_task_end);
    asio::co_spawn(self->loop_, carry_output(self), daemon_task_end);
    asio::co_spawn(self->loop_, carry_errors(self), daemon_task_end);
    co_await self->see_it_out();
  }

 private:
  static Awaitable<> carry_input(std::shared_ptr<DaemonSession> self) {
    std::vector<char> buffer(kDaemonFrameHead + kMaxDaemonPayload);
    LocalSocket& input = self->agent_->link();
    error_code error;
    while (!error && self->reader_.failure().empty()) {
      const auto [failed, size] = co_await self->line_.read_some(asio::buffer(buffer));
      error = failed;
      std::string_view bytes(buffer.data(), size);
      while (const auto piece = self->reader_.next(bytes)) {
        if (piece->kind == DaemonFrame::kInput) {
          (void)co_await write_all(input, piece->bytes);  // an agent that reads no more will end
        } else {
          error_code ignored;
          input.shutdown(LocalSocket::shutdown_send, ignored);
        }
      }
    }
    self->input_over_ = true;
    self->changed_.cancel();
    if (self->ended_) co_return;
    self->lost_ = true;
    self->options_.log(self->reader_.failure().empty()
                           ? "the master has gone; the agent is told to end the job's workers here"
                           : "the master sent " + self->reader_.failure() + "; the link is closed");
    self->line_.close();
    end_both_ways(input);
  }

  static Awaitable<> carry_output(std::shared_ptr<DaemonSession> self) {
    const bool all = co_await self->line_.carry(DaemonFrame::kOutput, self->agent_->link());
    if (all) (void)co_await self->line_.send(daemon_frame(DaemonFrame::kOutputEnd, {}));
    if (!all) self->line_.close();
    self->output_over_ = true;
    self->changed_.cancel();
  }

  /// What the agent says when its master has gone is kept for the log.
  static Awaitable<> carry_errors(std::shared_ptr<DaemonSession> self) {
    std::array<char, 4096> buffer;
    while (!self->stop_errors_) {
      const auto [error, size] =
          co_await self->agent_->errors().async_read_some(asio::buffer(buffer), kUseTuple);
      if (size > 0) co_await self->pass_errors({buffer.data(), size});
      if (error) break;
    }
    self->errors_over_ = true;
    self->changed_.cancel();
  }

  Awaitable<> pass_errors(std::string_view bytes) {
    if (!lost_) (void)co_await line_.send(daemon_frame(DaemonFrame::kErrors, bytes));
    if (lost_) last_words_.feed(bytes);
  }

  /// The process has ended: what it wrote is sent first, then how it ended.
  Awaitable<> see_it_out() {
    const remote::ChannelEnd end = co_await agent_->end();
    flush_.expires_after(kFlushTime);
    flush_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->line_.close();
    });
    while (!output_over_)
      co_await changed_.async_wait(kUseTuple);
    // A process that outlives the agent may hold its stderr: take what is there and wait for no end of file.
    stop_errors_ = true;
    error_code error;
    agent_->errors().cancel(error);
    while (!errors_over_)
      co_await changed_.async_wait(kUseTuple);
    agent_->errors().non_blocking(true, error);
    std::array<char, 4096> buffer;
    for (std::size_t taken = 0; !error && taken < kLastErrors;) {
      const std::size_t size = agent_->errors().read_some(asio::buffer(buffer), error);
      taken += size;
      if (size > 0) co_await pass_errors({buffer.data(), size});
    }
    ended_ = true;
    const int status = end.status.value_or(255);
    options_.log("the agent ended with status " + std::to_string(status) + last_words_.text());
    if (lost_) co_return;
    (void)co_await line_.send(daemon_ended(status));
    // The master closes when it has read that. Who closes before having read all that came resets the
    // connection, and with it what has not gone out yet.
    while (!input_over_)
      co_await changed_.async_wait(kUseTuple);
    flush_.cancel();
  }

  asio::any_io_executor loop_;
  DaemonLine line_;
  DaemonSessionOptions options_;
  DaemonFrameReader reader_{DaemonFrameReader::From::kMaster};
  std::unique_ptr<remote::Channel> agent_;
  remote::TailLines last_words_;
  asio::steady_timer changed_;  ///< never expires; cancelled when one of the next three becomes true
  bool input_over_ = false;
  bool output_over_ = false;
  bool errors_over_ = false;
  asio::steady_timer flush_;
  bool stop_errors_ = false;
  bool lost_ = false;   ///< the link has ended before the agent
  bool ended_ = false;  ///< the agent has, and all is said
};

}  // namespace

Awaitable<> serve_daemon_session(std::unique_ptr<ByteStream> stream, DaemonSessionOptions options) {
  const auto loop = co_await asio::this_coro::executor;
  const auto session = std::make_shared<DaemonSession>(loop, std::move(stream), std::move(options));
  co_await DaemonSession::run(session);
}

}  // namespace ddp::launcher
