#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/asio.h"
#include "base/unique_fd.h"

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
  virtual void worker_output(std::uint32_t rank, std::uint8_t stream, std::span<const char> bytes) = 0;
};

/// Reads stdout and stderr of the workers of a node. A line on a quiet node is forwarded at once. Under heavy
/// output, the pipes fill for a millisecond before they are read, because reading each write separately costs
/// more than all else. Loop thread only. The owner keeps the object alive until `closed` has returned.
class WorkerPipes {
 public:
  WorkerPipes(asio::any_io_executor executor, OutputSink& sink);
  ~WorkerPipes();

  /// Reads the pipes of `rank` from now on. `out` and `err` are the read ends, which become non-blocking. The
  /// rank's previous pipes must be drained.
  void add(std::uint32_t rank, UniqueFd out, UniqueFd err);
  /// Call after the end of the rank's leader. Waits until its pipes are read to their end, or until all that
  /// the leader wrote is read while a grandchild holds them. Then finishes them.
  Awaitable<> drained(std::uint32_t rank);
  /// Reads what the pipes of the rank hold now, up to their capacity, even without output room. Closes them.
  void finish(std::uint32_t rank);
  /// Reads as `finish` does, without closing; all ranks if `rank` is unset.
  void read_present(std::optional<std::uint32_t> rank = {});
  void resume();  ///< call when there is output room again
  /// Call when the attempt is being stopped. Pipes of ended leaders are then read up to their capacity, even
  /// without output room, so that a stalled reader cannot delay the stop.
  void shorten_wait() { shortened_ = true; }
  void take_time() { shortened_ = false; }  ///< call when another attempt begins
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
  std::optional<std::size_t> find(std::uint32_t rank) const;
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

}  // namespace ddp::launcher
