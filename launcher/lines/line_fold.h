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

namespace ddp::launcher {

/// --fold: lines that several ranks write alike within a window become one line with the set of their ranks.
/// Each line that goes in comes out once, as one rank's or as a part of a set, and the lines of a rank come
/// out in the order in which it wrote them, both streams together. Lines of different ranks may change
/// places, by no more than the window. A line waits for the others until the window is over, or every rank
/// has written it. Bounded: beyond kMaxHeld bytes the oldest come out early. No clock; times are the
/// driver's.
class LineFold {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr Time kWindow = std::chrono::milliseconds(100);
  static constexpr std::size_t kMaxHeld = 1u << 20;

  /// One line to show. Views are valid during the call.
  struct Line {
    std::uint8_t stream = 1;
    std::string_view text;          ///< without the line end
    const std::vector<int>& ranks;  ///< ascending
    std::string_view stamp;         ///< as given with the first of them
  };
  using Sink = std::function<void(const Line&)>;

  /// `everyone`: the number of ranks whose lines come; a line that all have written waits no longer.
  explicit LineFold(std::size_t everyone) : everyone_(everyone) {}

  /// A line of `rank` at `now`. `stamp` (such as its time of day) is kept with it.
  void add(int rank, std::uint8_t stream, std::string_view text, std::string_view stamp, Time now,
           const Sink& sink);
  /// What has waited long enough comes out.
  void tick(Time now, const Sink& sink);
  /// All comes out: a failure is to be shown, or the end has come.
  void flush(const Sink& sink);
  /// When tick() is to be called; nothing: no line waits.
  std::optional<Time> deadline() const;
  std::size_t held() const { return held_; }

 private:
  struct Entry {
    std::uint64_t order;    ///< grows along queue_
    std::uint64_t arrival;  ///< the number of the line that made it
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
  Queue queue_;  ///< in the order in which they come out
  std::uint64_t arrivals_ = 0;
  std::map<std::uint64_t, Queue::iterator> by_arrival_;
  std::unordered_map<FoldKey, std::vector<Queue::iterator>, KeyHash> alike_;  ///< in the order of queue_
  std::unordered_map<int, Queue::iterator> last_;  ///< by rank: its last line that waits
  std::vector<std::uint64_t> passed_;              ///< by rank: the search that passed a line of it last
  std::uint64_t search_ = 0;
  std::size_t held_ = 0;
};

}  // namespace ddp::launcher
