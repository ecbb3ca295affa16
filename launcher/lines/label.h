#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddp::launcher {

/// Who wrote a line. `stream` is "stdout" or "stderr".
struct LineSource {
  std::string_view host;
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string_view stream;
};

/// --label: {host} {rank} {local_rank} {node_rank} {stream} {time}; "{{" and "}}" are braces. Error (kUsage)
/// with the column for an unknown placeholder, a lone brace, a line break. Everything else passes.
Result<> check_label_template(std::string_view label);

/// Characters of {time}: "07:18:13.250".
inline constexpr std::size_t kTimeWidth = 12;

/// What stands before each line of one stream of one rank. Made once for it; a line only copies text().
class Label {
 public:
  Label() = default;  ///< none
  /// The same text before each line.
  explicit Label(std::string text) : text_(std::move(text)) {}
  /// `label` has passed check_label_template. `colour`: an SGR parameter such as 36, or 0 for none.
  Label(std::string_view label, const LineSource& source, int colour = 0);
  /// For a line that several ranks wrote alike: their values as text ("0-63"), `hosts` "*" when they differ.
  struct LabelGroup {
    std::string hosts;
    std::string ranks;
    std::string local_ranks;
    std::string node_ranks;
    std::string_view stream;
  };
  Label(std::string_view label, const LabelGroup& group);

  /// Whether stamp() does anything: the template has {time}.
  bool has_time() const { return !holes_.empty(); }
  /// The time of the lines that follow, kTimeWidth characters.
  void stamp(std::string_view time);
  std::string_view text() const { return text_; }

 private:
  std::string text_;
  std::vector<std::size_t> holes_;  ///< where in text_ a time stands
};

/// The text of a label without {time}, for lines that are made once.
std::string make_label(std::string_view label, const LineSource& source);

/// The colour of a node's labels, an SGR parameter; nodes in a row differ.
int label_colour(int node_rank);
/// Whether labels are coloured. `no_color` and `term`: the environment's NO_COLOR and TERM, nullptr when
/// unset.
bool colours_wanted(bool is_terminal, const char* no_color, const char* term);

/// Ascending numbers as "0-3,7,9-10".
std::string rank_set_text(const std::vector<int>& ascending);

}  // namespace ddp::launcher
