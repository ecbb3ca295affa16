#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "launcher/job/job_spec.h"
#include "launcher/lines/label.h"
#include "launcher/lines/live_board.h"
#include "launcher/lines/output_lines.h"
#include "launcher/output/console.h"
#include "launcher/output/folded_output.h"
#include "launcher/output/job_writer.h"

namespace ddp::launcher {

/// Converts times of the master's monotonic clock to times of day. Repeated calls within a second are cheap.
/// One thread.
class LineClock {
 public:
  using Time = std::chrono::nanoseconds;  ///< since the epoch of CLOCK_MONOTONIC
  /// `ahead` returns how far the wall clock is ahead of the monotonic one. It is asked once a second, because
  /// the wall clock can be set.
  explicit LineClock(std::function<Time()> ahead = real) : ahead_(std::move(ahead)) {}

  /// Returns the local time, "07:18:13.250" (label.h's kTimeWidth). Valid until the next call.
  std::string_view time_of_day(Time time);
  /// Returns the time as RFC 3339 in UTC, "2026-11-21T07:18:13.250Z". Valid until the next call.
  std::string_view date_and_time(Time time);

 private:
  /// The text of one second, into which the milliseconds are written.
  struct Second {
    std::string text;
    std::size_t fraction = 0;  ///< position of the milliseconds
  };
  static Time real();
  std::string_view filled(Second& second, std::int64_t milliseconds);
  void set_second(Time time);

  std::function<Time()> ahead_;
  Time begin_{1};  ///< of the second with prepared texts; end_ before it: none
  Time end_{0};
  Second local_;
  Second utc_;
};

/// Merges the output of all workers. Raw bytes go to the job directory; whole labeled lines and the live rows
/// of bars go to the console. Lines are folded or written as JSON on request. The last lines of each stderr
/// are kept for the report. Loop thread.
class MergedOutput {
 public:
  /// Identifies `rank` for its label, in each attempt.
  using RankSource = std::function<LineSource(std::uint32_t rank)>;
  /// Returns the number of ranks of the attempt.
  using WorldSize = std::function<std::uint32_t()>;
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC

  /// `files`, `console` and the host names that `source` returns must outlive this object.
  MergedOutput(JobWriter& files, Console& console, const OutputOptions& options, RankSource source,
               WorldSize world);
  ~MergedOutput();

  /// Takes bytes of one stream of one rank, in order, with the time when they were `written`; empty: the
  /// stream has ended. Attempts follow each other: the first bytes of a new attempt finish the open lines of
  /// the previous one. `memory`, if any, holds the bytes. It may be kept and must not change any more.
  void add(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream, std::string_view bytes,
           Time written, std::shared_ptr<const char[]> memory = {});
  /// Passes the collected lines to the console in large pieces. Call it when all arrived bytes were taken,
  /// and before anything else is shown.
  void pass_on();
  /// Sets the row below the bars of a terminal.
  void set_footer(std::string text);
  /// Shows lines that wait to be folded, because an event follows that a reader must see after them.
  void flush();
  /// Stops the timers for good; finish_all() does the rest.
  void rest();
  /// Finishes the lines of streams without an end, because their node was lost.
  void finish_all();

  /// Empty for any attempt except the last one with output.
  std::vector<std::string> last_stderr(std::uint32_t attempt, std::uint32_t rank) const;
  /// Returns the file of a rank's stderr; empty when the rank wrote none.
  std::string stderr_file(std::uint32_t attempt, std::uint32_t rank) const;

 private:
  struct RankOutput;
  RankOutput& rank_state(std::uint32_t attempt, std::uint32_t rank);
  LiveBoard::Entry new_entry(std::uint32_t rank, LineSource source, int stream) const;
  const RankOutput* find(std::uint32_t attempt, std::uint32_t rank) const;
  void begin_attempt(std::uint32_t attempt);
  bool shows_bar_ends(std::uint32_t rank, int node_rank, int stream) const;
  void keep_json(const RankOutput& state, std::uint8_t stream, std::string_view bytes, Time written);
  void show_lines(const RankOutput& state, LiveBoard::Entry& entry, Time written);
  void arm();
  void tick();
  void show_rows();

  JobWriter& files_;
  Console& console_;
  const OutputOptions options_;
  RankSource source_;
  WorldSize world_;
  HeldLines held_;  ///< lines of ranks_
  LiveBoard board_;
  LineClock clock_;
  std::optional<FoldedOutput> fold_;  ///< with --fold
  std::optional<JsonLines> json_;     ///< with --jsonl
  asio::steady_timer timer_;
  bool armed_ = false;
  bool resting_ = false;
  std::vector<std::unique_ptr<RankOutput>> ranks_;
  /// The first rank that shows a stream, by stream and (--bars node) node rank.
  std::map<std::pair<int, int>, std::uint32_t> bar_owners_;
  std::optional<std::uint32_t> attempt_;  ///< the attempt of ranks_
  std::string lines_;                     ///< for the console, of stream_; empty between pass_on and add
  int stream_ = 1;
};

}  // namespace ddp::launcher
