#include "launcher/agent/worker_pipes.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

#include "launcher/job/output_credit.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// After a leader's end, a pipe that a grandchild holds open is read until it was empty for this long.
constexpr std::chrono::milliseconds kQuiet{200};
/// The limit for a grandchild that is never quiet.
constexpr std::chrono::seconds kChatter{2};
/// A lane that was read so recently is busy: its pipes fill for kGather before the next round.
constexpr std::chrono::milliseconds kBusy{3};
constexpr std::chrono::milliseconds kGather{1};
/// A worker that fills its pipe blocks until it is read. Only the first ranks get large pipes: the pages in
/// all pipes of a user are counted, and a user over the limit gets tiny pipes
/// (/proc/sys/fs/pipe-user-pages-soft).
constexpr int kPipeSize = 256 << 10;
constexpr std::size_t kLargePipes = 64;
constexpr int kEvents = 256;
/// The pause between two passes over all pipes if no descriptor was left to watch them.
constexpr std::chrono::milliseconds kBlindPause{10};

/// Changes only our end: the worker's end is another open file and keeps the blocking writes that programs
/// expect.
void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace

struct WorkerPipes::Pipe {
  std::uint32_t local_rank = 0;
  UniqueFd fd;  ///< empty: closed
  std::size_t capacity = 0;
  std::uint64_t bytes = 0;
};

/// The pipes of one stream, of all ranks.
struct WorkerPipes::Lane {
  Lane(const asio::any_io_executor& executor, std::uint8_t number)
      : stream(number),
        poll(::epoll_create1(EPOLL_CLOEXEC)),
        watch(executor),
        room(executor, Clock::time_point::max()),
        pace(executor),
        blind(!poll) {}
  ~Lane() {
    if (watch.is_open()) watch.release();  // `poll` owns the descriptor
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  const std::uint8_t stream;
  UniqueFd poll;                         ///< level-triggered, of all open pipes
  asio::posix::stream_descriptor watch;  ///< of `poll`, while a task waits for it
  asio::steady_timer room;               ///< cancelled when output may flow again, or no pipe is left
  asio::steady_timer pace;
  std::vector<Pipe> pipes;
  std::vector<OutputTurns::Ready> ready;  ///< by indices of pipes, ascending
  bool much = false;                      ///< a pipe is so full that its worker may soon block
  OutputTurns turns;
  Clock::time_point last_read{};
  std::size_t open = 0;
  bool blind;  ///< no descriptor watches the pipes
  bool running = false;
};

struct WorkerPipes::Rank {
  asio::steady_timer quiet;
  std::uint64_t incarnation = 0;  ///< counts the processes that had the pipes
};

/// 0 for a closed pipe.
std::size_t WorkerPipes::bytes_in(const Pipe& pipe) {
  int waiting = 0;
  return ::ioctl(pipe.fd.get(), FIONREAD, &waiting) == 0 ? static_cast<std::size_t>(waiting) : 0;
}

WorkerPipes::WorkerPipes(asio::any_io_executor executor, OutputSink& sink)
    : executor_(executor),
      sink_(sink),
      lanes_{std::make_unique<Lane>(executor, std::uint8_t{1}),
             std::make_unique<Lane>(executor, std::uint8_t{2})},
      lane_done_(executor, Clock::time_point::max()) {}

WorkerPipes::~WorkerPipes() = default;

void WorkerPipes::add(std::uint32_t local_rank, UniqueFd out, UniqueFd err) {
  const std::size_t at = find(local_rank).value_or(ranks_.size());
  if (at == ranks_.size())
    ranks_.push_back(std::make_unique<Rank>(Rank{asio::steady_timer(executor_)}));
  else
    ++ranks_[at]->incarnation;
  for (const auto& lane : lanes_) {
    UniqueFd& fd = lane->stream == 1 ? out : err;
    set_nonblocking(fd.get());
    if (lane->stream == 1 && at < kLargePipes) ::fcntl(fd.get(), F_SETPIPE_SZ, kPipeSize);
    const int capacity = ::fcntl(fd.get(), F_GETPIPE_SZ);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<std::uint32_t>(at);
    if (::epoll_ctl(lane->poll.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) lane->blind = true;
    if (at == lane->pipes.size()) lane->pipes.emplace_back();
    lane->pipes[at] = {local_rank, std::move(fd), static_cast<std::size_t>(std::max(capacity, 1))};
    ++lane->open;
    start(*lane);
  }
}

void WorkerPipes::start(Lane& lane) {
  if (std::exchange(lane.running, true)) return;
  const auto ended = [this, at = &lane](const std::exception_ptr& broken) {
    if (broken) std::terminate();  // internal error: no exception crosses an await here
    at->running = false;
    lane_done_.cancel();
  };
  asio::co_spawn(executor_, read_lane(this, &lane), ended);
}

Awaitable<> WorkerPipes::read_lane(WorkerPipes* self, Lane* lane) {
  while (lane->open > 0) {
    if (self->sink_.output_room(lane->stream) == 0) {
      co_await lane->room.async_wait(kUseTuple);
      continue;
    }
    if (!find_ready(*lane)) {
      co_await wait_for_bytes(lane);
      continue;
    }
    const auto now = Clock::now();
    // An end of file is no output: the pauses after the ends of many workers would add up.
    const bool output = std::ranges::any_of(lane->ready, [](const auto& pipe) { return pipe.bytes > 0; });
    const bool busy = output && now - lane->last_read < kBusy;
    if (output) lane->last_read = now;
    self->read_round(*lane);
    if (lane->open > 0 && !lane->much && (busy || lane->blind)) {
      lane->pace.expires_at(now + (lane->blind ? kBlindPause : kGather));
      co_await lane->pace.async_wait(kUseTuple);
    } else {
      co_await asio::post(self->executor_,
                          asio::use_awaitable);  // let control messages and the other lane run
    }
  }
}

/// The loop watches the pipes only during this wait. Otherwise each write of a worker would wake the loop,
/// and cost the worker time, although the pipe is left to fill.
Awaitable<> WorkerPipes::wait_for_bytes(Lane* lane) {
  error_code failed;
  lane->watch.assign(lane->poll.get(), failed);
  if (failed) {
    lane->blind = true;
    co_return;
  }
  co_await lane->watch.async_wait(asio::posix::descriptor_base::wait_read, kUseTuple);
  lane->watch.release();
}

bool WorkerPipes::find_ready(Lane& lane) {
  lane.ready.clear();
  lane.much = false;
  const auto add = [&lane](std::uint32_t index) {
    const Pipe& pipe = lane.pipes[index];
    lane.ready.push_back({index, bytes_in(pipe)});
    lane.much = lane.much || lane.ready.back().bytes >= pipe.capacity / 2;
  };
  if (lane.blind) {
    for (std::uint32_t i = 0; i < lane.pipes.size(); ++i) {
      if (lane.pipes[i].fd) add(i);
    }
    return true;
  }
  std::array<epoll_event, kEvents> events;
  const int count = ::epoll_wait(lane.poll.get(), events.data(), kEvents, 0);
  for (int i = 0; i < count; ++i)
    add(events[static_cast<std::size_t>(i)].data.u32);
  std::sort(lane.ready.begin(), lane.ready.end(), [](const auto& a, const auto& b) { return a.who < b.who; });
  return count > 0;
}

void WorkerPipes::read_round(Lane& lane) {
  for (const OutputTurns::Turn& turn : lane.turns.round(lane.ready, sink_.output_room(lane.stream))) {
    read_turn(lane, lane.pipes[turn.who], turn.bytes);
  }
}

void WorkerPipes::read_turn(Lane& lane, Pipe& pipe, std::size_t bytes) {
  while (bytes > 0 && pipe.fd) {
    const std::span<char> space = sink_.output_space(std::min(bytes, rendezvous::kMaxOutputData));
    const ssize_t count = ::read(pipe.fd.get(), space.data(), space.size());
    if (count > 0) {
      const auto size = static_cast<std::size_t>(count);
      pipe.bytes += size;
      sink_.worker_output(pipe.local_rank, lane.stream, space.first(size));
      if (size < space.size()) return;
      bytes -= size;
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      close_pipe(lane, pipe);
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void WorkerPipes::close_pipe(Lane& lane, Pipe& pipe) {
  if (!pipe.fd) return;
  // Remove it explicitly: a child that is being started may hold a copy of the descriptor for a moment.
  ::epoll_ctl(lane.poll.get(), EPOLL_CTL_DEL, pipe.fd.get(), nullptr);
  pipe.fd.reset();
  sink_.worker_output(pipe.local_rank, lane.stream, {});
  const auto at = static_cast<std::size_t>(&pipe - lane.pipes.data());
  if (!open(at)) ranks_[at]->quiet.cancel();
  if (--lane.open > 0) return;
  error_code ignored;
  lane.watch.cancel(ignored);
  lane.room.cancel();
}

std::optional<std::size_t> WorkerPipes::find(std::uint32_t local_rank) const {
  for (std::size_t at = 0; at < ranks_.size(); ++at) {
    if (lanes_[0]->pipes[at].local_rank == local_rank) return at;
  }
  return {};
}

bool WorkerPipes::open(std::size_t at) const {
  return lanes_[0]->pipes[at].fd || lanes_[1]->pipes[at].fd;
}

Awaitable<> WorkerPipes::drained(std::uint32_t local_rank) {
  const auto at = find(local_rank);
  if (!at) co_return;
  Rank& rank = *ranks_[*at];
  // Read all that the leader wrote, even if its children go on writing.
  const std::uint64_t owed = bytes_read(*at) + bytes_waiting(*at);
  const auto patience = Clock::now() + kChatter;
  const std::uint64_t incarnation = rank.incarnation;
  while (open(*at)) {
    const std::uint64_t before = bytes_read(*at);
    rank.quiet.expires_after(kQuiet);
    co_await rank.quiet.async_wait(kUseTuple);
    if (rank.incarnation != incarnation) break;  // the pipes belong to another process now
    const bool quiet = bytes_read(*at) == before && (shortened_ || bytes_waiting(*at) == 0);
    if (quiet || (Clock::now() >= patience && bytes_read(*at) >= owed)) finish(local_rank);
  }
}

std::uint64_t WorkerPipes::bytes_read(std::size_t at) const {
  return lanes_[0]->pipes[at].bytes + lanes_[1]->pipes[at].bytes;
}

std::uint64_t WorkerPipes::bytes_waiting(std::size_t at) const {
  return bytes_in(lanes_[0]->pipes[at]) + bytes_in(lanes_[1]->pipes[at]);
}

void WorkerPipes::finish(std::uint32_t local_rank) {
  read_present(local_rank);
  for (const auto& lane : lanes_)
    for (Pipe& pipe : lane->pipes)
      if (pipe.local_rank == local_rank) close_pipe(*lane, pipe);
}

void WorkerPipes::read_present(std::optional<std::uint32_t> local_rank) {
  for (const auto& lane : lanes_)
    for (Pipe& pipe : lane->pipes)
      if (!local_rank || pipe.local_rank == *local_rank) read_turn(*lane, pipe, pipe.capacity);
}

void WorkerPipes::resume() {
  for (const auto& lane : lanes_)
    lane->room.cancel();
}

Awaitable<> WorkerPipes::closed() {
  while (lanes_[0]->running || lanes_[1]->running)
    co_await lane_done_.async_wait(kUseTuple);
}

// ---- stdin

void WorkerStdin::add(std::string_view bytes) {
  if (bytes.empty()) over_ = true;
  pending_ += bytes;
  resume();
}

void WorkerStdin::resume() {
  if (may_write_() && (over_ || !pending_.empty()) && !std::exchange(busy_, true))
    spawn(executor_, feed(this));
}

Awaitable<> WorkerStdin::feed(WorkerStdin* self) {
  while (!self->pending_.empty() && self->may_write_()) {
    const std::string bytes = std::exchange(self->pending_, {});
    self->given_ += bytes.size();
    co_await write(self, bytes);
    self->send_({static_cast<std::uint32_t>(bytes.size()), false, 0});
  }
  if (self->over_ && self->pending_.empty() && self->may_write_()) self->close_pipe();
  self->busy_ = false;
}

Awaitable<> WorkerStdin::write(WorkerStdin* self, std::string_view bytes) {
  while (!bytes.empty() && self->pipe_.is_open()) {
    const auto [error, count] = co_await self->pipe_.async_write_some(asio::buffer(bytes), kUseTuple);
    self->written_ += count;
    bytes.remove_prefix(count);
    if (!error) continue;
    // The worker has stopped reading, which is no error. After detach() the pipe may be the next worker's.
    if (error != asio::error::operation_aborted) self->close_pipe();
    co_return;
  }
}

void WorkerStdin::attach(UniqueFd pipe) {
  read_end_.reset();
  written_ = 0;
  start_ = given_;
  pipe_.assign(pipe.release());
}

/// The pipe's content can be counted through either end. The worker sees end of file when no writer is left.
void WorkerStdin::close_pipe() {
  if (!pipe_.is_open()) return;
  const std::string link = "/proc/self/fd/" + std::to_string(pipe_.native_handle());
  read_end_.reset(::open(link.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  error_code ignored;
  pipe_.close(ignored);
}

void WorkerStdin::detach() {
  const int pipe = pipe_.is_open() ? pipe_.native_handle() : read_end_.get();
  int unread = 0;
  if (::ioctl(pipe, FIONREAD, &unread) == 0)
    send_({0, true, start_ + written_ - std::min<std::uint64_t>(written_, static_cast<unsigned>(unread))});
  error_code ignored;
  pipe_.close(ignored);
  read_end_.reset();
}

}  // namespace ddp::launcher
