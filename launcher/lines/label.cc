#include "launcher/lines/label.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/result.h"

namespace ddp::launcher {
namespace {

enum class Placeholder { kHost, kRank, kLocalRank, kNodeRank, kStream, kTime };

constexpr std::array<std::pair<std::string_view, Placeholder>, 6> kPlaceholders{{
    {"host", Placeholder::kHost},
    {"rank", Placeholder::kRank},
    {"local_rank", Placeholder::kLocalRank},
    {"node_rank", Placeholder::kNodeRank},
    {"stream", Placeholder::kStream},
    {"time", Placeholder::kTime},
}};

/// Shown until the first stamp.
constexpr std::string_view kNoTime = "--:--:--.---";

/// Excludes red, which signals an error, and black and white, which may be the background.
constexpr std::array kColours = {36, 32, 33, 35, 34, 96, 92, 93, 95, 94};

Error label_error(std::size_t at, const std::string& what) {
  return Error{ErrorCode::kUsage, "--label, column " + std::to_string(at + 1) + ": " + what};
}

// Walks a template: calls `text` for runs of plain characters and `value` for placeholders. The check and the
// construction of labels share it.
template <class Text, class Value>
Result<> walk_label(std::string_view label, Text text, Value value) {
  for (std::size_t at = 0; at < label.size();) {
    const char c = label[at];
    if (c == '\n' || c == '\r') return label_error(at, "a label cannot contain a line break");
    if (c != '{' && c != '}') {
      const std::size_t end = std::min(label.find_first_of("{}\n\r", at), label.size());
      text(label.substr(at, end - at));
      at = end;
      continue;
    }
    if (at + 1 < label.size() && label[at + 1] == c) {
      text(label.substr(at, 1));
      at += 2;
      continue;
    }
    const std::size_t close = label.find('}', at);
    if (c == '}' || close == std::string_view::npos) {
      return label_error(at,
                         std::string("a lone '") + c + "'; write '" + c + c + "' for the character itself");
    }
    const std::string_view name = label.substr(at + 1, close - at - 1);
    const auto* const found = std::find_if(kPlaceholders.begin(), kPlaceholders.end(),
                                           [&](const auto& known) { return known.first == name; });
    if (found == kPlaceholders.end()) {
      return label_error(at, "unknown {" + std::string(name) +
                                 "}; known: {host} {rank} {local_rank} {node_rank} {stream} {time}");
    }
    value(found->second);
    at = close + 1;
  }
  return {};
}

void make(std::string_view label, const Label::LabelGroup& group, std::string& text,
          std::vector<std::size_t>& holes) {
  const auto value_of = [&](Placeholder placeholder) -> std::string_view {
    switch (placeholder) {
      case Placeholder::kHost:
        return group.hosts;
      case Placeholder::kRank:
        return group.ranks;
      case Placeholder::kLocalRank:
        return group.local_ranks;
      case Placeholder::kNodeRank:
        return group.node_ranks;
      case Placeholder::kStream:
        return group.stream;
      case Placeholder::kTime:
        // Each line has another time, and only these bytes of the label change.
        holes.push_back(text.size());
        return kNoTime;
    }
    return {};
  };
  (void)walk_label(
      label, [&](std::string_view plain) { text += plain; },
      [&](Placeholder placeholder) { text += value_of(placeholder); });
}

Label::LabelGroup group_of_one(const LineSource& source) {
  return {std::string(source.host), std::to_string(source.rank), std::to_string(source.local_rank),
          std::to_string(source.node_rank), source.stream};
}

}  // namespace

Result<> check_label_template(std::string_view label) {
  return walk_label(
      label, [](std::string_view) {}, [](Placeholder) {});
}

Label::Label(std::string_view label, const LineSource& source, int colour) {
  if (colour != 0) text_ = "\x1b[" + std::to_string(colour) + 'm';
  const std::size_t begin = text_.size();
  make(label, group_of_one(source), text_, holes_);
  if (colour == 0) return;
  // Trailing spaces stay outside the color, so that a background or underline begins where the line begins.
  const std::size_t end = std::max(begin, text_.find_last_not_of(' ') + 1);
  if (end == begin) {
    text_.erase(0, begin);  // nothing to color
  } else {
    text_.insert(end, "\x1b[0m");
  }
}

Label::Label(std::string_view label, const LabelGroup& group) {
  make(label, group, text_, holes_);
}

void Label::stamp(std::string_view time) {
  DDP_REQUIRE(time.size() >= kTimeWidth, time);
  for (const std::size_t hole : holes_)
    text_.replace(hole, kTimeWidth, time.substr(0, kTimeWidth));
}

int label_colour(int node_rank) {
  return kColours[static_cast<std::size_t>(std::max(node_rank, 0)) % kColours.size()];
}

bool colours_wanted(bool is_terminal, const char* no_color, const char* term) {
  // https://no-color.org: any non-empty value forbids color.
  const bool forbidden = no_color != nullptr && *no_color != '\0';
  return is_terminal && !forbidden && term != nullptr && std::string_view(term) != "dumb" && *term != '\0';
}

}  // namespace ddp::launcher
