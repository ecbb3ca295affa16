#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/asio.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// Where the bytes of the workers go. Called on the loop thread.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  /// Bytes of stream 1 (stdout) or 2 (stderr) that may be read now. While it is 0 no pipe of that stream is
  /// read, until `resume`.
  virtual std::size_t output_room(std::uint8_t stream) const = 0;
  /// Memory for the next read, up to `size` bytes; lives until the next call here.
  virtual std::span<char> output_space(std::size_t size) = 0;
  enum class Move {
    kMoved,
    kRead,   ///< impossible here: they are to be read
    kLater,  ///< no pipe of the stream is to be read until `resume`
  };
  /// Takes `size` bytes (kMaxOutputData at most) that wait in `pipe` without a read of ours.
  virtual Move move_output(std::uint32_t rank, std::uint8_t stream, int pipe, std::size_t size) {
    (void)rank, (void)stream, (void)pipe, (void)size;
    return Move::kRead;
  }
  /// `bytes`: the beginning of that memory, just read; empty: the stream has ended.
  virtual void worker_output(std::uint32_t rank, std::uint8_t stream, std::span<const char> bytes) = 0;
};

/// Reads stdout and stderr of the workers of a node. A line on a quiet node goes on its way at once;
/// where much is written, the pipes fill for a millisecond before they are read, for reading each write as it
/// comes costs more than all else. Loop thread only. The owner keeps it alive until `closed` has returned.
class WorkerPipes {
 public:
  WorkerPipes(asio::any_io_executor executor, OutputSink& sink);
  ~WorkerPipes();

  /// Reads the pipes of `rank` from now on. Ours are the read ends; they become non-blocking. Those that the
  /// rank had before are drained.
  void add(std::uint32_t rank, UniqueFd out, UniqueFd err);
  /// After the end of the rank's leader: waits until its pipes are read to their end, or all that the leader
  /// wrote is read though a grandchild still holds them. Then they are closed.
  Awaitable<> drained(std::uint32_t rank);
  /// Closes the pipes of a rank whose leader cannot be ended.
  void give_up(std::uint32_t rank);
  /// As give_up, after what the pipes hold now.
  void finish(std::uint32_t rank);
  /// What all pipes hold now, as much as fits into them, though there is no room for it.
  void read_present();
  void resume();  ///< there is room for output again
  /// The attempt is being stopped: what ended leaders left in their pipes, at most what those hold, is read
  /// though there is no room for it, for a reader who stands still must not hold up the stop.
  void shorten_wait() { shortened_ = true; }
  void take_time() { shortened_ = false; }  ///< another attempt begins
  /// Waits until no pipe is open and nothing runs here any more.
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
  std::size_t move_turn(Lane& lane, Pipe& pipe, std::size_t bytes);
  void read_turn(Lane& lane, Pipe& pipe, std::size_t bytes);
  void close_pipe(Lane& lane, Pipe& pipe);
  void start(Lane& lane);
  Rank* find(std::uint32_t rank) const;
  bool open(const Rank& rank) const;
  std::uint64_t bytes_read(const Rank& rank) const;
  std::uint64_t bytes_waiting(const Rank& rank) const;
  void read_rest(const Rank& rank);

  asio::any_io_executor executor_;
  OutputSink& sink_;
  std::array<std::unique_ptr<Lane>, 2> lanes_;  ///< one for each stream: neither waits for the other
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool shortened_ = false;
  asio::steady_timer lane_done_;  ///< cancelled when a lane has ended
};

}  // namespace ddp::launcher
