// The socket's file; the client, which is one short run of a loop of its own; and the server, on the master's
// loop.
#include "launcher/control/control_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "base/asio.h"
#include "base/files.h"

namespace ddp::launcher {
namespace {

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
  const auto directory = socket_directory();
  if (!directory) return directory.error();
  const std::string path = *directory + '/' + name + ".sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return system_error(ENAMETOOLONG, path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return system_error(errno, "socket");
  ::unlink(path.c_str());  // the names of runs are unique, so nobody listens there
  const auto* const name_of_socket = reinterpret_cast<const sockaddr*>(&address);
  for (int tries = 1; ::bind(fd.get(), name_of_socket, sizeof address) != 0; ++tries) {
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
  // sun_path has 108 bytes with its end (unix(7)).
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

namespace {

namespace http = boost::beast::http;
using OrderedJson = nlohmann::ordered_json;
using Local = asio::local::stream_protocol;
using Request = http::request<http::string_body>;
using Reply = http::response<http::string_body>;

constexpr std::chrono::seconds kClientTime{5};
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::uint32_t kHeaderBytes = 8u << 10;
constexpr std::uint64_t kBodyBytes = 64u << 10;
constexpr std::uint64_t kMostTimeMs = 3'600'000;  // of a request about workers

std::optional<ucred> peer_of(Local::socket& client) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(client.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

Reply make_reply(const Request& request, http::status status, std::string body,
                 const char* type = "application/json") {
  Reply made(status, request.version());
  made.set(http::field::content_type, type);
  made.keep_alive(false);
  made.body() = std::move(body);
  made.prepare_payload();
  return made;
}

std::string reply_json(const WorkerReply& reply) {
  OrderedJson ranks = OrderedJson::array();
  for (const WorkerReply::Text& text : reply.texts)
    ranks.push_back({{"rank", text.rank}, {"node", text.node}, {"text", text.text}});
  const OrderedJson json{
      {"ranks", std::move(ranks)}, {"exit_code", reply.exit_code}, {"troubles", reply.troubles}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

/// A request that is answered later. The client and the owner of the job share it.
struct WaitingClient {
  explicit WaitingClient(const asio::any_io_executor& executor)
      : changed(executor, std::chrono::steady_clock::time_point::max()) {}
  asio::steady_timer changed;  ///< cancelled when one of these is set
  std::optional<WorkerReply> reply;
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
  State(asio::io_context& loop, int fd, ControlHandlers served, uid_t served_uid)
      : acceptor(loop, Local(), fd),
        client_left(loop, std::chrono::steady_clock::time_point::max()),
        handlers(std::move(served)),
        uid(served_uid) {}

  struct Client {
    Client(Local::socket connected, const ucred& process)
        : socket(std::move(connected)), peer(process), deadline(socket.get_executor()) {}
    Local::socket socket;
    ucred peer;
    asio::steady_timer deadline;
    bool done = false;
  };
  using Clients = std::list<Client>;

  Local::acceptor acceptor;
  asio::steady_timer client_left;  ///< cancelled when a client leaves
  ControlHandlers handlers;
  uid_t uid;
  Clients clients;
  std::size_t waiting = 0;  ///< clients whose request is about workers
  bool closed = false;

  /// Counts a client that waits for workers. It holds no place of others.
  struct WaitingSlot {
    explicit WaitingSlot(State& state) : of(state) {
      ++of.waiting;
      of.client_left.cancel();
    }
    ~WaitingSlot() { --of.waiting; }
    WaitingSlot(const WaitingSlot&) = delete;
    WaitingSlot& operator=(const WaitingSlot&) = delete;
    State& of;
  };

  Reply answer(const Request& request, const ucred& peer) const {
    const std::string_view target(request.target().data(), request.target().size());
    const bool stop = target == "/v1/stop" || target == "/v1/stop?now";
    const bool metrics = target == "/metrics";
    if (!stop && !metrics && target != "/v1/status")
      return make_reply(request, http::status::not_found, "{}\n");
    if (request.method() != (stop ? http::verb::post : http::verb::get))
      return make_reply(request, http::status::method_not_allowed, "{}\n");
    if (metrics)
      return make_reply(request, http::status::ok, handlers.metrics(), "text/plain; version=0.0.4");
    if (!stop) return make_reply(request, http::status::ok, handlers.status());
    handlers.stop(target.ends_with("?now"), peer.pid, peer.uid);
    return make_reply(request, http::status::accepted, "{}\n");
  }

  static bool is_about_workers(const Request& request) {
    return request.target() == "/v1/exec" || request.target() == "/v1/stacks";
  }

  /// Returns nothing if the client does not wait for the answer.
  static Awaitable<std::optional<Reply>> ask_workers(std::shared_ptr<State> self, Clients::iterator client,
                                                     Request request) {
    if (request.method() != http::verb::post)
      co_return make_reply(request, http::status::method_not_allowed, "{}\n");
    const auto wanted = parse_worker_request(request.body());
    if (!wanted || wanted->argv.empty() == (request.target() == "/v1/exec"))
      co_return make_reply(request, http::status::bad_request, "{}\n");
    if (self->waiting >= kMostWaiting)
      co_return make_reply(request, http::status::service_unavailable, "{}\n");
    const WaitingSlot slot(*self);
    // The request has its own time now (WorkerRequest::timeout), and the client's end cancels it.
    client->deadline.expires_at(std::chrono::steady_clock::time_point::max());
    const auto waiting = std::make_shared<WaitingClient>(self->acceptor.get_executor());
    const ControlHandlers::WorkersAnswered done = [waiting](WorkerReply reply) {
      waiting->reply = std::move(reply);
      waiting->changed.cancel();
    };
    const std::uint32_t number = self->handlers.ask_workers(*wanted, done);
    // A client sends nothing more, so this read ends only when the client has gone, which cancels its
    // request.
    client->socket.async_read_some(asio::buffer(&waiting->byte, 1), [waiting](error_code, std::size_t) {
      waiting->gone = true;
      waiting->changed.cancel();
    });
    if (!waiting->reply) (void)co_await waiting->changed.async_wait(kUseTuple);
    if (!waiting->reply) {
      self->handlers.cancel(number);
      co_return std::nullopt;
    }
    error_code ignored;
    // The read must have ended before the reply is written, because its handler holds memory of this request.
    client->socket.cancel(ignored);
    while (!waiting->gone)
      (void)co_await waiting->changed.async_wait(kUseTuple);
    client->deadline.expires_after(kClientTime);
    co_return make_reply(request, http::status::ok, reply_json(*waiting->reply));
  }

  /// Ends the connection of a client that is late. Its deadline may change.
  static void watch(std::shared_ptr<State> self, Clients::iterator client) {
    client->deadline.async_wait([self, client](const error_code&) {
      error_code ignored;
      if (client->done) return;
      if (client->deadline.expiry() > std::chrono::steady_clock::now()) return watch(self, client);
      client->socket.close(ignored);
    });
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
      const auto peer = peer_of(socket);
      // Checked beside the modes of directory and socket (decision 0028).
      if (!peer || (peer->uid != self->uid && peer->uid != 0)) continue;
      // A list, whose iterators stay valid while other clients come and go.
      self->clients.emplace_front(std::move(socket), *peer);
      spawn(self->acceptor.get_executor(), serve(self, self->clients.begin()));
      while (!self->closed && self->clients.size() - self->waiting >= kMostClients) {
        self->client_left.expires_at(std::chrono::steady_clock::time_point::max());
        (void)co_await self->client_left.async_wait(kUseTuple);
      }
    }
  }

  static Awaitable<> serve(std::shared_ptr<State> self, Clients::iterator client) {
    client->deadline.expires_after(kClientTime);
    watch(self, client);
    boost::beast::flat_buffer buffer(kHeaderBytes + kBodyBytes);
    http::request_parser<http::string_body> parser;
    parser.header_limit(kHeaderBytes);
    parser.body_limit(kBodyBytes);
    const auto [error, size] = co_await http::async_read(client->socket, buffer, parser, kUseTuple);
    if (!error && !self->closed) {
      std::optional<Reply> reply;
      if (is_about_workers(parser.get()))
        reply = co_await ask_workers(self, client, parser.get());
      else
        reply = self->answer(parser.get(), client->peer);
      if (reply && !self->closed) (void)co_await http::async_write(client->socket, *reply, kUseTuple);
    }
    client->done = true;
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
