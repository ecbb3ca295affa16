#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/console.h"
#include "launcher/job_writer.h"
#include "launcher/output_lines.h"

namespace ddp::launcher {

/// Where all workers' output comes together: raw bytes into the job directory, whole labelled lines to the
/// console, the last lines of each stderr kept for the report. Loop thread.
class MergedOutput {
 public:
  /// Who `rank` is, for its label; asked once for each rank.
  using Source = std::function<LineSource(std::uint32_t rank)>;
  using Trouble =
      std::function<void(const Error&)>;  ///< the job directory failed; called once until it recovers

  /// `label` has passed check_label_template; empty: lines without a label. `files` and `console` outlive
  /// this.
  MergedOutput(JobWriter& files, Console& console, std::string label, Source source);
  ~MergedOutput();

  /// Bytes of one stream of one rank, in order; empty: the stream has ended.
  void take(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream, std::string_view bytes);
  /// Finishes the lines of streams whose end never came: their node was lost.
  void finish_all();

  std::vector<std::string> last_stderr(std::uint32_t rank) const;
  /// The file of a rank's stderr; empty when it wrote none.
  std::string stderr_file(std::uint32_t attempt, std::uint32_t rank) const;

 private:
  struct Rank;
  Rank& rank_state(std::uint32_t rank);

  JobWriter& files_;
  Console& console_;
  std::string label_;
  Source source_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::string lines_;  ///< scratch
};

}  // namespace ddp::launcher
