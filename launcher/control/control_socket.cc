#include "launcher/control/control_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

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
    if (const auto made = make_private(directory); !made) return made.error();
    directory += '/' + std::string(kRunDirectory);
  }
  if (const auto made = make_private(directory); !made) return made.error();
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
    if (const auto again = socket_directory(); !again) return again.error();
  }
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
