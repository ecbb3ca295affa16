#include "rendezvous/link/link_token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/files.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {
namespace {

constexpr std::string_view kVariable = "DDPLAUNCH_TOKEN";
// With 32 random hexadecimal digits, fewer than 8 differ in one of 20 million tokens.
constexpr std::size_t kMinDifferent = 8;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

/// Errors caused by the path are the user's, as with a hostfile; all others are the system's.
Error cannot_open(int error, const std::string& origin) {
  Error failed = system_error(error, origin);
  for (const int of_path : {ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG, EISDIR})
    if (error == of_path) failed.code = ErrorCode::kUsage;
  return failed;
}

/// Returns who else can access the file by its mode, or nullptr if nobody can.
const char* exposure(const struct stat& status) {
  if ((status.st_mode & S_IRWXO) != 0) return "everybody";
  const bool mounted_secret = status.st_uid == 0 && ::geteuid() != 0 && (status.st_mode & S_IWGRP) == 0;
  if ((status.st_mode & S_IRWXG) != 0 && !mounted_secret) return "its group";
  return nullptr;
}

/// Reads the token from an open file. `path` is for the advice in messages.
Result<LinkToken> read_token(int fd, const std::string& origin, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) < 0) return system_error(errno, origin);
  if (!S_ISREG(status.st_mode)) return usage_error(origin, " is not a regular file");
  if (const char* whom = exposure(status)) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(status.st_mode & 07777));
    return usage_error(origin, " may be read by ", whom, " (mode ", mode,
                       "); remove the access of others: chmod 600 ", path,
                       " (in Kubernetes defaultMode: 0400), and make a new token if others use this machine");
  }
  std::array<char, LinkToken::kMaxSize + 16> buffer;
  std::size_t size = 0;
  ssize_t count = 0;
  while (size < buffer.size()) {
    count = ::read(fd, buffer.data() + size, buffer.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  const int failed = count < 0 ? errno : 0;
  const Secret read = Secret::take(buffer.data(), size);
  if (failed != 0) return system_error(failed, origin);
  return make_token(read.reveal(), origin);
}

// Non-blocking, since a FIFO without a writer would block forever.
constexpr int kOpenToken = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

}  // namespace

Result<LinkToken> make_token(std::string_view text, std::string origin) {
  text = trimmed(text);
  if (text.size() < LinkToken::kMinSize) {
    return usage_error(origin, " holds ", counted(text.size(), "character"), "; a token needs at least ",
                       LinkToken::kMinSize, " (openssl rand -hex 32 makes one)");
  }
  if (text.size() > LinkToken::kMaxSize)
    return usage_error(origin, " holds more than 4096 characters; a token has at most 4096");
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
    return usage_error(origin, " holds more than one line: a token is one line of text");
  std::size_t different = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    different += text.find(text[i]) == i ? 1 : 0;
  if (different < kMinDifferent) {
    return usage_error(
        origin, " holds too few different characters to be random (openssl rand -hex 32 makes a token)");
  }
  return LinkToken{Secret(text), std::move(origin)};
}

Result<LinkToken> take_token_from_environment() {
  std::optional<Secret> taken;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    if (!line.starts_with(kVariable) || line.substr(kVariable.size(), 1) != "=") continue;
    const std::size_t name = kVariable.size() + 1;
    Secret copy = Secret::take(*entry + name, line.size() - name);
    if (!taken) taken = std::move(copy);  // the first one, as with getenv
  }
  if (!taken) return LinkToken{};
  ::unsetenv(kVariable.data());
  return make_token(taken->reveal(), std::string(kVariable));
}

Result<LinkToken> read_token_file(const std::string& path) {
  const std::string origin = "the token file " + path;
  const UniqueFd fd(::open(path.c_str(), kOpenToken));
  if (!fd) return cannot_open(errno, origin);
  return read_token(fd.get(), origin, path);
}

Result<LinkToken> read_own_token_file(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string parent = path.substr(0, slash);
  const std::string origin = "the token file " + path;
  const UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return cannot_open(errno, origin);
  // Users who keep their dotfiles elsewhere make the directory a link.
  const auto target = follow_trusted_links(parent);
  if (!target) return usage_error("the directory ", target.error().text);
  if (const std::string why = distrust_directory(*target); !why.empty())
    return usage_error("the directory ", *target, " ", why);
  const UniqueFd fd(::openat(directory.get(), path.c_str() + slash + 1, kOpenToken | O_NOFOLLOW));
  if (!fd && errno == ELOOP) return usage_error(origin, " is a link");
  if (!fd) return cannot_open(errno, origin);
  struct stat status {};
  if (::fstat(fd.get(), &status) < 0) return system_error(errno, origin);
  if (status.st_uid != ::geteuid()) {
    return usage_error(origin, " belongs to uid ", status.st_uid, " and not to you (uid ", ::geteuid(), ")");
  }
  return read_token(fd.get(), origin, path);
}

Result<LinkToken> given_token(const std::string& file, const Result<LinkToken>& given) {
  if (!file.empty()) return read_token_file(file);
  if (!given) return given.error();
  return given->copy();
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
  return usage_error("HOME is not set, so there is no default token file; give --token-file FILE");
}

}  // namespace

Result<LinkToken> find_daemon_token(const std::string& file, const Result<LinkToken>& given) {
  auto token = given_token(file, given);
  if (!token || !token->secret.empty()) return token;
  const auto path = DDP_TRY(default_token_path());
  token = read_token_file(path);
  if (token || token.error().sys != ENOENT) return token;
  return usage_error(
      "there is no token: ", path,
      " does not exist. \"ddplaunchd --new-token\" writes one; copy it to all nodes and to the "
      "machine of ddplaunch (scp -p), or name another file with --token-file FILE");
}

Result<LinkToken> loopback_token() {
  const auto standard = DDP_TRY(default_token_path());
  const std::string path = standard.substr(0, standard.rfind('/')) + "/loopback-token";
  auto token = read_own_token_file(path);
  if (token || token.error().sys != ENOENT) return token;
  DDP_TRY(make_directories(path));
  // Several nodes may start at once; the token of the first one counts.
  const auto written = write_new_token(path);
  if (!written && written.error().sys != EEXIST) return written.error();
  return read_own_token_file(path);
}

Result<std::string> write_new_token(std::string path) {
  if (path.empty()) {
    path = DDP_TRY(default_token_path());
    DDP_TRY(make_directories(path));
  }
  auto digits = DDP_TRY(random_text(32));
  const Secret token = Secret::take(digits.data(), digits.size());
  std::string beside = path + ".XXXXXX";
  const UniqueFd file(::mkostemp(beside.data(), O_CLOEXEC));  // mode 0600
  if (!file) return system_error(errno, "write " + path);
  Result<> written = write_bytes(file.get(), token.reveal(), path);
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

}  // namespace ddp::rendezvous
