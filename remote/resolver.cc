#include "remote/resolver.h"

#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace ddp::remote {
namespace {

constexpr int kMostThreads = 16;

struct Found {
  int error = 0;  ///< of getaddrinfo
  std::vector<Endpoint> endpoints;
};

Found look_up(const std::string& name, std::uint16_t port, int family, int flags) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Found found;
  found.error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (found.error != 0) return found;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Endpoint endpoint;
    std::memcpy(&endpoint.address, one->ai_addr, one->ai_addrlen);
    endpoint.size = one->ai_addrlen;
    std::array<char, NI_MAXHOST> host{};
    ::getnameinfo(one->ai_addr, one->ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
    endpoint.host = host.data();
    endpoint.text = one->ai_family == AF_INET6 ? "[" + endpoint.host + "]" : endpoint.host;
    endpoint.text += ":" + std::to_string(port);
    found.endpoints.push_back(std::move(endpoint));
  }
  ::freeaddrinfo(list);
  return found;
}

Error resolve_error(const std::string& name, int error) {
  return {ErrorCode::kUnreachable,
          "cannot resolve " + name + ": " + ::gai_strerror(error) +
              "; check the name, or give address= in the hostfile",
          0};
}

}  // namespace

/// One caller's wait. Loop thread only.
struct Resolver::Question {
  explicit Question(const asio::any_io_executor& loop)
      : answered(loop, std::chrono::steady_clock::time_point::max()) {}
  std::optional<Found> found;
  asio::steady_timer answered;  ///< never expires; cancelled when found is set
};

/// What the threads and the loop share.
struct Resolver::Shared {
  struct Job {
    std::uint64_t id;
    std::string name;
    std::uint16_t port;
    int family;
  };
  explicit Shared(asio::any_io_executor executor) : loop(std::move(executor)) {}

  std::mutex mutex;  ///< of the next four
  asio::any_io_executor loop;
  bool open = true;  ///< the loop may be gone when it is false
  int threads = 0;
  std::deque<Job> queue;

  std::map<std::uint64_t, std::shared_ptr<Question>> questions;  ///< loop thread only
};

Resolver::Resolver(asio::any_io_executor loop) : loop_(loop), shared_(std::make_shared<Shared>(loop)) {}

Resolver::~Resolver() {
  shared_->questions.clear();
  const std::lock_guard lock(shared_->mutex);
  shared_->open = false;
  shared_->loop = {};
  shared_->queue.clear();
}

void Resolver::work(std::shared_ptr<Shared> shared) {
  std::unique_lock lock(shared->mutex);
  while (shared->open && !shared->queue.empty()) {
    const Shared::Job job = std::move(shared->queue.front());
    shared->queue.pop_front();
    lock.unlock();
    Found found = look_up(job.name, job.port, job.family, AI_ADDRCONFIG);
    lock.lock();
    if (!shared->open) break;
    asio::post(shared->loop, [shared, id = job.id, found = std::move(found)]() mutable {
      const auto question = shared->questions.find(id);
      if (question == shared->questions.end()) return;  // nobody waits any more
      question->second->found = std::move(found);
      question->second->answered.cancel();
      shared->questions.erase(question);
    });
  }
  --shared->threads;
}

Result<> Resolver::enqueue(std::uint64_t id, const std::string& name, std::uint16_t port, int family) {
  const std::lock_guard lock(shared_->mutex);
  shared_->queue.push_back({id, name, port, family});
  if (shared_->threads >= kMostThreads) return {};
  // Signals are the loop's business: the new thread inherits that all are blocked.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<> outcome;
  try {
    std::thread(&Resolver::work, shared_).detach();
    ++shared_->threads;
  } catch (const std::system_error& failed) {
    if (shared_->threads == 0)
      outcome = system_error(failed.code().value(), "start a thread to resolve names");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return outcome;
}

Awaitable<Result<std::vector<Endpoint>>> Resolver::resolve(std::string name, std::uint16_t port, int family,
                                                           std::chrono::steady_clock::time_point deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  Found numeric = look_up(name, port, family, AI_NUMERICHOST);
  if (numeric.error == 0) co_return std::move(numeric.endpoints);

  const std::uint64_t id = ++last_id_;
  auto question = std::make_shared<Question>(loop_);
  shared_->questions[id] = question;
  const auto queued = enqueue(id, name, port, family);
  if (!queued) co_return queued.error();
  asio::steady_timer limit(loop_, deadline);
  limit.async_wait([question](const error_code& error) {
    if (!error) question->answered.cancel();
  });
  while (!question->found) {
    co_await question->answered.async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      co_return Error{ErrorCode::kCancelled, "cancelled", 0};
    }
    if (!question->found && std::chrono::steady_clock::now() >= deadline) {
      co_return Error{ErrorCode::kTimeout, "no answer for the name " + name + " before the start limit", 0};
    }
  }
  if (question->found->error != 0) co_return resolve_error(name, question->found->error);
  co_return std::move(question->found->endpoints);
}

}  // namespace ddp::remote
