#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/asio.h"
#include "base/unique_fd.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The launcher's stdin on its way to the worker of this node that reads it (rank 0). A restarted worker
/// reads on where the former one stopped. Bytes that no worker reads any more count as taken. Loop thread;
/// the owner keeps the object alive until the loop has ended.
class WorkerStdin {
 public:
  using SendTaken = std::function<void(const rendezvous::StdinTaken&)>;
  using MayWrite = std::function<bool()>;

  /// While `may_write` returns false, bytes wait: a worker may be started to read them.
  WorkerStdin(asio::any_io_executor executor, SendTaken send, MayWrite may_write)
      : executor_(executor), pipe_(executor), send_(std::move(send)), may_write_(std::move(may_write)) {}

  /// Appends bytes from the master; none: the end of the stream.
  void add(std::string_view bytes);
  /// Call when `may_write` may have become true.
  void resume();
  /// A worker was started: `pipe` is the write end of its stdin.
  void attach(UniqueFd pipe);
  /// The worker with the pipe has ended. Reports how far it has read.
  void detach();

 private:
  static Awaitable<> feed(WorkerStdin* self);
  static Awaitable<> write(WorkerStdin* self, std::string_view bytes);
  void close_pipe();

  asio::any_io_executor executor_;
  asio::posix::stream_descriptor pipe_;  ///< closed: no worker reads
  UniqueFd read_end_;                    ///< of the pipe after its closing; shows what is unread
  std::uint64_t written_ = 0;            ///< bytes that the pipe took
  std::uint64_t start_ = 0;              ///< `given_` when the pipe's worker was started
  std::string pending_;
  std::uint64_t given_ = 0;  ///< bytes that left `pending_`
  bool over_ = false;        ///< the end of the stream is among what is pending
  bool busy_ = false;        ///< feed() runs
  SendTaken send_;
  MayWrite may_write_;
};

}  // namespace ddp::launcher
