#include "launcher/links/join_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/format_text.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// The time for the answer of a master that has accepted the link.
constexpr std::chrono::seconds kAnswerTime{10};
/// The time until a master misses the process that this one replaces; it relies on heartbeats.
constexpr std::chrono::seconds kReplaceTime{6};
constexpr std::chrono::milliseconds kPause{500};

/// One link, and the master's answer. `again`: no answer arrived, so the caller may try again.
struct JoinReply {
  std::unique_ptr<ByteStream> stream;
  JoinAnswer answer;
  std::optional<Error> error;
  bool again = false;
};

Awaitable<JoinReply> ask(std::shared_ptr<const rendezvous::SecureContext> context,
                         const rendezvous::Resolve& resolve, const JoinGoal& goal,
                         Clock::time_point deadline) {
  JoinReply reply;
  auto stream =
      co_await rendezvous::secure_join(std::move(context), resolve, goal.host, goal.port, goal.as, deadline);
  if (!stream) {
    reply.error = stream.error();
    co_return reply;
  }
  reply.stream = std::move(*stream);
  const auto executor = co_await asio::this_coro::executor;
  const LinkDeadline limit(executor, std::min(deadline, Clock::now() + kAnswerTime), *reply.stream);
  const error_code unsaid = co_await write_line(*reply.stream, request_line(goal.request));
  auto line = co_await read_line(*reply.stream);
  if (!line) {
    reply.again = unsaid || limit.late() || line.error().code == ErrorCode::kLinkLost;
    reply.error = Error{limit.late() ? ErrorCode::kTimeout : line.error().code,
                        format_endpoint(goal.host, goal.port) + " accepted the link but assigned no slot: " +
                            (limit.late() ? std::string("it did not answer in time") : line.error().text),
                        0};
    co_return reply;
  }
  auto answer = parse_answer(*line);
  if (answer)
    reply.answer = std::move(*answer);
  else
    reply.error = within(format_endpoint(goal.host, goal.port), answer.error());
  co_return reply;
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
    JoinReply reply = co_await ask(context, resolve, goal, deadline);
    if (!reply.error && reply.answer.rank) {
      JoinedLink link;
      link.stream = std::move(reply.stream);
      link.rank = *reply.answer.rank;
      link.job_id = std::move(reply.answer.job_id);
      co_return link;
    }
    Error error =
        reply.error
            ? *reply.error
            : Error{code_of(reply.answer.refusal),
                    format_endpoint(goal.host, goal.port) + " refused this node: " + reply.answer.text, 0};
    bool again = reply.again;
    const bool occupied =
        reply.answer.refusal == JoinRefusal::kTaken || reply.answer.refusal == JoinRefusal::kFull;
    if (!reply.error && occupied) {
      if (!replaced_by) replaced_by = Clock::now() + kReplaceTime;
      again = Clock::now() < *replaced_by;
    }
    if (!again || Clock::now() + kPause >= deadline) co_return error;
    reply.stream.reset();
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
      co_return Error{ErrorCode::kProtocol, "unexpected data after the first line", 0};
    if (error) {
      co_return Error{size == 0 ? ErrorCode::kLinkLost : ErrorCode::kProtocol,
                      error == asio::error::eof ? "the other side closed the connection" : error.message(),
                      0};
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
