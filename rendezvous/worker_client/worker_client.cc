#include "rendezvous/worker_client/worker_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/program.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kScheme = "unix:";
constexpr auto kBetweenSteps = std::chrono::milliseconds(100);
constexpr std::size_t kReadBytes = 4096;
constexpr int kLastReads = 16;

Result<UniqueFd> connected_to(const std::string& control) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = control.substr(std::min(control.size(), kScheme.size()));
  if (!control.starts_with(kScheme) || path.empty() || path.size() >= sizeof address.sun_path)
    return Error{ErrorCode::kUsage, "DDPLAUNCH_CONTROL is \"" + control + "\", which is not unix:PATH"};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return system_error(errno, "make a socket for DDPLAUNCH_CONTROL");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0)
    return system_error(errno, "connect to DDPLAUNCH_CONTROL " + control, ErrorCode::kUnreachable);
  return fd;
}

void raise_event(int fd) {
  const std::uint64_t one = 1;
  // Fails only if the event is already raised.
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
}

void clear_event(int fd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd, &count, sizeof count);
}

}  // namespace

// The thread owns the socket, `unsent` and `lines`. `lock` guards the members that both sides change; at()
// takes it only when the step changes.
struct WorkerClient::Shared {
  UniqueFd socket;
  UniqueFd wake;       ///< wakes the thread
  UniqueFd interrupt;  ///< for a caller that waits for a peer
  std::thread thread;

  // Written by at(). The values may come from concurrent calls; all count as activity.
  std::atomic<std::uint64_t> step{0};
  std::atomic<double> loss{0};
  std::atomic<const char*> phase{nullptr};
  std::atomic<bool> step_untold{false};

  std::mutex lock;
  std::condition_variable changed;
  std::string words;                    ///< lines for the thread to send
  std::deque<AttemptOrder> waiting;     ///< attempts not yet taken by next_attempt()
  std::optional<AttemptOrder> present;  ///< the last one taken
  std::optional<RevokeOrder> revoke;    ///< for the present attempt
  std::optional<std::uint32_t> last;    ///< attempt of the latest order
  std::optional<std::uint64_t> held;    ///< step of the state reported when the worker left its attempt
  std::optional<StopOrder> stop;
  StepTimer timer;        ///< counts each step, since few are reported
  std::string lost;       ///< why the link has ended; empty: it has not
  bool answered = false;  ///< the revoke of the present attempt is answered
  bool closing = false;

  // Only for the thread.
  std::string unsent;
  WorkerLines lines;
  Clock::time_point step_reported = Clock::now() - kBetweenSteps;

  void run();
  bool turn();
  int time_to_wait() const;
  void collect(bool at_once);
  bool flush();
  bool receive();
  void receive(const AgentMessage& word);
  void take_attempt(const AttemptOrder& order);
  void take_revoke(const RevokeOrder& order);
  void end(const std::string& why);
  void say(const WorkerMessage& word);
  Error stopped_error() const { return {ErrorCode::kCancelled, "the agent ordered a stop: " + stop->reason}; }
  Error lost_error() const { return {ErrorCode::kLinkLost, "the agent is gone: " + lost}; }
};

/// The caller holds the lock.
void WorkerClient::Shared::say(const WorkerMessage& word) {
  if (!lost.empty()) return;
  words += encode_line(word);
  raise_event(wake.get());
}

// ---- the thread

void WorkerClient::Shared::run() {
  while (turn()) {
  }
  // Send the last messages as far as the socket takes them: the agent may have stopped reading.
  collect(true);
  flush();
}

/// Returns false when the link is over.
bool WorkerClient::Shared::turn() {
  pollfd fds[2] = {{wake.get(), POLLIN, 0}, {socket.get(), POLLIN, 0}};
  if (!unsent.empty()) fds[1].events |= POLLOUT;
  if (::poll(fds, 2, time_to_wait()) < 0 && errno != EINTR) {
    end(system_error(errno, "poll").text);
    return false;
  }
  if (fds[0].revents != 0) clear_event(wake.get());
  {
    const std::lock_guard guard(lock);
    if (closing) return false;
  }
  // Orders are read before anything is sent: a revoke must not wait behind steps.
  if (fds[1].revents & (POLLIN | POLLHUP | POLLERR) && !receive()) return false;
  collect(false);
  return flush();
}

int WorkerClient::Shared::time_to_wait() const {
  // While the agent does not read, no step is due.
  if (!step_untold.load(std::memory_order_acquire) || !unsent.empty()) return -1;
  const auto rest =
      std::chrono::ceil<std::chrono::milliseconds>(step_reported + kBetweenSteps - Clock::now());
  return static_cast<int>(std::max(rest.count(), std::chrono::milliseconds::rep{0}));
}

/// A step is sent before messages that came after it.
void WorkerClient::Shared::collect(bool at_once) {
  std::string said;
  {
    const std::lock_guard guard(lock);
    said.swap(words);
  }
  const auto now = Clock::now();
  // Ten steps a second at most. While the agent does not read, steps are not queued at all: the next one has
  // the newest number anyway.
  const bool due = at_once || !said.empty() || (unsent.empty() && now - step_reported >= kBetweenSteps);
  // The flag is taken before the values are read: an at() in between sets it again, and its step is reported
  // next.
  if (due && step_untold.exchange(false, std::memory_order_acq_rel)) {
    const char* doing = phase.load(std::memory_order_relaxed);
    WorkerStep report{step.load(std::memory_order_relaxed), doing ? doing : "",
                      loss.load(std::memory_order_relaxed)};
    {
      const std::lock_guard guard(lock);
      report.durations = timer.take();
    }
    unsent += encode_line(WorkerMessage(report));
    step_reported = now;
  }
  unsent += said;
}

bool WorkerClient::Shared::flush() {
  while (!unsent.empty()) {
    const ssize_t sent = ::send(socket.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      unsent.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      return true;
    } else if (errno != EINTR) {
      // Read the messages that the agent sent before it closed.
      const int why = errno;
      for (int reads = 0; reads < kLastReads && receive(); ++reads) {
      }
      end(system_error(why, "send").text);
      return false;
    }
  }
  return true;
}

/// Returns false when nothing more will arrive.
bool WorkerClient::Shared::receive() {
  if (!lost.empty()) return false;  // after an invalid line nothing can be read; only this thread sets it
  char bytes[kReadBytes];
  const ssize_t got = ::recv(socket.get(), bytes, sizeof bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) {
    end(got == 0 ? "it closed the connection" : system_error(errno, "receive").text);
    return false;
  }
  lines.add({bytes, static_cast<std::size_t>(got)});
  for (;;) {
    auto line = lines.next();
    if (line && !*line) return true;
    const auto word = line ? decode_agent_line(**line) : Result<AgentMessage>(line.error());
    if (!word) {
      // A worker that misses an order would be killed for it, so end the link with a reason instead.
      end("it sent an invalid order: " + word.error().text);
      return false;
    }
    receive(*word);
  }
}

void WorkerClient::Shared::receive(const AgentMessage& word) {
  const std::lock_guard guard(lock);
  if (const auto* attempt = std::get_if<AttemptOrder>(&word)) take_attempt(*attempt);
  if (const auto* order = std::get_if<RevokeOrder>(&word)) take_revoke(*order);
  if (const auto* order = std::get_if<StopOrder>(&word); order && !stop) stop = *order;
  changed.notify_all();
}

void WorkerClient::Shared::take_attempt(const AttemptOrder& order) {
  if (last && order.attempt <= *last) return;
  last = order.attempt;
  waiting.push_back(order);
}

void WorkerClient::Shared::take_revoke(const RevokeOrder& order) {
  const auto untaken = std::find_if(waiting.begin(), waiting.end(), [&](const AttemptOrder& attempt) {
    return attempt.attempt == order.attempt;
  });
  if (untaken != waiting.end()) {
    // Answer here, since the worker may take longer than the deadline to load its data. It still holds the
    // state that it held when it left the previous attempt.
    waiting.erase(untaken);
    say(WorkerRevoked{order.attempt, held});
    return;
  }
  if (!present || present->attempt != order.attempt || revoke) return;
  revoke = order;
  raise_event(interrupt.get());
}

void WorkerClient::Shared::end(const std::string& why) {
  const std::lock_guard guard(lock);
  if (!lost.empty()) return;
  lost = why;
  raise_event(interrupt.get());
  changed.notify_all();
}

// ---- the worker's side

WorkerClient::WorkerClient(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

Result<std::unique_ptr<WorkerClient>> WorkerClient::connect(const std::string& control, bool rejoin,
                                                            bool sharded) {
  auto socket = DDP_TRY(connected_to(control));
  auto shared = std::make_shared<Shared>();
  shared->socket = std::move(socket);
  shared->wake.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  shared->interrupt.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!shared->wake || !shared->interrupt) return system_error(errno, "make an eventfd");
  // Not added to `words`, since a step is sent before these.
  const WorkerHello hello{kWorkerProtocol, static_cast<std::uint32_t>(::getpid()), rejoin, sharded};
  shared->unsent = encode_line(WorkerMessage(hello));
  shared->thread =
      DDP_TRY(start_thread([raw = shared.get()] { raw->run(); }, "start the thread of DDPLAUNCH_CONTROL"));
  return std::unique_ptr<WorkerClient>(new WorkerClient(std::move(shared)));
}

WorkerClient::~WorkerClient() {
  {
    const std::lock_guard guard(shared_->lock);
    shared_->closing = true;
  }
  raise_event(shared_->wake.get());
  shared_->thread.join();
}

int WorkerClient::interrupt() const {
  return shared_->interrupt.get();
}

Result<AttemptOrder> WorkerClient::next_attempt() {
  Shared& it = *shared_;
  std::unique_lock guard(it.lock);
  it.changed.wait(guard, [&] { return it.stop || !it.lost.empty() || !it.waiting.empty(); });
  if (it.stop) return it.stopped_error();
  if (!it.lost.empty()) return it.lost_error();
  it.present = it.waiting.front();
  it.waiting.pop_front();
  it.revoke.reset();
  it.held.reset();
  it.answered = false;
  // Cleared with the new attempt only: until then every wait of the worker shall end at once.
  clear_event(it.interrupt.get());
  return *it.present;
}

void WorkerClient::ready() {
  const std::lock_guard guard(shared_->lock);
  shared_->timer.forget();  // the next steps are those of the state that it has now
  if (shared_->present) shared_->say(WorkerReady{shared_->present->attempt});
}

void WorkerClient::at(std::uint64_t step, const char* phase, double loss, double waited) {
  shared_->loss.store(loss, std::memory_order_relaxed);
  shared_->phase.store(phase, std::memory_order_relaxed);
  // The lock only where the step changes. at() is called in the inner loop with each phase of a step.
  if (shared_->step.exchange(step, std::memory_order_relaxed) != step) {
    const std::lock_guard guard(shared_->lock);
    shared_->timer.at(step, Clock::now().time_since_epoch(), waited);
  }
  // Only the first call since the thread last checked must wake it.
  if (!shared_->step_untold.exchange(true, std::memory_order_acq_rel)) raise_event(shared_->wake.get());
}

void WorkerClient::failed(const std::string& error, const std::vector<std::uint32_t>& peers) {
  const std::lock_guard guard(shared_->lock);
  // After a revoke the failure is an effect of it and no evidence.
  if (shared_->present && !shared_->revoke)
    shared_->say(WorkerTrouble{shared_->present->attempt, error, peers});
}

Result<RevokeOrder> WorkerClient::await_revoke(std::chrono::milliseconds timeout) {
  Shared& it = *shared_;
  std::unique_lock guard(it.lock);
  it.changed.wait_for(guard, timeout, [&] { return it.revoke || it.stop || !it.lost.empty(); });
  if (it.revoke) return *it.revoke;
  if (it.stop) return it.stopped_error();
  if (!it.lost.empty()) return it.lost_error();
  return Error{ErrorCode::kTimeout,
               "no order came from the agent within " + std::to_string(timeout.count()) + " ms"};
}

void WorkerClient::revoked(std::optional<std::uint64_t> step) {
  const std::lock_guard guard(shared_->lock);
  if (!shared_->revoke || shared_->answered) return;
  shared_->answered = true;
  shared_->held = step;
  shared_->say(WorkerRevoked{shared_->present->attempt, step});
}

}  // namespace ddp::rendezvous
