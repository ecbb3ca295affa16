#include "launcher/master/stdin_feed.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

/// Interval of the check for the foreground, since a job gets no event when it comes there.
constexpr std::chrono::milliseconds kRetryLookup{200};

/// Only the foreground job may read a terminal; a read in the background would stop the launcher. A terminal
/// of another session has no such rule, and tcgetpgrp fails there.
bool in_background() {
  const pid_t front = ::tcgetpgrp(0);
  return front >= 0 && front != ::getpgrp();
}

/// Returns a pipe with the data of a blocking descriptor, because a file on a network disk may block its
/// reader for minutes. The thread owns both descriptors. It ends with the input or with the pipe's reader,
/// and is never joined. `failed` gets the errno of its read. A file is read from `offset`, and its own
/// offset, which the shell shares, does not move.
Result<UniqueFd> read_by_thread(UniqueFd in, std::optional<off_t> offset,
                                std::shared_ptr<std::atomic<int>> failed) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error(errno, "a pipe for standard input");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  auto pump = [in = std::move(in), offset, out = std::move(theirs), failed = std::move(failed)]() mutable {
    std::array<char, 16384> buffer;
    for (;;) {
      const ssize_t count = offset ? ::pread(in.get(), buffer.data(), buffer.size(), *offset)
                                   : ::read(in.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (offset) *offset += std::max<ssize_t>(count, 0);
      if (count < 0) *failed = errno;
      if (count <= 0) return;
      for (ssize_t sent = 0; sent < count;) {
        const ssize_t taken =
            ::write(out.get(), buffer.data() + sent, static_cast<std::size_t>(count - sent));
        if (taken < 0 && errno != EINTR) return;
        sent += std::max<ssize_t>(taken, 0);
      }
    }
  };
  DDP_TRY(start_detached(std::move(pump)));
  return ours;
}

}  // namespace

StdinFeed::StdinFeed(asio::any_io_executor loop)
    : stdin_(loop), room_(loop, asio::steady_timer::time_point::max()), front_(loop) {}

Awaitable<> StdinFeed::run(rendezvous::Connection& link, std::function<void(const std::string&)> warn) {
  struct stat kind {};
  const bool waits =
      ::fstat(0, &kind) == 0 && (S_ISFIFO(kind.st_mode) || S_ISSOCK(kind.st_mode) || ::isatty(0));
  // Opens the file again, because the loop makes it non-blocking and descriptor 0 is shared with the shell
  // and others.
  UniqueFd own;
  if (waits) own.reset(::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!own) own.reset(::fcntl(0, F_DUPFD_CLOEXEC, 3));  // a socket, or another user's terminal
  const auto failed = std::make_shared<std::atomic<int>>(0);
  if (!waits) {
    const off_t offset = S_ISREG(kind.st_mode) ? ::lseek(0, 0, SEEK_CUR) : -1;
    if (offset >= 0) start_ = offset;
    auto pipe = read_by_thread(std::move(own), start_, failed);
    if (!pipe) *failed = pipe.error().sys;
    if (pipe) own = std::move(*pipe);
  }
  const int in = own.get();
  if (in >= 0) stdin_.assign(own.release());
  std::array<char, 16384> buffer;
  // The two waits come before the read, because what is read here is lost to the shell and to others of the
  // terminal. Each await may end the feed, hence the checks after them.
  for (ssize_t count = 1; count > 0;) {
    while (window_ == 0 && !link.closed() && !stopped_)
      co_await room_.async_wait(kUseTuple);
    while (in_background() && !link.closed() && !stopped_) {
      front_.expires_after(kRetryLookup);
      co_await front_.async_wait(kUseTuple);
    }
    if (stdin_.is_open() && !stopped_) co_await until_readable(stdin_);
    if (link.closed() || stopped_) co_return;
    if (in_background()) continue;  // moved to the background while it waited
    count = ::read(in, buffer.data(), std::min(buffer.size(), window_));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) {
      count = 1;  // another reader of the same file took the data: wait again
      continue;
    }
    if (count < 0) *failed = errno;
    if (count <= 0 && *failed != 0)
      warn("warning: " + system_error(*failed, "standard input").text + "; rank 0 gets end of file");
    const auto size = static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    window_ -= size;
    sent_ += size;
    link.send(rendezvous::Stdin{{buffer.data(), size}});
  }
}

void StdinFeed::taken(const rendezvous::StdinTaken& taken) {
  if (taken.ended) read_ = taken.read;
  window_ = std::min(window_ + taken.bytes, kWindow);  // a node cannot have taken more than it was sent
  room_.cancel();
}

/// Without a report of its node, rank 0 may have read all that was sent.
void StdinFeed::leave_file() {
  // The shell's next command continues behind what rank 0 has read, as if rank 0 had read the file itself.
  if (start_)
    (void)::lseek(0, *start_ + static_cast<off_t>(std::min(read_.value_or(sent_), sent_)), SEEK_SET);
  start_.reset();
}

void StdinFeed::stop() {
  stopped_ = true;
  leave_file();
  error_code ignored;
  stdin_.cancel(ignored);
  room_.cancel();
  front_.cancel();
}

}  // namespace ddp::launcher
