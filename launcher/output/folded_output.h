#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/asio.h"
#include "launcher/lines/label.h"
#include "launcher/lines/line_fold.h"

namespace ddp::launcher {

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
