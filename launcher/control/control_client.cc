#include "launcher/control/control_client.h"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <string_view>
#include <utility>

#include "base/asio.h"

namespace ddp::launcher {
namespace {

namespace http = boost::beast::http;
using Local = asio::local::stream_protocol;

struct Exchange {
  Local::socket socket;
  http::request<http::string_body> request;
  Result<std::string> reply = Error{ErrorCode::kTimeout, "its ddplaunch does not answer"};

  static Awaitable<> run(Exchange* self, std::string path) {
    const auto [unreachable] = co_await self->socket.async_connect(Local::endpoint(path), kUseTuple);
    if (unreachable) {
      self->reply = system_error(unreachable.value(), path, ErrorCode::kUnreachable);
      co_return;
    }
    const auto [unsent, sent] = co_await http::async_write(self->socket, self->request, kUseTuple);
    boost::beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(64u << 20);
    const auto [unread, size] = co_await http::async_read(self->socket, buffer, parser, kUseTuple);
    const error_code failed = unsent ? unsent : unread;
    if (failed) {
      self->reply = Error{ErrorCode::kProtocol, path + ": " + failed.message()};
    } else if (parser.get().result_int() >= 300) {
      self->reply = Error{ErrorCode::kProtocol, path + ": HTTP " + std::to_string(parser.get().result_int())};
    } else {
      self->reply = std::move(parser.get().body());
    }
  }
};

}  // namespace

Result<std::string> ask_job(const std::string& socket, const std::string& method, const std::string& target,
                            std::chrono::milliseconds limit, std::string body) {
  if (socket.empty() || socket.size() > 107)
    return Error{ErrorCode::kUnreachable, "it has no control socket"};
  asio::io_context loop(1);
  Exchange exchange{Local::socket(loop), {http::string_to_verb(method), target, 11, std::move(body)}};
  exchange.request.set(http::field::host, "ddplaunch");
  exchange.request.keep_alive(false);
  exchange.request.prepare_payload();
  spawn(loop.get_executor(), Exchange::run(&exchange, socket));
  loop.run_for(limit);
  if (!loop.stopped()) {  // the task must end before its objects
    error_code ignored;
    exchange.socket.close(ignored);
    Result<std::string> late = Error{ErrorCode::kTimeout, "its ddplaunch does not answer"};
    loop.run();
    return late;
  }
  return std::move(exchange.reply);
}

}  // namespace ddp::launcher
