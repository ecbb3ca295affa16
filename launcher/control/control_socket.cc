// The socket's file; the client, which is one short run of a loop of its own; and the server, on the master's
// loop.
#include "launcher/control/control_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "base/asio.h"
#include "base/files.h"
#include "launcher/control/http_server.h"
#include "launcher/report/report_json.h"

namespace ddp::launcher {
namespace {

namespace http = boost::beast::http;
using Local = asio::local::stream_protocol;

/// sun_path has 108 bytes with its end (unix(7)).
constexpr std::size_t kMostPath = 107;

/// Directory of the sockets in that of the user below TMPDIR.
constexpr std::string_view kRunDirectory = "run";

constexpr int kMostTries = 5;

std::string absolute_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value == '/' ? value : "";
}

Result<> make_private(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return system_error(errno, "make " + directory);
  if (const std::string why = distrust_directory(directory); !why.empty())
    return Error{ErrorCode::kUsage, directory + ' ' + why};
  return {};
}

/// Returns the directory of the sockets, which exists.
Result<std::string> socket_directory() {
  std::string directory = absolute_variable("XDG_RUNTIME_DIR");
  if (!directory.empty() && ::access(directory.c_str(), W_OK | X_OK) == 0) {
    directory += "/ddplaunch";
  } else {
    directory = absolute_variable("TMPDIR");
    directory = (directory.empty() ? "/tmp" : directory) + "/ddplaunch-" + std::to_string(::geteuid());
    DDP_TRY(make_private(directory));
    directory += '/' + std::string(kRunDirectory);
  }
  DDP_TRY(make_private(directory));
  return directory;
}

}  // namespace

Result<ControlSocket> ControlSocket::bind(const std::string& name) {
  const std::string directory = DDP_TRY(socket_directory());
  const std::string path = directory + '/' + name + ".sock";
  if (path.size() > kMostPath) return system_error(ENAMETOOLONG, path);
  const Local::endpoint address(path);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return system_error(errno, "socket");
  ::unlink(path.c_str());  // the names of runs are unique, so nobody listens there
  const auto size = static_cast<socklen_t>(address.size());
  for (int tries = 1; ::bind(fd.get(), address.data(), size) != 0; ++tries) {
    if (errno != ENOENT || tries == kMostTries) return system_error(errno, path);
    // Another job that ended has removed the empty directory.
    DDP_TRY(socket_directory());
  }
  // From here on the destructor removes the file, whatever fails.
  ControlSocket socket(std::move(fd), path);
  // Nobody can connect before listen.
  if (::chmod(path.c_str(), 0600) != 0) return system_error(errno, path);
  if (::listen(socket.fd_.get(), 16) != 0) return system_error(errno, path);
  return socket;
}

ControlSocket::ControlSocket(ControlSocket&& other) noexcept
    : fd_(std::move(other.fd_)), path_(std::exchange(other.path_, {})) {}

ControlSocket::~ControlSocket() {
  if (path_.empty()) return;
  ::unlink(path_.c_str());
  const std::filesystem::path directory = std::filesystem::path(path_).parent_path();
  // rmdir fails while another job has a socket there, so the last one removes the directory.
  if (::rmdir(directory.c_str()) == 0 && directory.filename() == kRunDirectory)
    ::rmdir(directory.parent_path().c_str());
}

namespace {

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
  if (socket.empty() || socket.size() > kMostPath)
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
    const Error late = exchange.reply.error();
    loop.run();
    return late;
  }
  return std::move(exchange.reply);
}

namespace {

constexpr std::chrono::seconds kClientTime{5};
constexpr HttpServer::Limits kLimits{16, kClientTime, 64u << 10};
constexpr std::uint64_t kMostTimeMs = 3'600'000;  // of a request about workers

std::optional<ucred> peer_of(HttpClient::Socket& client) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(client.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

HttpReply make_reply(const HttpRequest& request, http::status status, std::string body = "{}\n",
                     const char* type = "application/json") {
  return http_reply(request, status, std::move(body), type);
}

std::string reply_json(const WorkerReply& reply) {
  OrderedJson ranks = OrderedJson::array();
  for (const WorkerReply::Text& text : reply.texts)
    ranks.push_back({{"rank", text.rank}, {"node", text.node}, {"text", text.text}});
  const OrderedJson json{{"format", 1},
                         {"ranks", std::move(ranks)},
                         {"exit_code", reply.exit_code},
                         {"troubles", reply.troubles}};
  return json_line(json);
}

/// A request that is answered later. The client and the owner of the job share it.
struct WaitingClient {
  explicit WaitingClient(const asio::any_io_executor& executor)
      : changed(executor, std::chrono::steady_clock::time_point::max()) {}
  asio::steady_timer changed;  ///< cancelled when one of these is set
  std::optional<std::string> reply;
  bool gone = false;
  char byte = 0;
};

}  // namespace

std::optional<WorkerRequest> parse_worker_request(const std::string& body) {
  const OrderedJson json = OrderedJson::parse(body.empty() ? "{}" : body, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  WorkerRequest request;
  for (const auto& [key, value] : json.items()) {
    if (key == "argv" && value.is_array()) {
      for (const OrderedJson& word : value) {
        // A word with a NUL would be cut.
        if (!word.is_string() || word.get_ref<const std::string&>().find('\0') != std::string::npos)
          return std::nullopt;
        request.argv.push_back(word.get<std::string>());
      }
    } else if (key == "rank" && value.is_number_unsigned() &&
               value.get<std::uint64_t>() <= ~std::uint32_t{0}) {
      request.rank = value.get<std::uint32_t>();
    } else if (key == "timeout_ms" && value.is_number_unsigned() &&
               value.get<std::uint64_t>() <= kMostTimeMs) {
      request.timeout = std::chrono::milliseconds(value.get<std::uint64_t>());
    } else {
      return std::nullopt;
    }
  }
  return request;
}

struct ControlServer::State {
  asio::any_io_executor executor;
  ControlHandlers handlers;
  uid_t uid;
  std::optional<HttpServer> server = {};
  std::size_t waiting = 0;  ///< clients whose request is about workers

  struct WaitingSlot {
    explicit WaitingSlot(State& state) : of(state) { ++of.waiting; }
    ~WaitingSlot() { --of.waiting; }
    WaitingSlot(const WaitingSlot&) = delete;
    WaitingSlot& operator=(const WaitingSlot&) = delete;
    State& of;
  };

  HttpReply answer(const HttpRequest& request, const ucred& peer) const {
    const std::string_view target(request.target().data(), request.target().size());
    const bool stop = target == "/v1/stop" || target == "/v1/stop?now";
    const bool metrics = target == "/metrics";
    if (!stop && !metrics && target != "/v1/status") return make_reply(request, http::status::not_found);
    if (request.method() != (stop ? http::verb::post : http::verb::get))
      return make_reply(request, http::status::method_not_allowed);
    if (metrics)
      return make_reply(request, http::status::ok, handlers.metrics(), "text/plain; version=0.0.4");
    if (!stop) return make_reply(request, http::status::ok, handlers.status());
    handlers.stop(target.ends_with("?now"), peer.pid, peer.uid);
    return make_reply(request, http::status::accepted);
  }

  static bool is_about_workers(const HttpRequest& request) {
    return request.target() == "/v1/exec" || request.target() == "/v1/stacks" ||
           request.target() == "/v1/hang";
  }

  /// Returns nothing if the client does not wait for the answer.
  static Awaitable<std::optional<HttpReply>> ask_workers(std::shared_ptr<State> self, HttpClient& client) {
    const HttpRequest& request = client.request;
    if (request.method() != http::verb::post) co_return make_reply(request, http::status::method_not_allowed);
    const bool hang = request.target() == "/v1/hang";
    const auto wanted = parse_worker_request(request.body());
    if (!wanted || wanted->argv.empty() == (request.target() == "/v1/exec"))
      co_return make_reply(request, http::status::bad_request);
    if (self->waiting >= kMostWaiting) co_return make_reply(request, http::status::service_unavailable);
    const WaitingSlot slot(*self);
    client.let_stay();  // the request has its own time now (WorkerRequest::timeout)
    const auto waiting = std::make_shared<WaitingClient>(self->executor);
    const ControlHandlers::HangAnswered answered = [waiting](const std::string& reply) {
      waiting->reply = reply;
      waiting->changed.cancel();
    };
    const ControlHandlers::WorkersAnswered done = [answered](const WorkerReply& reply) {
      answered(reply_json(reply));
    };
    std::uint32_t number = 0;
    if (hang)
      self->handlers.ask_hang(answered);
    else
      number = self->handlers.ask_workers(*wanted, done);
    // A client sends nothing more, so this read ends only when the client has gone, which cancels its
    // request.
    client.socket.async_read_some(asio::buffer(&waiting->byte, 1), [waiting](error_code, std::size_t) {
      waiting->gone = true;
      waiting->changed.cancel();
    });
    if (!waiting->reply) (void)co_await waiting->changed.async_wait(kUseTuple);
    if (!waiting->reply) {
      if (!hang) self->handlers.cancel(number);
      co_return std::nullopt;
    }
    error_code ignored;
    // The read must have ended before the reply is written, because its handler holds memory of this request.
    client.socket.cancel(ignored);
    while (!waiting->gone)
      (void)co_await waiting->changed.async_wait(kUseTuple);
    client.close_after(kClientTime);
    co_return make_reply(request, http::status::ok, std::move(*waiting->reply));
  }

  static Awaitable<std::optional<HttpReply>> serve(std::shared_ptr<State> self, HttpClient& client) {
    const auto peer = peer_of(client.socket);
    // Checked beside the modes of directory and socket (decision 0028).
    if (!peer || (peer->uid != self->uid && peer->uid != 0)) co_return std::nullopt;
    if (!is_about_workers(client.request)) co_return self->answer(client.request, *peer);
    co_return co_await ask_workers(self, client);
  }
};

ControlServer::ControlServer(asio::io_context& loop, ControlSocket socket, ControlHandlers handlers,
                             uid_t uid)
    : socket_(std::move(socket)),
      state_(std::make_shared<State>(State{loop.get_executor(), std::move(handlers), uid})) {
  rendezvous::TcpListener listener;
  listener.fds.emplace_back(socket_.release());
  const std::weak_ptr<State> weak = state_;  // which owns the server, and so this handler
  auto server = HttpServer::start(loop.get_executor(), std::move(listener), kLimits,
                                  [weak](HttpClient& client) { return State::serve(weak.lock(), client); });
  // Without memory for one more descriptor nobody can ask the job, which runs on.
  if (server) state_->server.emplace(std::move(*server));
}

ControlServer::~ControlServer() {
  close();
}

void ControlServer::close() {
  if (state_->server) state_->server->close();
}

}  // namespace ddp::launcher
