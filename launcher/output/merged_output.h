#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "launcher/job/output_options.h"
#include "launcher/lines/json_lines.h"
#include "launcher/lines/label.h"
#include "launcher/lines/live_board.h"
#include "launcher/lines/output_lines.h"
#include "launcher/output/console.h"
#include "launcher/output/folded_output.h"
#include "launcher/output/job_writer.h"
#include "launcher/output/line_clock.h"

namespace ddp::launcher {

/// Where all workers' output comes together: raw bytes into the job directory, whole labelled lines and the
/// live rows of bars to the console, folded and as JSON on request, the last lines of each stderr kept for
/// the report. Loop thread.
class MergedOutput {
 public:
  /// Who `rank` is, for its label; asked once for each rank and attempt.
  using RankSource = std::function<LineSource(std::uint32_t rank)>;
  /// How many ranks the attempt has.
  using WorldSize = std::function<std::uint32_t()>;
  using Time = std::chrono::nanoseconds;  ///< of our CLOCK_MONOTONIC

  /// `files`, `console` and the hosts' names in what `source` returns outlive this.
  MergedOutput(JobWriter& files, Console& console, const OutputOptions& options, RankSource source,
               WorldSize world);
  ~MergedOutput();

  /// Bytes of one stream of one rank, in order, and when they were `written`; empty: the stream has ended.
  /// Attempts come one after the other: the first bytes of a new one finish what the one before left open.
  /// `memory`, if any, holds the bytes: it may be kept, and does not change any more.
  void take(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream, std::string_view bytes,
            Time written, std::shared_ptr<const char[]> memory = {});
  /// To be called when what has arrived was taken, and before anything else is shown: lines go to the console
  /// in large pieces.
  void pass_on();
  /// Shows now what waits to be folded: something happened that a reader must see behind it.
  void flush();
  /// No timer of this runs any more; the rest is finish_all().
  void rest();
  /// Finishes the lines of streams whose end never came: their node was lost.
  void finish_all();

  /// Empty for any attempt but the last that wrote something.
  std::vector<std::string> last_stderr(std::uint32_t attempt, std::uint32_t rank) const;
  /// The file of a rank's stderr; empty when it wrote none.
  std::string stderr_file(std::uint32_t attempt, std::uint32_t rank) const;

 private:
  struct RankOutput;
  RankOutput& rank_state(std::uint32_t attempt, std::uint32_t rank);
  LiveBoard::Entry new_entry(std::uint32_t rank, LineSource source, int stream) const;
  const RankOutput* find(std::uint32_t attempt, std::uint32_t rank) const;
  void begin_attempt(std::uint32_t attempt);
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
  LiveBoard board_;
  LineClock clock_;
  std::optional<FoldedOutput> fold_;  ///< with --fold
  std::optional<JsonLines> json_;     ///< with --jsonl
  asio::steady_timer timer_;
  bool armed_ = false;
  bool resting_ = false;
  std::vector<std::unique_ptr<RankOutput>> ranks_;
  std::optional<std::uint32_t> attempt_;  ///< of ranks_
  std::string lines_;                     ///< for the console, of stream_; empty between pass_on and take
  int stream_ = 1;
};

}  // namespace ddp::launcher
