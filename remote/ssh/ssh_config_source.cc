#include "remote/ssh/ssh_config_source.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/parse_text.h"
#include "base/unique_fd.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/shells/child_channel.h"

namespace ddp::remote {
namespace {

constexpr int kMostAtOnce = 8;
constexpr int kDeepestInclude = 16;  // ssh's own limit
constexpr std::size_t kMostOutput = std::size_t{1} << 20;

bool is_pipe(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::is_fifo(path, unknown);
}

std::vector<std::string> glob_paths(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i)
      paths.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return paths;
}

/// Reads at most about kMostOutput; longer output is no configuration.
Awaitable<std::string> read_to_end(Channel::Socket& socket) {
  std::string text;
  std::array<char, 8192> buffer;
  for (;;) {
    const auto [error, size] = co_await socket.async_read_some(asio::buffer(buffer), kUseTuple);
    text.append(buffer.data(), size);
    if (error || text.size() > kMostOutput) break;
  }
  co_return text;
}

constexpr std::size_t kMost = std::size_t{16} << 20;

}  // namespace

const User& local_user() {
  static const User user = [] {
    if (auto found = find_user(::getuid())) return *found;  // ssh also uses the database, not HOME
    const char* home = std::getenv("HOME");
    return User{std::to_string(::getuid()), home != nullptr ? home : "/"};
  }();
  return user;
}

/// One answer, which several hosts may await.
struct SshConfigSource::Answer {
  explicit Answer(const asio::any_io_executor& loop)
      : known(loop, std::chrono::steady_clock::time_point::max()) {}
  std::optional<Result<SshConfig>> config;
  asio::steady_timer known;  ///< never expires; cancelled when config is set
};

SshConfigSource::SshConfigSource(asio::any_io_executor loop, std::string program, std::string file)
    : loop_(std::move(loop)),
      program_(std::move(program)),
      file_(std::move(file)),
      slot_free_(loop_, std::chrono::steady_clock::time_point::max()) {}

void SshConfigSource::read_files() {
  files_read_ = true;
  if (file_ == "none") return;
  if (!file_.empty()) {
    read_file(file_, 0);
  } else {
    read_file(local_user().home + "/.ssh/config", 0);
    read_file("/etc/ssh/ssh_config", 0);
  }
}

void SshConfigSource::read_file(const std::string& path, int depth) {
  if (depth > kDeepestInclude) return;
  const auto text = read_regular_file(path);
  if (!text) return;
  // A relative Include is resolved by the kind of file (user or system), not by the folder of the file.
  const std::string& home = local_user().home;
  const std::string folder = path.rfind("/etc/ssh/", 0) == 0 ? "/etc/ssh/" : home + "/.ssh/";
  for (std::string name : shape_.add(*text)) {
    if (name.rfind("~/", 0) == 0) name = home + name.substr(1);
    if (name.empty() || name.front() != '/') name = folder + name;
    for (const std::string& included : glob_paths(name))
      read_file(included, depth + 1);
  }
}

Awaitable<Result<SshConfig>> SshConfigSource::find(Host host,
                                                   std::chrono::steady_clock::time_point deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  // Each query reads the file again, and a pipe (--ssh-config <(...)) can be read once at most.
  if (is_pipe(file_)) {
    co_return Error{ErrorCode::kUnreachable,
                    host.name + ": the SSH configuration " + file_ + " is a pipe; name a file", 0};
  }
  if (!files_read_) read_files();
  const std::string signature = shape_.signature(host.name);
  std::string key = signature;
  if (signature.empty()) key = host.name + "\n" + host.user + "\n" + std::to_string(host.port);
  auto& slot = answers_[key];
  const bool first = slot == nullptr;
  if (first) slot = std::make_shared<Answer>(loop_);
  const std::shared_ptr<Answer> answer = slot;
  if (first)
    asio::co_spawn(loop_, ask(shared_from_this(), answer, host),
                   asio::detached);  // sets the answer, and ends

  asio::steady_timer limit(loop_);
  if (deadline != std::chrono::steady_clock::time_point::max()) {
    limit.expires_at(deadline);
    limit.async_wait([answer](const error_code& error) {
      if (!error) answer->known.cancel();
    });
  }
  while (!answer->config) {
    co_await answer->known.async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      co_return Error{ErrorCode::kCancelled, host.name + ": cancelled", 0};
    }
    if (!answer->config && std::chrono::steady_clock::now() >= deadline) {
      co_return Error{ErrorCode::kTimeout,
                      host.name + ": " + program_ +
                          " -G did not answer in time; check whether a \"Match exec\" line or a pipe in the "
                          "SSH configuration blocks",
                      0};
    }
  }
  if (!*answer->config) co_return within(host.name, answer->config->error());

  SshConfig config = **answer->config;
  if (!signature.empty() && config.host_name.empty()) config.host_name = lower_case(host.name);
  if (!host.address.empty()) config.host_name = host.address;
  if (!host.user.empty()) config.user = host.user;
  if (host.port != 0) config.port = host.port;
  if (!host.identity.empty()) config.identity_files.insert(config.identity_files.begin(), host.identity);
  co_return config;
}

Awaitable<void> SshConfigSource::ask(std::shared_ptr<SshConfigSource> self, std::shared_ptr<Answer> answer,
                                     Host host) {
  while (self->running_ >= kMostAtOnce)
    co_await self->slot_free_.async_wait(kUseTuple);
  ++self->running_;
  // The queried name stands for every host that shares the answer. Settings of this host alone stay out of
  // it.
  const bool shared = !self->shape_.signature(host.name).empty();
  if (shared) host.user.clear();
  if (shared) host.port = 0;
  auto config = co_await self->run(host);
  --self->running_;
  self->slot_free_.cancel_one();
  if (shared && config && config->host_name == lower_case(host.name)) config->host_name.clear();
  answer->config = std::move(config);
  answer->known.cancel();
}

Awaitable<Result<SshConfig>> SshConfigSource::run(Host host) {
  auto config = co_await run_program(host, false);
  // ssh -G requires a command if ForkAfterAuthentication is set, and refuses a command if RemoteCommand is
  // set.
  if (!config && config.error().text.find("without a command") != std::string::npos)
    config = co_await run_program(std::move(host), true);
  co_return config;
}

/// Returns OpenSSH's defaults, unless the user named a file.
Result<SshConfig> SshConfigSource::without_program() const {
  const User& user = local_user();
  SshConfig config = default_ssh_config({}, user.name);
  if (file_ == "none") return config;
  if (!file_.empty()) {
    return Error{ErrorCode::kUnreachable,
                 "the SSH configuration " + file_ + " can only be read by the ssh program, and there is no " +
                     program_ + " here: install OpenSSH's client",
                 0};
  }
  std::error_code unknown;
  const std::string own = user.home + "/.ssh/config";
  if (std::filesystem::exists(own, unknown)) config.unread_file = own;
  return config;
}

Awaitable<Result<SshConfig>> SshConfigSource::run_program(Host host, bool with_command) {
  ++questions_;
  std::vector<std::string> argv{program_, "-G", "-T"};
  if (!file_.empty()) argv.insert(argv.end(), {"-F", file_});
  if (!host.user.empty()) argv.insert(argv.end(), {"-l", host.user});
  if (host.port != 0) argv.insert(argv.end(), {"-p", std::to_string(host.port)});
  argv.insert(argv.end(), {"--", host.name});
  if (with_command) argv.emplace_back("true");
  auto child = open_child(loop_, ChildCommand{host.name, std::move(argv), ChildCommand::Kind::kProgram});
  if (!child && child.error().sys == ENOENT) {
    auto config = without_program();
    if (config) config->host_name = host.name;
    co_return config;
  }
  if (!child) co_return child.error();
  const std::string output = co_await read_to_end((*child)->link());
  if (output.size() > kMostOutput) {
    co_return Error{ErrorCode::kUnreachable,
                    program_ + " -G printed more than 1 MiB, which is no SSH configuration", 0};
  }
  const std::string errors = co_await read_to_end((*child)->errors());
  const ChannelEnd end = co_await (*child)->end();
  if (end.status == 0) co_return parse_ssh_config(output);
  TailLines words;
  words.feed(errors);
  co_return Error{ErrorCode::kUnreachable,
                  "the SSH configuration was rejected by " + program_ + ":" + words.text(), 0};
}

std::optional<std::string> read_regular_file(const std::string& path) {
  // O_NONBLOCK keeps the open of a pipe from waiting for its writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  std::string text;
  char chunk[16384];
  for (;;) {
    const ssize_t count = ::read(file.get(), chunk, sizeof chunk);
    if (count < 0) return std::nullopt;
    if (count == 0 || text.size() >= kMost) return text;
    text.append(chunk, static_cast<std::size_t>(count));
  }
}

}  // namespace ddp::remote
