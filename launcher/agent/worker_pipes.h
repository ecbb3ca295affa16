#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/unique_fd.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The receiver of the workers' output. Called on the loop thread.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  /// Returns the number of bytes of stream 1 (stdout) or 2 (stderr) that may be read now. While it is 0, no
  /// pipe of that stream is read, until `resume`.
  virtual std::size_t output_room(std::uint8_t stream) const = 0;
  /// Memory for the next read, up to `size` bytes; valid until the next call of this function.
  virtual std::span<char> output_space(std::size_t size) = 0;
  /// `bytes`: the beginning of output_space's memory, just read; empty: the stream has ended.
  virtual void worker_output(std::uint32_t local_rank, std::uint8_t stream, std::span<const char> bytes) = 0;
};

/// Reads stdout and stderr of the workers of a node. A line on a quiet node is forwarded at once. Under heavy
/// output, the pipes fill for a millisecond before they are read, because reading each write separately costs
/// more than all else. Loop thread only. The owner keeps the object alive until `closed` has returned.
class WorkerPipes {
 public:
  WorkerPipes(asio::any_io_executor executor, OutputSink& sink);
  ~WorkerPipes();

  /// Reads the pipes of `local_rank` from now on. `out` and `err` are the read ends, which become
  /// non-blocking. The previous pipes of that rank must be drained.
  void add(std::uint32_t local_rank, UniqueFd out, UniqueFd err);
  /// Call after the end of the rank's leader. Waits until its pipes are read to their end, or until all that
  /// the leader wrote is read while a grandchild holds them. Then finishes them.
  Awaitable<> drained(std::uint32_t local_rank);
  /// Reads what the pipes of the rank hold now, up to their capacity, even without output room. Closes them.
  void finish(std::uint32_t local_rank);
  /// Reads as `finish` does, without closing; all ranks if `local_rank` is unset.
  void read_present(std::optional<std::uint32_t> local_rank = {});
  void resume();  ///< call when there is output room again
  /// Call when the attempt is being stopped. Pipes of ended leaders are then read up to their capacity, even
  /// without output room, so that a stalled reader cannot delay the stop.
  void shorten_wait() { shortened_ = true; }
  void restore_wait() { shortened_ = false; }  ///< call when another attempt begins
  /// Waits until no pipe is open and no task runs here.
  Awaitable<> closed();

 private:
  struct Pipe;
  struct Lane;
  struct Rank;
  static Awaitable<> read_lane(WorkerPipes* self, Lane* lane);
  static Awaitable<> wait_for_bytes(Lane* lane);
  static bool find_ready(Lane& lane);
  void read_round(Lane& lane);
  static std::size_t bytes_in(const Pipe& pipe);
  void read_turn(Lane& lane, Pipe& pipe, std::size_t bytes);
  void close_pipe(Lane& lane, Pipe& pipe);
  void start(Lane& lane);
  std::optional<std::size_t> find(std::uint32_t local_rank) const;
  bool open(std::size_t at) const;
  std::uint64_t bytes_read(std::size_t at) const;
  std::uint64_t bytes_waiting(std::size_t at) const;

  asio::any_io_executor executor_;
  OutputSink& sink_;
  std::array<std::unique_ptr<Lane>, 2> lanes_;  ///< one for each stream: neither waits for the other
  std::vector<std::unique_ptr<Rank>> ranks_;    ///< with the indices of their pipes in each lane
  bool shortened_ = false;
  asio::steady_timer lane_done_;  ///< cancelled when a lane has ended
};

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
