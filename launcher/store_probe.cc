#include "launcher/store_probe.h"

#include <array>
#include <memory>
#include <utility>

namespace ddp::launcher {
namespace {

/// VALIDATE with its magic number, then PING with a nonce (TCPStore protocol, docs/store.md); the answer is
/// the nonce.
constexpr std::array<unsigned char, 10> kGreeting{0, 0xCE, 0xF7, 0x85, 0x3C, 13, 'd', 'd', 'p', '?'};

}  // namespace

Awaitable<Result<>> probe_store(asio::any_io_executor executor, std::string address, std::uint16_t port,
                                std::chrono::milliseconds timeout) {
  const std::string where = address + ":" + std::to_string(port) + ": ";
  error_code error;
  const auto ip = asio::ip::make_address(address, error);
  if (error) co_return Error{ErrorCode::kUnreachable, where + "not an address"};

  // Shared with the timer's handler, which may run once more after this coroutine has gone on.
  auto socket = std::make_shared<asio::ip::tcp::socket>(executor);
  asio::steady_timer timer(executor, timeout);
  const auto on_timeout = [socket](const error_code& cancelled) {
    error_code ignored;
    if (!cancelled) socket->close(ignored);
  };
  timer.async_wait(on_timeout);

  std::tie(error) = co_await socket->async_connect({ip, port}, kUseTuple);
  std::size_t count = 0;
  if (!error)
    std::tie(error, count) = co_await asio::async_write(*socket, asio::buffer(kGreeting), kUseTuple);
  std::array<unsigned char, 4> echo{};
  if (!error) std::tie(error, count) = co_await asio::async_read(*socket, asio::buffer(echo), kUseTuple);
  timer.cancel();
  if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) {
    co_return Error{ErrorCode::kUnreachable, where + "no answer"};
  }
  if (error) co_return Error{ErrorCode::kUnreachable, where + error.message()};
  if (!std::equal(echo.begin(), echo.end(), kGreeting.begin() + 6)) {
    co_return Error{ErrorCode::kUnreachable, where + "something else than this job's store answers there"};
  }
  co_return Result<>{};
}

}  // namespace ddp::launcher
