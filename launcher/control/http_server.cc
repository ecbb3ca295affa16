#include "launcher/control/http_server.h"

#include <sys/socket.h>

#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "base/program.h"
#include "remote/start/resolver.h"

namespace ddp::launcher {
namespace {

namespace http = boost::beast::http;

constexpr std::uint32_t kHeaderBytes = 8u << 10;
constexpr std::chrono::seconds kNameTime{5};

}  // namespace

HttpReply http_reply(const HttpRequest& request, http::status status, std::string body, const char* type) {
  HttpReply made(status, request.version());
  made.set(http::field::content_type, type);
  made.keep_alive(false);
  made.body() = std::move(body);
  made.prepare_payload();
  return made;
}

Result<HttpListener> listen_http(const std::string& address, std::uint16_t port) {
  error_code is_name;
  HttpListener made{{}, asio::ip::make_address(address, is_name)};
  if (is_name) {
    const auto deadline = std::chrono::steady_clock::now() + kNameTime;
    auto found = remote::find_addresses(address, AF_UNSPEC, deadline);
    if (!found)
      return Error{ErrorCode::kUsage,
                   address + ": " + found.error().text + "; give an address of this machine"};
    made.address = found->front();
  }
  made.listener = DDP_TRY(rendezvous::listen_tcp_at(made.address.to_string(), port));
  return made;
}

void HttpClient::let_stay() {
  deadline.expires_at(std::chrono::steady_clock::time_point::max());
  if (const auto free_place = std::exchange(stays, nullptr)) free_place();
}

struct HttpServer::State {
  using Clients = std::list<HttpClient>;  // its iterators stay valid while other clients come and go

  asio::any_io_executor executor;
  Limits limits;
  Handler handler;
  std::shared_ptr<rendezvous::AcceptLoop> accept = nullptr;
  Clients clients = {};
  std::size_t places = 0;  ///< that clients take
  bool closed = false;

  void take_place(int change) {
    places += static_cast<std::size_t>(change);
    if (closed) return;
    places < limits.clients ? accept->resume() : accept->pause();
  }

  static void add_client(const std::shared_ptr<State>& self, UniqueFd connection) {
    HttpClient& client = self->clients.emplace_front(self->executor);
    error_code failed;
    client.socket.assign(asio::local::stream_protocol(), connection.get(), failed);
    if (failed) return self->clients.pop_front();
    connection.release();
    client.stays = [server = self.get()] { server->take_place(-1); };
    self->take_place(1);
    spawn(self->executor, serve(self, self->clients.begin()));
  }

  static void watch(std::shared_ptr<State> self, Clients::iterator client) {
    client->deadline.async_wait([self, client](const error_code&) {
      error_code ignored;
      if (client->is_done) return;
      if (client->deadline.expiry() > std::chrono::steady_clock::now()) return watch(self, client);
      client->socket.close(ignored);
    });
  }

  static Awaitable<> serve(std::shared_ptr<State> self, Clients::iterator client) {
    client->close_after(self->limits.time);
    watch(self, client);
    boost::beast::flat_buffer buffer(kHeaderBytes + self->limits.body_bytes);
    http::request_parser<http::string_body> parser;
    parser.header_limit(kHeaderBytes);
    parser.body_limit(self->limits.body_bytes);
    const auto [error, size] = co_await http::async_read(client->socket, buffer, parser, kUseTuple);
    error_code ignored;
    if (!error && !self->closed) {
      client->request = parser.release();
      const std::optional<HttpReply> reply = co_await self->handler(*client);
      if (reply && !self->closed) (void)co_await http::async_write(client->socket, *reply, kUseTuple);
      client->socket.shutdown(HttpClient::Socket::shutdown_send, ignored);
    }
    client->is_done = true;
    client->deadline.cancel();
    co_await asio::post(self->executor, asio::use_awaitable);  // after the timer's handler
    if (client->stays) self->take_place(-1);
    self->clients.erase(client);
    if (!self->closed) self->accept->descriptor_freed();
  }
};

Result<HttpServer> HttpServer::start(const asio::any_io_executor& executor, rendezvous::TcpListener listener,
                                     Limits limits, Handler handler) {
  const auto state = std::make_shared<State>(State{executor, limits, std::move(handler)});
  // The loop is in the state, so it must not own it: close() ends both.
  const std::weak_ptr<State> weak = state;
  state->accept = DDP_TRY(rendezvous::AcceptLoop::start(
      executor, std::move(listener), [weak](UniqueFd connection, const asio::ip::address&) {
        if (const auto self = weak.lock()) State::add_client(self, std::move(connection));
      }));
  return HttpServer(state);
}

HttpServer::~HttpServer() {
  close();
}

void HttpServer::close() {
  if (!state_ || std::exchange(state_->closed, true)) return;
  error_code ignored;
  state_->accept->stop();
  for (HttpClient& client : state_->clients)
    client.socket.close(ignored);
}

// ---- metrics

struct MetricsServer::State {
  asio::io_context loop{1};
  std::uint16_t port = 0;
  std::mutex mutex;
  std::shared_ptr<const std::string> text;  ///< null: nothing was published
  std::optional<HttpServer> server;
  std::thread thread;

  static Awaitable<std::optional<HttpReply>> answer(State* self, const HttpRequest& request) {
    std::shared_ptr<const std::string> latest;
    {
      const std::lock_guard lock(self->mutex);
      latest = self->text;
    }
    const http::status status = request.target() != "/metrics"        ? http::status::not_found
                                : request.method() != http::verb::get ? http::status::method_not_allowed
                                : !latest                             ? http::status::service_unavailable
                                                                      : http::status::ok;
    co_return http_reply(request, status, status == http::status::ok ? *latest : "",
                         "text/plain; version=0.0.4");
  }
};

MetricsServer::MetricsServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

MetricsServer::MetricsServer(MetricsServer&&) noexcept = default;

Result<MetricsServer> MetricsServer::listen(const std::string& address, std::uint16_t port) {
  auto place = DDP_TRY(listen_http(address, port));
  auto state = std::make_unique<State>();
  state->port = place.listener.port;
  const HttpServer::Handler handler = [served = state.get()](HttpClient& client) {
    return State::answer(served, client.request);
  };
  state->server.emplace(
      DDP_TRY(HttpServer::start(state->loop.get_executor(), std::move(place.listener), {}, handler)));
  state->thread = DDP_TRY(start_thread([served = state.get()] { served->loop.run(); }));
  return MetricsServer(std::move(state));
}

MetricsServer::~MetricsServer() {
  if (!state_ || !state_->thread.joinable()) return;
  asio::post(state_->loop, [served = state_.get()] { served->server->close(); });
  state_->thread.join();
}

std::uint16_t MetricsServer::port() const {
  return state_->port;
}

void MetricsServer::publish(std::string text) {
  auto latest = std::make_shared<const std::string>(std::move(text));
  const std::lock_guard lock(state_->mutex);
  state_->text.swap(latest);
}

}  // namespace ddp::launcher
