#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/asio.h"
#include "base/result.h"
#include "rendezvous/link/tcp_listener.h"

namespace ddp::launcher {

using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;
using HttpReply = boost::beast::http::response<boost::beast::http::string_body>;

HttpReply http_reply(const HttpRequest& request, boost::beast::http::status status, std::string body,
                     const char* type);

/// Listens at `address`, numeric or a name (its first address), and `port` (0: any). Blocks up to 5 s for the
/// name service. Errors: kUsage, it is no address of this machine, or no name; kSystem.
struct HttpListener {
  rendezvous::TcpListener listener;
  asio::ip::address address;
};
Result<HttpListener> listen_http(const std::string& address, std::uint16_t port);

/// A connection whose request was read.
struct HttpClient {
  /// TCP as well: what is done with a connected stream does not depend on its family.
  using Socket = asio::local::stream_protocol::socket;

  explicit HttpClient(const asio::any_io_executor& executor) : socket(executor), deadline(executor) {}
  /// The connection is closed when this time is over, unless it is given another one.
  void close_after(std::chrono::steady_clock::duration time) { deadline.expires_after(time); }
  /// It may stay as long as it likes, and takes no place of others. Its handler limits how many do.
  void let_stay();

  Socket socket;
  HttpRequest request;
  asio::steady_timer deadline;  ///< it may change at any time
  std::function<void()> stays;  ///< set while it takes a place
  bool is_done = false;
};

/// Serves HTTP/1.1 over TCP or a Unix socket, one request for each connection. A client that is slow, or
/// sends no request, or one that is too long, only holds its own connection until its time is over. All calls
/// and handlers on the executor's thread.
class HttpServer {
 public:
  struct Limits {
    std::size_t clients = 16;       ///< further ones wait
    std::chrono::seconds time{10};  ///< for a request and its reply
    std::uint64_t body_bytes = 0;   ///< of a request
  };
  /// Returns the reply; nothing: it has written all itself, or nobody waits for a reply. The client lives
  /// until then. It is not called after close().
  using Handler = std::function<Awaitable<std::optional<HttpReply>>(HttpClient& client)>;

  static Result<HttpServer> start(const asio::any_io_executor& executor, rendezvous::TcpListener listener,
                                  Limits limits, Handler handler);
  HttpServer(HttpServer&&) noexcept = default;
  HttpServer& operator=(HttpServer&&) = delete;
  ~HttpServer();

  /// Closes the port and all connections, so that no work is left on the loop. Safe to call twice.
  void close();

 private:
  struct State;
  explicit HttpServer(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Serves the metrics of a job over HTTP (`GET /metrics`) to everybody who reaches the address. Strangers may
/// ask as often as they like, so a thread of its own answers with the text that was published last: the loop
/// that holds the leases of the nodes only hands it over.
class MetricsServer {
 public:
  /// Listens there (listen_http), and starts the thread.
  static Result<MetricsServer> listen(const std::string& address, std::uint16_t port);
  MetricsServer(MetricsServer&&) noexcept;
  MetricsServer& operator=(MetricsServer&&) = delete;
  /// Ends the thread and its connections.
  ~MetricsServer();

  std::uint16_t port() const;
  /// Before the first call requests get 503. Thread-safe; never waits for a client.
  void publish(std::string text);

 private:
  struct State;
  explicit MetricsServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ddp::launcher
