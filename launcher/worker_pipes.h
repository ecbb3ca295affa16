#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// Where the bytes of the workers go. Called on the loop thread.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  /// Bytes of stream 1 (stdout) or 2 (stderr); empty: the stream has ended. The bytes live until the call
  /// returns.
  virtual void worker_output(std::uint32_t rank, std::uint8_t stream, std::string_view bytes) = 0;
  /// Room for output in bytes; no pipe is read while it is 0, until `resume`.
  virtual std::size_t output_room() const = 0;
};

/// Reads stdout and stderr of the workers of one attempt. Loop thread only. The owner keeps it alive until
/// `closed` has returned for every rank.
class WorkerPipes {
 public:
  WorkerPipes(asio::any_io_executor executor, OutputSink& sink);
  ~WorkerPipes();

  /// Reads the pipes of `rank` from now on. Ours are the read ends; they become non-blocking.
  void add(std::uint32_t rank, UniqueFd out, UniqueFd err);
  /// After the end of the rank's leader: waits until its pipes are read to their end, or were silent for a
  /// while though a grandchild still holds them. Then they are closed.
  Awaitable<> drained(std::uint32_t rank);
  /// Closes the pipes of a rank whose leader cannot be ended.
  void give_up(std::uint32_t rank);
  void resume();  ///< there is room for output again
  bool all_closed() const;
  /// Waits until no pipe is open and nothing runs here any more.
  Awaitable<> closed();

 private:
  struct Pipe;
  struct Rank;
  static Awaitable<> read_pipe(WorkerPipes* self, Rank* rank, Pipe* pipe);
  Rank* find(std::uint32_t rank) const;
  void close_rank(Rank& rank);

  asio::any_io_executor executor_;
  OutputSink& sink_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  asio::steady_timer room_;       ///< cancelled when output may flow again
  asio::steady_timer task_done_;  ///< cancelled when a reader has ended
  std::size_t readers_ = 0;
  std::vector<char> buffer_;  ///< of whichever pipe is being read: no await while it is in use
};

}  // namespace ddp::launcher
