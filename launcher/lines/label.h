#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddp::launcher {

/// Identifies the writer of a line. `stream` is "stdout" or "stderr".
struct LineSource {
  std::string_view host;
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string_view stream;
};

/// Checks --label. Placeholders: {host} {rank} {local_rank} {node_rank} {stream} {time}; "{{" and "}}" are
/// braces. Returns an error (kUsage) with the column for an unknown placeholder, a lone brace or a line
/// break. Accepts everything else.
Result<> check_label_template(std::string_view label);

/// Characters of {time}: "07:18:13.250".
inline constexpr std::size_t kTimeWidth = 12;

/// The text before each line of one stream of one rank. It is built once; a line only copies text().
class Label {
 public:
  Label() = default;  ///< no label
  /// A fixed text before each line.
  explicit Label(std::string text) : text_(std::move(text)) {}
  /// `label` must have passed check_label_template. `colour` is an SGR parameter such as 36; 0: none.
  Label(std::string_view label, const LineSource& source, int colour = 0);
  /// Values of a line that several ranks wrote alike, as text ("0-63"); `hosts` is "*" when they differ.
  struct LabelGroup {
    std::string hosts;
    std::string ranks;
    std::string local_ranks;
    std::string node_ranks;
    std::string_view stream;
  };
  Label(std::string_view label, const LabelGroup& group);

  /// True if stamp() has an effect: the template has {time}.
  bool has_time() const { return !holes_.empty(); }
  /// Sets the time of the following lines, kTimeWidth characters.
  void stamp(std::string_view time);
  std::string_view text() const { return text_; }

 private:
  std::string text_;
  std::vector<std::size_t> holes_;  ///< offsets of the time in text_
};

/// Returns the color of a node's labels, an SGR parameter. Successive nodes differ.
int label_colour(int node_rank);
/// True if labels are colored. `no_color` and `term` are the variables NO_COLOR and TERM; nullptr: unset.
bool colours_wanted(bool is_terminal, const char* no_color, const char* term);

}  // namespace ddp::launcher
