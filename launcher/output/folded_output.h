#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "launcher/lines/label.h"

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
  void rest() { timer_.cancel(), resting_ = true; }

 private:
  struct RankIdentity {
    std::string host;
    int local_rank;
    int node_rank;
  };
  void put(const LineFold::Line& line);
  Label group_label(const LineFold::Line& line) const;
  void give();
  void arm();

  std::string template_;
  Emit emit_;
  LineFold fold_;
  LineFold::Sink put_;
  asio::steady_timer timer_;
  bool armed_ = false;
  bool resting_ = false;
  std::unordered_map<int, RankIdentity> ranks_;
  std::string out_;  ///< completed lines of one stream
  int out_stream_ = 1;
  std::string stamp_;  ///< scratch buffer
};

}  // namespace ddp::launcher
