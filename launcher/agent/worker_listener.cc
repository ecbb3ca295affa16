#include "launcher/agent/worker_listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "base/files.h"
#include "base/unique_fd.h"
#include "launcher/agent/python_hook.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::launcher {
namespace {

using asio::posix::stream_descriptor;

constexpr std::string_view kName = "/ddplaunch-XXXXXX";
constexpr std::size_t kRandomLetters = 6;
/// Seconds: younger directories are not removed.
constexpr std::time_t kFresh = 60;
/// "/w", a local rank, a dot and a serial number, at their greatest length: a path stays below 100 bytes.
constexpr std::size_t kSocketName = 34;
constexpr std::size_t kMaxPath = 99;
constexpr int kBacklog = 8;
constexpr auto kRest = std::chrono::milliseconds(100);
constexpr std::size_t kReadBytes = 16 * 1024;
constexpr int kReportsAtOnce = 64;
/// A child of an ended worker may hold its connection and write on.
constexpr int kLastReads = 64;
/// Limit for bytes to a worker that does not read, in addition to the kernel's buffer.
constexpr std::size_t kMaxQueued = 64 * 1024;

/// `type`: SOCK_STREAM, then the socket listens; or SOCK_DGRAM.
Result<UniqueFd> socket_at(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return Error{ErrorCode::kInternal, "the path of a worker's socket is too long: " + path};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return system_error(errno, "make a worker's socket");
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0 ||
      (type == SOCK_STREAM && ::listen(fd.get(), kBacklog) < 0))
    return system_error(errno, "listen at " + path);
  return fd;
}

std::optional<uid_t> user_of(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0) return std::nullopt;
  return peer.uid;
}

/// Removes directories of agents that were killed together with their keepers. The locks are then free.
void remove_stale(const std::string& place) {
  const std::string prefix(kName.substr(1, kName.size() - 1 - kRandomLetters));
  for (const auto& path : list_directory(place)) {
    const std::string name = path.filename();
    if (name.size() != prefix.size() + kRandomLetters || !name.starts_with(prefix)) continue;
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat facts {};
    if (!fd || ::fstat(fd.get(), &facts) != 0 || facts.st_uid != ::geteuid()) continue;
    // A directory that was just made may not be locked yet.
    if (::time(nullptr) - facts.st_mtime < kFresh || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code failed;
    for (const auto& file : list_directory(path)) {
      if (std::filesystem::is_socket(file, failed) ||
          std::ranges::find(kPythonHookFiles, file.filename().string()) != kPythonHookFiles.end())
        ::unlink(file.c_str());
    }
    ::rmdir(path.c_str());  // fails if other files are in it
  }
}

}  // namespace

/// One process that is expected or connected. Handlers share it, so it may outlive the link: `link` is then
/// null, and nothing happens any more.
struct WorkerListener::Worker : std::enable_shared_from_this<WorkerListener::Worker> {
  Worker(WorkerListener& owner, std::uint32_t rank)
      : link(&owner),
        local_rank(rank),
        listener(owner.executor_),
        connection(owner.executor_),
        metrics(owner.executor_),
        rest(owner.executor_) {}

  WorkerListener* link;
  std::uint32_t local_rank;
  std::string server;  ///< WorkerSockets::server
  stream_descriptor listener;
  stream_descriptor connection;
  stream_descriptor metrics;
  asio::steady_timer rest;  ///< pauses the listener while there is no free descriptor
  rendezvous::WorkerSession session;
  std::string unsent;
  bool writable_awaited = false;
  unsigned hellos = 0;
  bool stranger_reported = false;
  bool broken_report = false;  ///< one was reported

  static Result<> listen_at(stream_descriptor& descriptor, const std::string& path, int type);
  void await_connection();
  void accept_one();
  void await_descriptor();
  void refuse(uid_t user);
  void await_messages();
  void read_some();
  bool take_some();
  void read_last_words();
  void receive(const rendezvous::WorkerEvent& event);
  void await_reports();
  void read_reports();
  void send();
  void misbehaved(std::string words) { receive(rendezvous::WorkerMisbehaved{std::move(words)}); }
  void close_listener();
  void close_connection();
  void forget();
};

Result<> WorkerListener::Worker::listen_at(stream_descriptor& descriptor, const std::string& path, int type) {
  auto fd = DDP_TRY(socket_at(path, type));
  error_code ec;
  descriptor.assign(fd.get(), ec);
  if (ec) return system_error(ec.value(), "watch " + path);
  fd.release();
  return {};
}

void WorkerListener::Worker::await_connection() {
  listener.async_wait(stream_descriptor::wait_read, [self = shared_from_this()](const error_code& ec) {
    if (!ec && self->link && self->listener.is_open()) self->accept_one();
  });
}

void WorkerListener::Worker::accept_one() {
  UniqueFd fd(::accept4(listener.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const std::optional<uid_t> user = fd ? user_of(fd.get()) : std::nullopt;
  if (user != ::geteuid()) {
    if (fd || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
      await_connection();
    } else {
      await_descriptor();
    }
    if (user) refuse(*user);
    return;
  }
  error_code ec;
  connection.assign(fd.get(), ec);
  if (ec) return await_connection();
  fd.release();
  close_listener();  // only the first connection counts
  await_messages();
}

/// Pauses: a ready listener from which no connection can be accepted would spin.
void WorkerListener::Worker::await_descriptor() {
  rest.expires_after(kRest);
  rest.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec && self->link) self->await_connection();
  });
}

void WorkerListener::Worker::refuse(uid_t user) {
  if (std::exchange(stranger_reported, true)) return;
  misbehaved("refused a connection to DDPLAUNCH_CONTROL from user " + std::to_string(user) +
             "; only the job's own user may connect");
}

void WorkerListener::Worker::await_messages() {
  connection.async_wait(stream_descriptor::wait_read, [self = shared_from_this()](const error_code& ec) {
    if (!ec && self->link && self->connection.is_open()) self->read_some();
  });
}

void WorkerListener::Worker::read_some() {
  (void)take_some();
  if (link && connection.is_open()) await_messages();
}

/// Handles what one read returns. Returns false if there was nothing.
bool WorkerListener::Worker::take_some() {
  char bytes[kReadBytes];
  const ssize_t got = ::recv(connection.native_handle(), bytes, sizeof bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {  // the owner watches the process and sees its end
    close_connection();
    return false;
  }
  for (const rendezvous::WorkerEvent& event : session.receive({bytes, static_cast<std::size_t>(got)})) {
    receive(event);
    if (!link) return true;
  }
  if (session.state() == rendezvous::WorkerSession::State::kIgnored)
    close_connection();
  else
    send();
  return true;
}

/// Also of a process that has connected, sent its words and ended at once.
void WorkerListener::Worker::read_last_words() {
  if (!connection.is_open() && listener.is_open()) accept_one();
  for (int reads = 0; reads < kLastReads && link && connection.is_open(); ++reads)
    if (!take_some()) return;
}

void WorkerListener::Worker::receive(const rendezvous::WorkerEvent& event) {
  // The second hello says that the worker takes part in no attempt any more.
  const bool is_hello = std::holds_alternative<rendezvous::WorkerHello>(event);
  if (is_hello && ++hellos > 1) return link->events_.worker_unlinked(local_rank);
  // A step that arrives behind it is only shown: no other one follows, whose absence would look like a hang.
  if (const auto* step = std::get_if<rendezvous::WorkerStep>(&event); step != nullptr && hellos > 1)
    return link->events_.worker_reported(local_rank, *step);
  std::visit([this](const auto& said) { link->events_.worker_said(local_rank, said); }, event);
}

void WorkerListener::Worker::await_reports() {
  metrics.async_wait(stream_descriptor::wait_read, [self = shared_from_this()](const error_code& ec) {
    if (!ec && self->link && self->metrics.is_open()) self->read_reports();
  });
}

/// A sender may block until its datagram is read, so all that wait are read at once, within a limit.
void WorkerListener::Worker::read_reports() {
  char bytes[rendezvous::kWorkerLineBytes];
  for (int reads = 0; reads < kReportsAtOnce && link && metrics.is_open(); ++reads) {
    const ssize_t got = ::recv(metrics.native_handle(), bytes, sizeof bytes, 0);
    if (got < 0) break;
    const auto step = rendezvous::decode_worker_report({bytes, static_cast<std::size_t>(got)});
    if (step) {
      link->events_.worker_reported(local_rank, *step);
    } else if (!std::exchange(broken_report, true)) {
      misbehaved("sent a report to DDPLAUNCH_METRICS that cannot be read: " + step.error().text +
                 "; docs/users/metrics.md has an example");
    }
  }
  if (link && metrics.is_open()) await_reports();
}

/// Sends what the socket takes at once, and the rest when the socket is writable again.
void WorkerListener::Worker::send() {
  unsent += session.take_output();
  while (connection.is_open() && !unsent.empty()) {
    const ssize_t sent = ::send(connection.native_handle(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      unsent.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      unsent.clear();  // the worker is gone; what it sent before must still be read
    }
  }
  if (unsent.size() > kMaxQueued) {
    close_connection();
    misbehaved("does not read its messages from DDPLAUNCH_CONTROL; closed its connection");
    return;
  }
  if (unsent.empty() || writable_awaited || !connection.is_open()) return;
  writable_awaited = true;
  connection.async_wait(stream_descriptor::wait_write, [self = shared_from_this()](const error_code& ec) {
    self->writable_awaited = false;
    if (!ec && self->link) self->send();
  });
}

/// Leaves the socket's file to the removal of the directory: the disk may hang, and heartbeats must not.
void WorkerListener::Worker::close_listener() {
  error_code ignored;
  listener.close(ignored);
}

void WorkerListener::Worker::close_connection() {
  const bool was_open = connection.is_open();
  error_code ignored;
  connection.close(ignored);
  unsent.clear();
  if (was_open && link) link->events_.worker_unlinked(local_rank);
}

void WorkerListener::Worker::forget() {
  link = nullptr;
  rest.cancel();
  error_code ignored;
  metrics.close(ignored);
  close_listener();
  close_connection();
}

WorkerListener::WorkerListener(asio::any_io_executor executor, WorkerMessageEvents& events)
    : executor_(std::move(executor)), events_(events) {}

WorkerListener::~WorkerListener() {
  for (const auto& [rank, worker] : workers_)
    worker->forget();
  if (directory_.empty()) return;
  for (const auto& socket : list_directory(directory_))
    ::unlink(socket.c_str());
  ::rmdir(directory_.c_str());
}

Result<> WorkerListener::open(const std::string& base) {
  if (!directory_.empty()) return {};
  std::vector<std::string> places{"/tmp"};
  // A relative path would be wrong in the worker's own directory.
  if (base.starts_with('/') && base.size() + kName.size() + kSocketName <= kMaxPath)
    places.insert(places.begin(), base);
  int why = 0;
  for (const std::string& place : places) {
    std::string directory = place + std::string(kName);
    if (::mkdtemp(directory.data()) != nullptr) {
      directory_ = std::move(directory);
      in_use_.reset(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (in_use_) ::flock(in_use_.get(), LOCK_EX | LOCK_NB);
      remove_stale(place);
      return {};
    }
    why = errno;
  }
  return system_error(why, "make a directory for the workers' sockets in /tmp");
}

Result<WorkerSockets> WorkerListener::expect(std::uint32_t local_rank) {
  forget(local_rank);
  if (directory_.empty())
    return Error{ErrorCode::kInternal,
                 "internal error: the directory of the workers' sockets does not exist (please report)"};
  const std::string name = std::to_string(local_rank) + "." + std::to_string(++serial_);
  const std::string control = directory_ + "/w" + name, metrics = directory_ + "/m" + name;
  const auto worker = std::make_shared<Worker>(*this, local_rank);
  worker->server = directory_ + "/d" + name;
  DDP_TRY(worker->listen_at(worker->listener, control, SOCK_STREAM));
  DDP_TRY(worker->listen_at(worker->metrics, metrics, SOCK_DGRAM));
  workers_[local_rank] = worker;
  return WorkerSockets{"unix:" + control, metrics, worker->server};
}

std::shared_ptr<WorkerListener::Worker> WorkerListener::find(std::uint32_t local_rank) const {
  const auto found = workers_.find(local_rank);
  return found == workers_.end() ? nullptr : found->second;
}

std::string WorkerListener::server(std::uint32_t local_rank) const {
  const auto worker = find(local_rank);
  return worker ? worker->server : std::string();
}

void WorkerListener::started(std::uint32_t local_rank) {
  const auto worker = find(local_rank);
  if (!worker) return;
  worker->await_connection();
  worker->await_reports();
}

void WorkerListener::read_last_words(std::uint32_t local_rank) {
  if (const auto worker = find(local_rank)) worker->read_last_words();
}

void WorkerListener::forget(std::uint32_t local_rank) {
  const auto worker = find(local_rank);
  if (!worker) return;
  worker->forget();
  workers_.erase(local_rank);
}

void WorkerListener::begin(std::uint32_t local_rank, rendezvous::AttemptOrder order) {
  const auto worker = find(local_rank);
  if (!worker) return;
  worker->session.begin(std::move(order));
  worker->send();
}

void WorkerListener::revoke(std::uint32_t local_rank, rendezvous::RevokeOrder order) {
  const auto worker = find(local_rank);
  if (!worker) return;
  worker->session.revoke(std::move(order));
  worker->send();
}

void WorkerListener::stop(const rendezvous::StopOrder& order) {
  std::vector<std::shared_ptr<Worker>> all;
  for (const auto& [rank, worker] : workers_)
    all.push_back(worker);
  for (const auto& worker : all) {
    if (!worker->link) continue;  // an event of another worker has removed it
    worker->session.stop(order);
    worker->send();
  }
}

}  // namespace ddp::launcher
