#include "launcher/links/daemon_link.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

Awaitable<error_code> DaemonLine::send(std::string frame) {
  while (busy_ && !broken_)
    co_await free_.async_wait(kUseTuple);
  if (broken_) co_return broken_;
  busy_ = true;
  std::string_view rest(frame);
  while (!rest.empty() && !broken_) {
    const auto [error, size] = co_await stream_->write_some(asio::buffer(rest));
    rest.remove_prefix(size);
    if (error && !broken_) broken_ = error;
  }
  busy_ = false;
  free_.cancel();
  co_return broken_;
}

void DaemonLine::close() {
  if (!broken_) broken_ = asio::error::operation_aborted;
  stream_->close();
  free_.cancel();
}

Awaitable<bool> DaemonLine::carry(DaemonFrame kind, LocalSocket& socket) {
  for (;;) {
    const auto [waited] = co_await socket.async_wait(LocalSocket::wait_read, kUseTuple);
    if (waited) co_return true;
    std::string frame(kDaemonFrameHead + kMaxDaemonPayload, '\0');
    const auto [error, size] = co_await socket.async_read_some(
        asio::buffer(frame.data() + kDaemonFrameHead, kMaxDaemonPayload), kUseTuple);
    if (error) co_return true;
    frame.resize(kDaemonFrameHead + size);
    write_daemon_head(kind, size, frame.data());
    const error_code failed = co_await send(std::move(frame));
    if (failed) co_return false;
  }
}

void end_both_directions(LocalSocket& socket) {
  error_code ignored;
  socket.shutdown(LocalSocket::shutdown_both, ignored);
}

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

Result<> make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string directory = path.substr(0, slash);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST && errno != EISDIR)
      return system_error(errno, "make " + directory);
  }
  return {};
}

/// The default path of the token of daemons and their masters: $XDG_CONFIG_HOME/ddplaunch/token, else
/// ~/.config/ddplaunch/token. Error kUsage: no home directory is known.
Result<std::string> default_token_path() {
  const std::string config = variable("XDG_CONFIG_HOME");
  if (config.starts_with('/')) return config + "/ddplaunch/token";
  const std::string home = variable("HOME");
  if (home.starts_with('/')) return home + "/.config/ddplaunch/token";
  return Error{ErrorCode::kUsage,
               "HOME is not set, so there is no default token file; give --token-file FILE"};
}

}  // namespace

Result<rendezvous::LinkToken> loopback_token() {
  const auto standard = default_token_path();
  if (!standard) return standard.error();
  const std::string path = standard->substr(0, standard->rfind('/')) + "/loopback-token";
  auto token = rendezvous::read_own_token_file(path);
  if (token || token.error().sys != ENOENT) return token;
  if (const auto made = make_directories(path); !made) return made.error();
  // Several nodes may start at once; the token of the first one counts.
  const auto written = write_new_token(path);
  if (!written && written.error().sys != EEXIST) return written.error();
  return rendezvous::read_own_token_file(path);
}

Result<rendezvous::LinkToken> find_daemon_token(const std::string& file,
                                                const Result<rendezvous::LinkToken>& given) {
  if (!file.empty()) return rendezvous::read_token_file(file);
  if (!given) return given.error();
  if (!given->secret.empty()) return given->copy();
  const auto path = default_token_path();
  if (!path) return path.error();
  auto token = rendezvous::read_token_file(*path);
  if (token || token.error().sys != ENOENT) return token;
  return Error{ErrorCode::kUsage, "there is no token: " + *path +
                                      " does not exist. \"ddplaunchd --new-token\" writes one; copy it to "
                                      "all nodes and to the machine of ddplaunch (scp -p), or name another "
                                      "file with --token-file FILE"};
}

Result<std::string> write_new_token(std::string path) {
  if (path.empty()) {
    auto standard = default_token_path();
    if (!standard) return standard.error();
    path = std::move(*standard);
    const auto made = make_directories(path);
    if (!made) return made.error();
  }
  const auto token = rendezvous::random_token();
  if (!token) return token.error();
  std::string beside = path + ".XXXXXX";
  const UniqueFd file(::mkostemp(beside.data(), O_CLOEXEC));  // mode 0600
  if (!file) return system_error(errno, "write " + path);
  Result<> written = write_bytes(file.get(), token->secret.reveal(), path);
  if (written) written = write_bytes(file.get(), "\n", path);
  if (written && ::fsync(file.get()) != 0) written = system_error(errno, "write " + path);
  // link() replaces no file, unlike rename().
  if (written && ::link(beside.c_str(), path.c_str()) != 0) {
    written = errno != EEXIST ? system_error(errno, "write " + path)
                              : Error{ErrorCode::kUsage,
                                      path +
                                          " exists already and was not changed; remove it first if no "
                                          "node uses its token",
                                      EEXIST};
  }
  ::unlink(beside.c_str());
  if (!written) return written.error();
  return path;
}

}  // namespace ddp::launcher
