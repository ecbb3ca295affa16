#include "launcher/worker_pipes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "rendezvous/codec.h"

namespace ddp::launcher {
namespace {

/// After a leader's end a pipe that a grandchild still holds open is read until it was silent for this long.
constexpr std::chrono::milliseconds kQuiet{200};
/// Reads from one pipe before the others get their turn.
constexpr int kReadsPerTurn = 8;

/// Only our end: the worker's end is another open file and keeps the blocking writes that programs expect.
void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace

struct WorkerPipes::Pipe {
  Pipe(const asio::any_io_executor& executor, UniqueFd fd, std::uint8_t number)
      : descriptor(executor, fd.release()), stream(number) {}
  asio::posix::stream_descriptor descriptor;
  std::uint8_t stream;
  bool open = true;
  bool waits_for_room = false;
  std::uint64_t bytes = 0;
};

struct WorkerPipes::Rank {
  Rank(const asio::any_io_executor& executor, std::uint32_t number, UniqueFd out_fd, UniqueFd err_fd)
      : rank(number),
        out(executor, std::move(out_fd), 1),
        err(executor, std::move(err_fd), 2),
        quiet(executor) {}
  std::uint32_t rank;
  Pipe out;
  Pipe err;
  asio::steady_timer quiet;
  bool open() const { return out.open || err.open; }
  bool waits_for_room() const { return out.waits_for_room || err.waits_for_room; }
};

WorkerPipes::WorkerPipes(asio::any_io_executor executor, OutputSink& sink)
    : executor_(executor),
      sink_(sink),
      room_(executor, asio::steady_timer::time_point::max()),
      task_done_(executor, asio::steady_timer::time_point::max()),
      buffer_(rendezvous::kMaxOutputData) {}

WorkerPipes::~WorkerPipes() = default;

void WorkerPipes::add(std::uint32_t rank, UniqueFd out, UniqueFd err) {
  set_nonblocking(out.get());
  set_nonblocking(err.get());
  ranks_.push_back(std::make_unique<Rank>(executor_, rank, std::move(out), std::move(err)));
  Rank* added = ranks_.back().get();
  const auto ended = [this](const std::exception_ptr& broken) {
    if (broken) std::terminate();  // no exception crosses an await here: this is a mistake of ours
    --readers_;
    task_done_.cancel();
  };
  readers_ += 2;
  asio::co_spawn(executor_, read_pipe(this, added, &added->out), ended);
  asio::co_spawn(executor_, read_pipe(this, added, &added->err), ended);
}

WorkerPipes::Rank* WorkerPipes::find(std::uint32_t rank) const {
  for (const auto& one : ranks_) {
    if (one->rank == rank) return one.get();
  }
  return nullptr;
}

Awaitable<> WorkerPipes::read_pipe(WorkerPipes* self, Rank* rank, Pipe* pipe) {
  for (int reads = 0; pipe->open;) {
    const std::size_t room = self->sink_.output_room();
    if (room == 0) {
      pipe->waits_for_room = true;
      co_await self->room_.async_wait(kUseTuple);
      pipe->waits_for_room = false;
      continue;
    }
    const ssize_t count =
        ::read(pipe->descriptor.native_handle(), self->buffer_.data(), std::min(room, self->buffer_.size()));
    if (count > 0) {
      pipe->bytes += static_cast<std::uint64_t>(count);
      self->sink_.worker_output(rank->rank, pipe->stream,
                                {self->buffer_.data(), static_cast<std::size_t>(count)});
      if (++reads % kReadsPerTurn == 0) co_await asio::post(self->executor_, asio::use_awaitable);
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count == 0 || errno != EAGAIN) break;
    const auto [error] =
        co_await pipe->descriptor.async_wait(asio::posix::descriptor_base::wait_read, kUseTuple);
    if (error) break;  // silent after its leader's end
  }
  pipe->open = false;
  error_code ignored;
  pipe->descriptor.close(ignored);
  self->sink_.worker_output(rank->rank, pipe->stream, {});
  if (!rank->open()) rank->quiet.cancel();
}

Awaitable<> WorkerPipes::drained(std::uint32_t number) {
  Rank* rank = find(number);
  while (rank != nullptr && rank->open()) {
    const std::uint64_t before = rank->out.bytes + rank->err.bytes;
    rank->quiet.expires_after(kQuiet);
    co_await rank->quiet.async_wait(kUseTuple);
    if (rank->waits_for_room() || rank->out.bytes + rank->err.bytes != before) continue;
    close_rank(*rank);
    break;
  }
}

void WorkerPipes::give_up(std::uint32_t number) {
  if (Rank* rank = find(number)) close_rank(*rank);
}

void WorkerPipes::close_rank(Rank& rank) {
  error_code ignored;
  rank.out.descriptor.cancel(ignored);
  rank.err.descriptor.cancel(ignored);
}

void WorkerPipes::resume() {
  room_.cancel();
}

bool WorkerPipes::all_closed() const {
  return readers_ == 0;
}

Awaitable<> WorkerPipes::closed() {
  while (readers_ > 0)
    co_await task_done_.async_wait(kUseTuple);
}

}  // namespace ddp::launcher
