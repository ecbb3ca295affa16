#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/ddplaunch/operate/job_files.h"
#include "base/unique_fd.h"
#include "launcher/lines/output_lines.h"

namespace ddp {

/// The last lines of an attempt for the page: of all ranks, or of one, as a terminal would show them, in the
/// order of time. It reads the files of the job, so that it costs the job nothing. Blocks on the disk. One
/// thread.
class OutputTail {
 public:
  /// The most bytes of one stream that are read of what exists at the start.
  static constexpr std::size_t kStreamBytes = 64u << 10;
  static constexpr std::size_t kMostLines = 10'000;
  static constexpr std::size_t kMostBytes = 4u << 20;

  /// `rank` unset: of all ranks.
  OutputTail(std::string job_directory, std::uint32_t attempt, std::optional<std::uint32_t> rank);

  /// Reads what the files have got since the last call. The first call reads the last bytes of each file.
  void read();

  bool empty() const { return lines_.empty() && streams_.empty(); }
  /// Returns the lines behind `after`, the "next" of an earlier answer, as JSON: {"next", "restart": these
  /// are all lines, "lines": a list of [attempt, ms since 1970 or null, margin in ms, rank, 1 or 2 (stderr),
  /// text], "open": rows of bars that still move, as lines}. An unknown `after` is as none.
  nlohmann::ordered_json answer(std::string_view after) const;

 private:
  struct Line {
    std::optional<std::chrono::milliseconds> time;
    std::chrono::milliseconds margin{0};  ///< it was written then, or at most this much later
    std::uint32_t rank = 0;
    bool is_stderr = false;
    std::string text;
  };
  struct Stream {
    std::uint32_t part = 0;
    std::uint64_t read = 0;  ///< bytes of the part, with those that were skipped
    int quiet = 0;           ///< calls of read() without a new byte
    launcher::LineAssembler lines{std::string()};
  };
  using StreamKey = std::pair<std::uint32_t, bool>;  ///< rank, is_stderr

  nlohmann::ordered_json line_json(const Line& line) const;
  void read_stream(const StreamKey& key, Stream& stream, const std::map<std::uint32_t, std::string>& parts,
                   std::size_t budget, const std::map<std::string, FileTimes>& times);
  void read_short_attempt();
  void read_timed_lines();
  void add_bytes(const StreamKey& key, Stream& stream, std::string_view bytes, Line line);
  void add_lines(const StreamKey& key, std::string_view lines, const Line& like);
  void take_new();

  std::string job_directory_;
  std::string directory_;  ///< of the attempt
  std::uint32_t attempt_;
  std::optional<std::uint32_t> rank_;
  std::uint64_t id_;  ///< of this object, so that no other one's "next" is taken for its own
  bool read_any_ = false;
  std::map<StreamKey, Stream> streams_;
  UniqueFd timed_;          ///< lines.jsonl (--jsonl), which has all lines with their exact times
  std::string timed_rest_;  ///< the begin of its last line
  std::vector<Line> new_;   ///< of this call of read()
  std::deque<Line> lines_;
  std::size_t bytes_ = 0;      ///< of lines_
  std::uint64_t dropped_ = 0;  ///< older lines that are not in lines_
};

}  // namespace ddp
