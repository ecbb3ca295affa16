#include "launcher/links/join_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// For the answer of a master that has taken the link.
constexpr std::chrono::seconds kAnswerTime{10};
/// For a master to miss the process that this one replaces: it goes by its heartbeats.
constexpr std::chrono::seconds kReplaceTime{6};
constexpr std::chrono::milliseconds kPause{500};

std::string where_of(const JoinGoal& goal) {
  const std::string host = goal.host.find(':') == std::string::npos ? goal.host : "[" + goal.host + "]";
  return host + ":" + std::to_string(goal.port);
}

/// One link, and what the master says on it. `again`: it ended before its first byte, so it was no answer.
struct Asked {
  std::unique_ptr<ByteStream> stream;
  JoinAnswer answer;
  std::optional<Error> error;
  bool again = false;
};

Awaitable<Asked> ask(std::shared_ptr<const rendezvous::SecureContext> context,
                     const rendezvous::Resolve& resolve, const JoinGoal& goal, Clock::time_point deadline) {
  Asked asked;
  auto stream =
      co_await rendezvous::secure_join(std::move(context), resolve, goal.host, goal.port, goal.as, deadline);
  if (!stream) {
    asked.error = stream.error();
    co_return asked;
  }
  asked.stream = std::move(*stream);
  const auto executor = co_await asio::this_coro::executor;
  const LinkDeadline limit(executor, std::min(deadline, Clock::now() + kAnswerTime), *asked.stream);
  const error_code unsaid = co_await write_line(*asked.stream, request_line(goal.request));
  auto line = co_await read_line(*asked.stream);
  if (!line) {
    asked.again = unsaid || limit.late() || line.error().code == ErrorCode::kLinkLost;
    asked.error = Error{limit.late() ? ErrorCode::kTimeout : line.error().code,
                        where_of(goal) + " took the link and gave no place: " +
                            (limit.late() ? std::string("it was silent") : line.error().text),
                        0};
    co_return asked;
  }
  auto answer = parse_answer(*line);
  if (answer)
    asked.answer = std::move(*answer);
  else
    asked.error = within(where_of(goal), answer.error());
  co_return asked;
}

ErrorCode code_of(JoinRefusal refusal) {
  return refusal == JoinRefusal::kOtherVersion ? ErrorCode::kAgentMismatch : ErrorCode::kUsage;
}

}  // namespace

Awaitable<Result<JoinedLink>> join_master(std::shared_ptr<const rendezvous::SecureContext> context,
                                          const rendezvous::Resolve& resolve, const JoinGoal& goal,
                                          Clock::time_point deadline) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  std::optional<Clock::time_point> replaced_by;
  for (;;) {
    Asked asked = co_await ask(context, resolve, goal, deadline);
    if (!asked.error && asked.answer.rank) {
      JoinedLink link;
      link.stream = std::move(asked.stream);
      link.rank = *asked.answer.rank;
      link.job_id = std::move(asked.answer.job_id);
      co_return link;
    }
    Error error = asked.error ? *asked.error
                              : Error{code_of(asked.answer.refusal),
                                      where_of(goal) + " refused this node: " + asked.answer.text, 0};
    bool again = asked.again;
    const bool occupied =
        asked.answer.refusal == JoinRefusal::kTaken || asked.answer.refusal == JoinRefusal::kFull;
    if (!asked.error && occupied) {
      if (!replaced_by) replaced_by = Clock::now() + kReplaceTime;
      again = Clock::now() < *replaced_by;
    }
    if (!again || Clock::now() + kPause >= deadline) co_return error;
    asked.stream.reset();
    timer.expires_after(kPause);
    co_await timer.async_wait(kUseTuple);
  }
}

Awaitable<error_code> write_line(ByteStream& stream, std::string bytes) {
  std::size_t sent = 0;
  error_code error;
  while (!error && sent < bytes.size()) {
    const auto [failed, count] =
        co_await stream.write_some(asio::buffer(bytes.data() + sent, bytes.size() - sent));
    sent += count;
    error = failed;
  }
  co_return error;
}

Awaitable<Result<std::string>> read_line(ByteStream& stream) {
  std::array<char, kMaxJoinLine> buffer;
  std::size_t size = 0;
  while (size < buffer.size()) {
    const auto [error, count] =
        co_await stream.read_some(asio::buffer(buffer.data() + size, buffer.size() - size));
    const std::string_view all(buffer.data(), size + count);
    size += count;
    const std::size_t newline = all.find('\n');
    if (newline + 1 == size && newline != std::string_view::npos)
      co_return std::string(all.substr(0, newline));
    if (newline != std::string_view::npos)
      co_return Error{ErrorCode::kProtocol, "something came behind the first line", 0};
    if (error) {
      co_return Error{size == 0 ? ErrorCode::kLinkLost : ErrorCode::kProtocol,
                      error == asio::error::eof ? "the link was closed by the far side" : error.message(), 0};
    }
  }
  co_return Error{ErrorCode::kProtocol, "its first line is too long", 0};
}

LinkDeadline::LinkDeadline(const asio::any_io_executor& executor, Clock::time_point at, ByteStream& stream)
    : timer_(executor, at) {
  timer_.async_wait([late = std::weak_ptr<bool>(late_), &stream](const error_code& cancelled) {
    const auto alive = late.lock();
    if (cancelled || !alive) return;
    *alive = true;
    stream.close();
  });
}

}  // namespace ddp::launcher
