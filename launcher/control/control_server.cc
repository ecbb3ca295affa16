#include "launcher/control/control_server.h"

#include <sys/socket.h>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ddp::launcher {
namespace {

namespace http = boost::beast::http;
using Local = asio::local::stream_protocol;
using Request = http::request<http::string_body>;
using Reply = http::response<http::string_body>;

constexpr std::chrono::seconds kClientTime{5};
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::uint32_t kHeaderBytes = 8u << 10;
constexpr std::uint64_t kBodyBytes = 4u << 10;

bool may_connect(Local::socket& client, uid_t uid) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(client.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == uid || peer.uid == 0;
}

}  // namespace

struct ControlServer::State {
  State(asio::io_context& loop, int fd, ControlHandlers served, uid_t served_uid)
      : acceptor(loop, Local(), fd),
        client_left(loop, std::chrono::steady_clock::time_point::max()),
        handlers(std::move(served)),
        uid(served_uid) {}

  struct Client {
    explicit Client(Local::socket connected)
        : socket(std::move(connected)), deadline(socket.get_executor()) {}
    Local::socket socket;
    asio::steady_timer deadline;
  };
  using Clients = std::list<Client>;

  Local::acceptor acceptor;
  asio::steady_timer client_left;  ///< cancelled when a client leaves
  ControlHandlers handlers;
  uid_t uid;
  Clients clients;
  bool closed = false;

  Reply answer(const Request& request) const {
    const auto reply = [&request](http::status status, std::string body) {
      Reply made(status, request.version());
      made.set(http::field::content_type, "application/json");
      made.keep_alive(false);
      made.body() = std::move(body);
      made.prepare_payload();
      return made;
    };
    const std::string_view target(request.target().data(), request.target().size());
    const bool stop = target == "/v1/stop" || target == "/v1/stop?now";
    if (!stop && target != "/v1/status") return reply(http::status::not_found, "{}\n");
    if (request.method() != (stop ? http::verb::post : http::verb::get))
      return reply(http::status::method_not_allowed, "{}\n");
    if (!stop) return reply(http::status::ok, handlers.status());
    handlers.stop(target.ends_with("?now"));
    return reply(http::status::accepted, "{}\n");
  }

  static Awaitable<> accept_all(std::shared_ptr<State> self) {
    while (!self->closed) {
      auto [error, socket] = co_await self->acceptor.async_accept(kUseTuple);
      if (self->closed) co_return;
      if (error) {  // too many open files: they may be closed later
        self->client_left.expires_after(kAcceptPause);
        (void)co_await self->client_left.async_wait(kUseTuple);
        continue;
      }
      if (!may_connect(socket, self->uid)) continue;
      self->clients.emplace_front(std::move(socket));
      spawn(self->acceptor.get_executor(), serve(self, self->clients.begin()));
      while (!self->closed && self->clients.size() >= kMostClients) {
        self->client_left.expires_at(std::chrono::steady_clock::time_point::max());
        (void)co_await self->client_left.async_wait(kUseTuple);
      }
    }
  }

  static Awaitable<> serve(std::shared_ptr<State> self, Clients::iterator client) {
    client->deadline.expires_after(kClientTime);
    client->deadline.async_wait([self, client](const error_code& cancelled) {
      error_code ignored;
      if (!cancelled) client->socket.close(ignored);
    });
    boost::beast::flat_buffer buffer(kHeaderBytes + kBodyBytes);
    http::request_parser<http::string_body> parser;
    parser.header_limit(kHeaderBytes);
    parser.body_limit(kBodyBytes);
    const auto [error, size] = co_await http::async_read(client->socket, buffer, parser, kUseTuple);
    if (!error && !self->closed) {
      const Reply reply = self->answer(parser.get());
      if (!self->closed) (void)co_await http::async_write(client->socket, reply, kUseTuple);
    }
    client->deadline.cancel();
    co_await asio::post(client->socket.get_executor(), asio::use_awaitable);  // after the timer's handler
    self->clients.erase(client);
    self->client_left.cancel();
  }
};

ControlServer::ControlServer(asio::io_context& loop, ControlSocket socket, ControlHandlers handlers,
                             uid_t uid)
    : socket_(std::move(socket)),
      state_(std::make_shared<State>(loop, socket_.release(), std::move(handlers), uid)) {
  spawn(loop.get_executor(), State::accept_all(state_));
}

ControlServer::~ControlServer() {
  close();
}

void ControlServer::close() {
  error_code ignored;
  state_->closed = true;
  state_->acceptor.close(ignored);
  state_->client_left.cancel();
  for (State::Client& client : state_->clients)
    client.socket.close(ignored);
}

}  // namespace ddp::launcher
