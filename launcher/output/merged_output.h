#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "launcher/job/job_spec.h"
#include "launcher/lines/live_board.h"
#include "launcher/lines/output_lines.h"
#include "launcher/output/console.h"
#include "launcher/output/job_writer.h"

namespace ddp::launcher {

/// Implements --fold: equal lines of several ranks within a window become one line with the set of their
/// ranks. Each input line is emitted once, alone or as part of a set. The lines of a rank keep their order,
/// both streams together. Lines of different ranks may change places, within the window. A line waits until
/// the window is over, or until every rank has written it. Beyond kMaxHeld bytes the oldest lines are emitted
/// early. It reads no clock; the driver passes times.
class LineFold {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr Time kWindow = std::chrono::milliseconds(100);
  static constexpr std::size_t kMaxHeld = 1u << 20;

  /// One line to show. Its views are valid during the call.
  struct Line {
    std::uint8_t stream = 1;
    std::string_view text;          ///< without the line end
    const std::vector<int>& ranks;  ///< ascending
    std::string_view stamp;         ///< as given with the first line of the set
  };
  using Sink = std::function<void(const Line&)>;

  /// `everyone` is the number of ranks whose lines arrive. A line that all have written does not wait.
  explicit LineFold(std::size_t everyone) : everyone_(everyone) {}

  /// Adds a line of `rank` at `now`. `stamp` (such as its time of day) is kept with it.
  void add(int rank, std::uint8_t stream, std::string_view text, std::string_view stamp, Time now,
           const Sink& sink);
  /// Emits the lines that have waited long enough.
  void tick(Time now, const Sink& sink);
  /// Emits all lines, because a failure must be shown or the output ends.
  void flush(const Sink& sink);
  /// Returns when tick() must be called; unset: no line waits.
  std::optional<Time> deadline() const;
  std::size_t held() const { return held_; }

 private:
  struct Entry {
    std::uint64_t order;    ///< increases along queue_
    std::uint64_t arrival;  ///< number of the line that created it
    std::uint8_t stream;
    std::string text;
    std::string stamp;
    std::vector<int> ranks;
    Time first;
  };
  using Queue = std::list<Entry>;
  /// Same text, same stream.
  struct FoldKey {
    std::uint8_t stream;
    std::string_view text;
    bool operator==(const FoldKey&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const FoldKey& key) const {
      return std::hash<std::string_view>()(key.text) * 2 + key.stream;
    }
  };
  bool join(int rank, const FoldKey& key);
  Queue::iterator place_behind(int rank);
  std::uint64_t order_before(Queue::iterator behind);
  void emit_front(const Sink& sink);
  void emit_final(const Sink& sink);

  std::size_t everyone_;
  Queue queue_;  ///< in the order of output
  std::uint64_t arrivals_ = 0;
  std::map<std::uint64_t, Queue::iterator> by_arrival_;
  std::unordered_map<FoldKey, std::vector<Queue::iterator>, KeyHash> alike_;  ///< in the order of queue_
  std::unordered_map<int, Queue::iterator> last_;  ///< by rank: its last waiting line
  std::vector<std::uint64_t> passed_;              ///< by rank: the last search that passed a line of it
  std::uint64_t search_ = 0;
  std::size_t held_ = 0;
};

/// Implements --fold before the console. It takes labeled lines of each rank and emits lines with labels of
/// one or several ranks, at most LineFold::kWindow later. Loop thread.
class FoldedOutput {
 public:
  /// `lines` are whole, for stream 1 or 2.
  using Emit = std::function<void(int stream, std::string_view lines)>;

  /// `label` is the template; empty: no labels.
  FoldedOutput(const asio::any_io_executor& loop, std::string label, Emit emit);

  /// Starts a new attempt in which `everyone` ranks are shown. Pending lines are emitted first.
  void begin(std::size_t everyone);
  /// Adds lines of one rank, each after `label`. `source.stream` may be unset. `time` is the time of day, for
  /// {time}.
  void add(const LineSource& source, int stream, std::string_view label, std::string_view time,
           std::string_view lines);
  /// Emits all pending lines.
  void flush();
  /// Stops the timer for good.
  void stop_timer() { timer_.cancel(), stopped_ = true; }

 private:
  struct RankIdentity {
    std::string host;
    int local_rank;
    int node_rank;
  };
  void put(const LineFold::Line& line);
  Label group_label(const LineFold::Line& line) const;
  void emit();
  void arm();

  std::string template_;
  Emit emit_;
  LineFold fold_;
  LineFold::Sink put_;
  asio::steady_timer timer_;
  bool armed_ = false;
  bool stopped_ = false;
  std::unordered_map<int, RankIdentity> ranks_;
  std::string out_;  ///< completed lines of one stream
  int out_stream_ = 1;
  std::string stamp_;  ///< scratch buffer
};

/// Converts times of the master's monotonic clock to times of day. Repeated calls within a second are cheap.
/// One thread.
class LineClock {
 public:
  using Time = std::chrono::nanoseconds;  ///< since the epoch of CLOCK_MONOTONIC
  /// `ahead` returns how far the wall clock is ahead of the monotonic one. It is asked once a second, because
  /// the wall clock can be set.
  explicit LineClock(std::function<Time()> ahead = real) : ahead_(std::move(ahead)) {}

  /// Returns the local time, "07:18:13.250" (kTimeWidth). Valid until the next call.
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
  void stop_timers();
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
  bool stopped_ = false;
  std::vector<std::unique_ptr<RankOutput>> ranks_;
  /// The first rank that shows a stream, by stream and (--bars node) node rank.
  std::map<std::pair<int, int>, std::uint32_t> bar_owners_;
  std::optional<std::uint32_t> attempt_;  ///< the attempt of ranks_
  std::string lines_;                     ///< for the console, of stream_; empty between pass_on and add
  int stream_ = 1;
};

}  // namespace ddp::launcher
