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

/// --fold before the console: takes labelled lines of each rank, gives lines with labels of one or several
/// ranks, LineFold::kWindow later at most. Loop thread.
class FoldedOutput {
 public:
  /// `lines`: whole, for stream 1 or 2.
  using Emit = std::function<void(int stream, std::string_view lines)>;

  /// `label`: the template; empty: no labels.
  FoldedOutput(const asio::any_io_executor& loop, std::string label, Emit emit);

  /// A new attempt with `everyone` ranks whose lines are shown. What waits comes out first.
  void begin(std::size_t everyone);
  /// Lines of one rank, each behind `label`. `source.stream` need not be set. `time`: of day, for {time}.
  void add(const LineSource& source, int stream, std::string_view label, std::string_view time,
           std::string_view lines);
  /// What waits comes out now.
  void flush();
  /// No timer runs any more.
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
  std::string out_;  ///< ready, of one stream
  int out_stream_ = 1;
  std::string stamp_;  ///< scratch
};

}  // namespace ddp::launcher
