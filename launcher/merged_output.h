#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "launcher/console.h"
#include "launcher/job_writer.h"
#include "launcher/label.h"
#include "launcher/live_board.h"
#include "launcher/output_lines.h"
#include "launcher/output_options.h"

namespace ddp::launcher {

/// Where all workers' output comes together: raw bytes into the job directory, whole labelled lines and the
/// live rows of bars to the console, the last lines of each stderr kept for the report. Loop thread.
class MergedOutput {
 public:
  /// Who `rank` is, for its label; asked once for each rank and attempt.
  using Source = std::function<LineSource(std::uint32_t rank)>;

  /// `files` and `console` outlive this.
  MergedOutput(JobWriter& files, Console& console, const OutputOptions& options, Source source);
  ~MergedOutput();

  /// Bytes of one stream of one rank, in order; empty: the stream has ended. Attempts come one after the
  /// other: the first bytes of a new one finish what the one before left open.
  void take(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream, std::string_view bytes);
  /// No timer of this runs any more; the rest is finish_all().
  void rest();
  /// Finishes the lines of streams whose end never came: their node was lost.
  void finish_all();

  /// Empty for any attempt but the last that wrote something.
  std::vector<std::string> last_stderr(std::uint32_t attempt, std::uint32_t rank) const;
  /// The file of a rank's stderr; empty when it wrote none.
  std::string stderr_file(std::uint32_t attempt, std::uint32_t rank) const;

 private:
  struct Rank;
  Rank& rank_state(std::uint32_t attempt, std::uint32_t rank);
  LiveBoard::Entry new_entry(std::uint32_t rank, LineSource source, int stream) const;
  const Rank* find(std::uint32_t attempt, std::uint32_t rank) const;
  void arm();
  void tick();
  void show_rows();

  JobWriter& files_;
  Console& console_;
  const OutputOptions options_;
  Source source_;
  LiveBoard board_;
  asio::steady_timer timer_;
  bool armed_ = false;
  bool resting_ = false;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::uint32_t attempt_ = 0;  ///< of ranks_
  std::string lines_;          ///< scratch
};

}  // namespace ddp::launcher
