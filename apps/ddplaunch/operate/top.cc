// From a value of the status to its text; the parts of the picture from the top: head, hang and failure,
// table of nodes or ranks, keys; then the keys themselves; and last the terminal that shows the picture.

#include "apps/ddplaunch/operate/top.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "apps/ddplaunch/operate/job_files.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/lines/output_lines.h"
#include "launcher/output/console.h"

namespace ddp {
namespace {

using Json = TopView::Json;
using Size = TopView::Size;
using Text = TextTable::Cell;

// ---- values of the status

const Json& at(const Json& json, const char* key) {
  static const Json null;
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found == json.end() ? null : *found;
}

std::optional<double> number(const Json& json, const char* key) {
  const Json& value = at(json, key);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

int whole(const Json& json, const char* key) {
  return static_cast<int>(number(json, key).value_or(0));
}

std::string text(const Json& json, const char* key) {
  const Json& value = at(json, key);
  return value.is_string() ? one_line(value.get<std::string>()) : "";
}

std::string elapsed(double seconds) {
  return format_elapsed(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
}

/// At most four characters and a unit: "12.5G".
std::string short_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "K", "M", "G", "T", "P"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < kUnits.size(); ++unit)
    bytes /= 1024;
  return format_text(unit == 0 || bytes >= 100 ? "%.0f%s" : "%.1f%s", bytes, kUnits[unit]);
}

// ---- colours

/// A sign and a word, so that the state can be read without colours.
Text state_text(const std::string& state, bool failed) {
  if (state == "running") return {"● running", Colour::kGood};
  if (state == "ended" && !failed) return {"✔ ended", Colour::kGood};
  if (failed || state == "crashed" || state == "lost") return {"✖ " + state, Colour::kBad};
  return {(state == "stalled" ? "▲ " : "○ ") + state, Colour::kDoubtful};
}

constexpr std::size_t kWide = 120;  ///< columns of a terminal with room for notes and totals

/// How bad it is with a node, which the master judges; 0: nothing is wrong. The master of an older version
/// does not.
int badness(const Json& node) {
  if (at(node, "health").is_null()) return text(node, "state") == "lost" ? 2 : 0;
  const std::string health = text(node, "health");
  return health == "bad" ? 2 : health == "doubtful" ? 1 : 0;
}

Colour colour_of(const Json& node) {
  return std::array{Colour::kNone, Colour::kDoubtful, Colour::kBad}.at(
      static_cast<std::size_t>(badness(node)));
}

// ---- tables

struct Column {
  const char* head;
  bool right = true;
  std::size_t most = 20;   ///< characters of a cell
  std::size_t least = 20;  ///< the same where all columns fit with it
};

/// Rows of cells as lines, one blank between columns on a narrow screen, else two. Columns at the right that
/// do not fit are left out.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<Text> row) { rows_.push_back(std::move(row)); }

  /// The first line is the head. `chosen`: the row that is marked.
  std::vector<std::string> lines(std::size_t width, std::optional<std::size_t> chosen, bool colours) const {
    const std::size_t gap = width < kWide ? 1 : 2;
    const std::vector<std::size_t> widths = widths_for(width, gap);
    std::vector<Text> head;
    for (const Column& column : columns_)
      head.push_back({column.head, Colour::kHead});
    std::vector<std::string> lines{line(head, widths, gap, colours)};
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const bool marked = chosen == i;
      std::string made = line(rows_[i], widths, gap, colours && !marked);
      if (marked && colours) made = painted(made, Colour::kChosen, true);
      lines.push_back(std::move(made));
    }
    return lines;
  }

 private:
  /// A column without any value has none.
  std::vector<std::size_t> widths_for(std::size_t width, std::size_t gap) const {
    std::vector<std::size_t> widths;
    std::size_t all = 0;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      std::size_t most = 0;
      for (const auto& row : rows_)
        most = std::max(most, launcher::text_width(row[i].text));
      if (most > 0 || i == 0)
        most = std::min(std::max(most, launcher::text_width(columns_[i].head)), columns_[i].most);
      all += most + (i > 0 && most > 0 ? gap : 0);
      widths.push_back(most);
    }
    const auto spare = [&](std::size_t i) { return widths[i] - std::min(widths[i], columns_[i].least); };
    std::size_t most_cut = 0;
    for (std::size_t i = 0; i < columns_.size(); ++i)
      most_cut += spare(i);
    for (std::size_t i = 0; i < columns_.size() && all > width && all - most_cut <= width; ++i) {
      const std::size_t cut = std::min(spare(i), all - width);
      widths[i] -= cut;
      all -= cut;
      most_cut -= cut;
    }
    for (; all > width && !widths.empty(); widths.pop_back())
      all -= widths.back() + (widths.size() > 1 && widths.back() > 0 ? gap : 0);
    return widths;
  }

  std::string line(const std::vector<Text>& row, const std::vector<std::size_t>& widths, std::size_t gap,
                   bool colours) const {
    std::string made;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] == 0) continue;
      std::string cell;
      const std::size_t used = launcher::append_row(row[i].text, widths[i], cell);
      const std::string blanks(widths[i] - used, ' ');
      if (i > 0) made += std::string(gap, ' ');
      made += columns_[i].right ? blanks : "";
      made += painted(cell, row[i].colour, colours);
      made += columns_[i].right ? "" : blanks;
    }
    return made;
  }

  std::vector<Column> columns_;
  std::vector<std::vector<Text>> rows_;
};

struct GpuSum {
  int count = 0;
  double busy = 0, memory = 0, used = 0, power = 0, hottest = 0;
};

GpuSum sum_of_gpus(const Json& usage) {
  GpuSum sum;
  for (const Json& gpu : at(usage, "gpus")) {
    ++sum.count;
    sum.busy += number(gpu, "busy").value_or(0);
    sum.memory += number(gpu, "memory").value_or(0);
    sum.used += number(gpu, "memory_used").value_or(0);
    sum.power += number(gpu, "power_w").value_or(0);
    sum.hottest = std::max(sum.hottest, number(gpu, "celsius").value_or(0));
  }
  if (sum.count > 0) sum.busy /= sum.count;
  return sum;
}

std::string number_text(const Json& json, const char* key, const char* format) {
  const auto value = number(json, key);
  return value ? format_text(format, *value) : "";
}

/// "12.5G", or on a wide screen "12.5G/512G".
std::string part_text(double used, double all, bool wide) {
  return short_bytes(used) + (wide && all > 0 ? '/' + short_bytes(all) : "");
}

std::string rates_text(const Json& usage, const char* in, const char* out) {
  const auto first = number(usage, in), second = number(usage, out);
  return first && second && *first + *second > 0 ? short_bytes(*first) + '/' + short_bytes(*second) : "";
}

std::string ranks_text(const Json& node) {
  const int ranks = whole(node, "ranks");
  return ranks > 0 ? format_number_range(whole(node, "first_rank"), ranks) : "-";
}

Table node_table(const std::vector<const Json*>& nodes, bool wide) {
  Table table({{"NODE", false, wide ? 30u : 14u, 14},
               {"STATE", false, wide ? 20u : 10u},
               {"RANKS", false, 11},
               {"STEP"},
               {"CPU"},
               {"MEM"},
               {"GPU%"},
               {"GMEM"},
               {"°C"},
               {"BEAT"},
               {"TROUBLE", false, 40, 20},
               {"LAG"},
               {"MACHINE"},
               {"WATT"},
               {"NET in/out"},
               {"IB in/out"},
               {"DISK r/w"}});
  double foremost = 0;
  for (const Json* node : nodes)
    foremost = std::max(foremost, number(*node, "step").value_or(0));
  for (const Json* node : nodes) {
    const Json& usage = at(*node, "usage");
    const GpuSum gpus = sum_of_gpus(usage);
    const Colour colour = colour_of(*node);
    const auto of_gpus = [&gpus](const char* format, double value) {
      return gpus.count > 0 && value > 0 ? format_text(format, value) : std::string();
    };
    const auto step = number(*node, "step"), silence = number(*node, "silence_s");
    const auto memory = number(usage, "job_memory");
    table.add(
        {{text(*node, "node"), colour},
         {std::array{"", "▲ ", "✖ "}.at(static_cast<std::size_t>(badness(*node))) + text(*node, "state"),
          colour},
         {ranks_text(*node)},
         {number_text(*node, "step", "%.0f")},
         {number_text(usage, "job_cpu", "%.1f")},
         {memory ? part_text(*memory, number(usage, "memory").value_or(0), wide) : ""},
         {gpus.count > 0 ? format_text("%.0f", gpus.busy) : ""},
         {gpus.count > 0 ? part_text(gpus.used, gpus.memory, wide) : ""},
         {of_gpus("%.0f", gpus.hottest)},
         {silence ? format_text("%.0fs", *silence) : "-"},
         {wide ? text(*node, "trouble") : "", colour},
         {step ? format_text("%.0f", foremost - *step) : ""},
         {usage.is_object() ? number_text(usage, "cpu", "%.1f") + '/' + number_text(usage, "cpus", "%.0f")
                            : ""},
         {of_gpus("%.0f", gpus.power)},
         {rates_text(usage, "network_in", "network_out")},
         {rates_text(usage, "infiniband_in", "infiniband_out")},
         {rates_text(usage, "disk_read", "disk_written")}});
  }
  return table;
}

std::optional<double> element(const Json& list, std::size_t index) {
  return list.is_array() && index < list.size() && list[index].is_number()
             ? std::optional(list[index].get<double>())
             : std::nullopt;
}

Table rank_table(const Json& node) {
  Table table({{"RANK"}, {"STEP"}, {"LOSS"}, {"S/STEP"}, {"DOES", false, 60}});
  const Json& phases = at(node, "phases");
  for (int i = 0; i < whole(node, "ranks"); ++i) {
    const auto index = static_cast<std::size_t>(i);
    const auto value = [&](const char* key, const char* format) {
      const auto found = element(at(node, key), index);
      return found ? format_text(format, *found) : std::string("-");
    };
    const bool phase = phases.is_array() && index < phases.size() && phases[index].is_string();
    table.add({{std::to_string(whole(node, "first_rank") + i)},
               {value("steps", "%.0f")},
               {value("losses", "%.4g")},
               {value("step_seconds", "%.3f")},
               {phase ? one_line(phases[index].get<std::string>()) : ""}});
  }
  return table;
}

std::vector<std::string> gpu_lines(const Json& node) {
  std::vector<std::string> lines;
  for (const Json& gpu : at(at(node, "usage"), "gpus")) {
    std::string line =
        "GPU " + std::to_string(whole(gpu, "index")) + number_text(gpu, "busy", "  %.0f %% busy") + "  " +
        part_text(number(gpu, "memory_used").value_or(0), number(gpu, "memory").value_or(0), true);
    if (number(gpu, "power_w").value_or(0) > 0) line += number_text(gpu, "power_w", "  %.0f W");
    if (number(gpu, "celsius").value_or(0) > 0) line += number_text(gpu, "celsius", "  %.0f °C");
    if (number(gpu, "clock_mhz").value_or(0) > 0) line += number_text(gpu, "clock_mhz", "  %.0f MHz");
    for (const Json& reason : at(gpu, "throttled_by"))
      if (reason.is_string()) line += "  slowed by " + reason.get<std::string>();
    if (at(gpu, "xid").is_number()) line += "  Xid " + std::to_string(whole(gpu, "xid"));
    lines.push_back(std::move(line));
  }
  return lines;
}

// ---- the parts of the picture

/// Joins parts with three blanks, in as many lines as they need.
std::vector<std::string> packed(const std::vector<Text>& parts, std::size_t width, bool colours) {
  std::vector<std::string> lines;
  std::size_t used = 0;
  for (const Text& part : parts) {
    if (part.text.empty()) continue;
    const std::size_t size = launcher::text_width(part.text);
    if (lines.empty() || used + 3 + size > width) {
      lines.emplace_back();
      used = 0;
    }
    lines.back() += std::string(used > 0 ? 3 : 0, ' ') + painted(part.text, part.colour, colours);
    used += (used > 0 ? 3 : 0) + size;
  }
  return lines;
}

std::vector<Text> head_parts(const Json& status) {
  const bool failed = number(status, "exit_code").value_or(0) != 0;
  std::vector<Text> parts{{"job " + text(status, "job"), Colour::kHead},
                          state_text(text(status, "state"), failed)};
  if (failed) parts.push_back({"exit code " + std::to_string(whole(status, "exit_code")), Colour::kBad});
  if (const auto age = number(status, "age_s")) parts.push_back({elapsed(*age)});
  int running = 0;
  for (const Json& node : at(status, "nodes"))
    running += whole(node, "running");
  if (const int world = whole(status, "world_size"); world > 0)
    parts.push_back(
        {(running < world && !failed ? std::to_string(running) + " of " : "") + counted(world, "rank")});
  if (const auto step = number(status, "step")) parts.push_back({format_text("step %.0f", *step)});
  if (const auto age = number(status, "step_age_s"); age && *age >= 10)
    parts.push_back({"last one " + elapsed(*age) + " ago", Colour::kDoubtful});
  if (const auto step = number(status, "step_s")) parts.push_back({step_time_text(*step)});
  parts.push_back({number_text(status, "loss", "loss %.4g")});
  if (const auto goodput = number(status, "goodput"); goodput && number(status, "step"))
    parts.push_back({format_text("goodput %.1f %%", 100 * *goodput)});
  if (const int most = whole(status, "max_restarts"); most > 0)
    parts.push_back({"restarts left " + std::to_string(std::max(most - whole(status, "restarts"), 0)) +
                     " of " + std::to_string(most)});
  return parts;
}

std::vector<Text> usage_parts(const Json& usage) {
  std::vector<Text> parts;
  if (!usage.is_object()) return parts;
  const int gpus = whole(usage, "gpus");
  if (gpus > 0) {
    parts.push_back({counted(gpus, "GPU") + number_text(usage, "gpu_busy", " %.0f %% busy")});
    parts.push_back({"GPU memory " + part_text(number(usage, "gpu_memory_used").value_or(0),
                                               number(usage, "gpu_memory").value_or(0), true)});
  }
  parts.push_back({number_text(usage, "cpu", "CPU %.1f") + number_text(usage, "cpus", " of %.0f")});
  parts.push_back({"memory " + part_text(number(usage, "memory_used").value_or(0),
                                         number(usage, "memory").value_or(0), true)});
  for (const auto& [name, in, out] : {std::array{"network ", "network_in", "network_out"},
                                      std::array{"InfiniBand ", "infiniband_in", "infiniband_out"},
                                      std::array{"disk ", "disk_read", "disk_written"}})
    if (const std::string rates = rates_text(usage, in, out); !rates.empty())
      parts.push_back({name + rates + " per s"});
  return parts;
}

/// Returns the text in as many rows as it needs, cut at blanks where that is possible.
std::vector<std::string> wrapped(std::string words, std::size_t width) {
  std::vector<std::string> rows;
  for (width = std::max<std::size_t>(width, 1); !words.empty();) {
    std::string row;
    launcher::append_row(words, width, row);
    if (row.size() < words.size())
      if (const std::size_t blank = words.rfind(' ', row.size());
          blank != std::string::npos && blank > std::string_view("▲ ").size())
        row = words.substr(0, blank);
    words.erase(0, std::max<std::size_t>(row.size(), 1));
    words.erase(0, words.find_first_not_of(' '));
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The block of a job that makes no progress: who has not come, and what shows it.
std::vector<std::string> hang_lines(const Json& hang, std::size_t width, std::size_t room, bool colours) {
  std::vector<std::string> lines;
  const std::string verdict = text(hang, "text");
  if (verdict.empty()) return lines;
  for (std::string& row : wrapped("▲ " + verdict + " (confidence: " + text(hang, "confidence") + ')', width))
    lines.push_back(painted(row, Colour::kDoubtful, colours));
  for (const Json& witness : at(hang, "witnesses"))
    if (const std::string words = text(witness, "text"); words != verdict)
      for (std::string& row : wrapped(text(witness, "source") + ": " + words, width > 2 ? width - 2 : 1))
        lines.push_back("  " + row);
  if (lines.size() > room) lines.resize(room);
  return lines;
}

/// The block of a failure: what, exception, hint, and as many of the last lines of stderr as there is room
/// for.
std::vector<std::string> failure_lines(const Json& failure, std::size_t room, bool colours) {
  std::vector<std::string> lines;
  if (!failure.is_object() || room == 0) return lines;
  lines.push_back(
      painted("✖ " + text(failure, "text") + " (attempt " + std::to_string(whole(failure, "attempt")) + ')',
              Colour::kBad, colours));
  for (const auto& [key, before] :
       {std::pair{"exception", ""}, std::pair{"out_of_memory", "out of memory: "}, std::pair{"xid", ""},
        std::pair{"waited_for", ""}, std::pair{"hint", "hint: "}}) {
    const std::string value = text(failure, key);
    if (!value.empty()) lines.push_back("  " + std::string(before) + value);
  }
  std::vector<std::string> tail;
  for (const Json& line : at(failure, "stderr_tail"))
    if (line.is_string()) tail.push_back(line.get<std::string>());
  if (!tail.empty() && tail.back() == text(failure, "exception")) tail.pop_back();
  const std::size_t most = lines.size() < room ? std::min(tail.size(), room - lines.size()) : 0;
  for (std::size_t i = tail.size() - most; i < tail.size(); ++i)
    lines.push_back("  │ " + tail[i]);
  if (lines.size() > room) lines.resize(room);
  return lines;
}

struct Order {
  const char* name;
  /// Returns a node's place in the order: low ones come first.
  double (*place)(const Json& node);
};
constexpr Order kOrders[] = {
    {"ranks", [](const Json& node) { return whole(node, "ranks") > 0 ? whole(node, "first_rank") : 1e9; }},
    {"step", [](const Json& node) { return number(node, "step").value_or(1e18); }},
    {"CPU", [](const Json& node) { return -number(at(node, "usage"), "job_cpu").value_or(-1); }},
    {"memory", [](const Json& node) { return -number(at(node, "usage"), "job_memory").value_or(-1); }},
    {"GPU",
     [](const Json& node) {
       const GpuSum gpus = sum_of_gpus(at(node, "usage"));
       return gpus.count > 0 ? gpus.busy : 1e9;  // an idle GPU is what one looks for
     }},
    {"heartbeat", [](const Json& node) { return -number(node, "silence_s").value_or(1e9); }},
};

}  // namespace

std::vector<std::string> failure_rows(const Json& status, std::size_t width, std::size_t most, bool colours) {
  const Json &hang = at(status, "hang"), &failure = at(status, "failure");
  std::vector<std::string> lines;
  // The failure of a job that was ended for a hang may have the same words.
  if (text(failure, "text").find(text(hang, "text")) == std::string::npos)
    lines = hang_lines(hang, width, failure.is_object() ? (most + 1) / 2 : most, colours);
  for (std::string& line : failure_lines(failure, most - std::min(lines.size(), most), colours))
    lines.push_back(std::move(line));
  std::vector<std::string> rows;
  for (const std::string& line : lines)
    launcher::append_row(line, width, rows.emplace_back());
  return rows;
}

void TopView::set_status(Json status) {
  status_ = std::move(status);
  if (shows_ranks_ && chosen_node() == nullptr) shows_ranks_ = false;
}

std::vector<const Json*> TopView::sorted_nodes() const {
  struct Place {
    int badness;
    double order;
    const Json* node;
  };
  std::vector<Place> places;
  for (const Json& node : at(status_, "nodes"))
    places.push_back({-badness(node), kOrders[order_].place(node), &node});
  std::ranges::stable_sort(places, [](const Place& a, const Place& b) {
    return std::pair(a.badness, a.order) < std::pair(b.badness, b.order);
  });
  std::vector<const Json*> nodes;
  for (const Place& place : places)
    nodes.push_back(place.node);
  return nodes;
}

const Json* TopView::chosen_node() const {
  const std::vector<const Json*> nodes = sorted_nodes();
  if (nodes.empty()) return nullptr;
  for (const Json* node : nodes)
    if (at(*node, "node") == chosen_) return node;
  return chosen_.empty() ? nodes.front() : nullptr;
}

std::uint32_t TopView::rank() const {
  const Json* const node = chosen_node();
  if (node == nullptr) return 0;
  return static_cast<std::uint32_t>(whole(*node, "first_rank")) +
         static_cast<std::uint32_t>(shows_ranks_ ? chosen_rank_ : 0);
}

std::vector<std::string> TopView::rows(Size size, bool keys) const {
  const std::size_t width = size.columns;
  std::vector<std::string> lines = packed(head_parts(status_), width, colours_);
  const auto append = [&lines](std::vector<std::string> more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  append(packed(usage_parts(at(status_, "usage")), width, colours_));
  if (const std::string why = text(status_, "why"); !why.empty())
    lines.push_back(painted(why, Colour::kDoubtful, colours_));
  if (!note_.empty()) lines.push_back(painted(one_line(note_), Colour::kBad, colours_));
  const Json& warnings = at(status_, "warnings");
  if (warnings.is_array() && !warnings.empty() && warnings.back().is_string())
    lines.push_back(
        painted("warning: " + one_line(warnings.back().get<std::string>()), Colour::kDoubtful, colours_));
  // The table keeps half of the screen, and at least four rows.
  const std::size_t room = size.rows > lines.size() + 8 ? (size.rows - lines.size()) / 2 : 2;
  append(failure_rows(status_, width, room, colours_));
  const std::vector<const Json*> nodes = sorted_nodes();
  const Json* const chosen = chosen_node();
  if (!nodes.empty()) lines.emplace_back();
  std::vector<std::string> table;
  std::size_t marked = 0;
  if (shows_ranks_ && chosen != nullptr) {
    lines.push_back("node " + text(*chosen, "node") + ": " + text(*chosen, "state"));
    append(gpu_lines(*chosen));
    marked = chosen_rank_;
    table = rank_table(*chosen).lines(width, keys ? std::optional(marked) : std::nullopt, colours_);
  } else if (!nodes.empty()) {
    marked = static_cast<std::size_t>(std::ranges::find(nodes, chosen) - nodes.begin()) % nodes.size();
    table =
        node_table(nodes, width >= kWide).lines(width, keys ? std::optional(marked) : std::nullopt, colours_);
    const Json& node = *nodes[marked];
    const std::string trouble = text(node, "trouble");
    // The table of a narrow screen has no troubles, and that of a wide one may have cut them.
    if (!trouble.empty() && (width < kWide || table[marked + 1].find(trouble) == std::string::npos)) {
      std::vector<std::string> rows = wrapped(text(node, "node") + ": " + trouble, width);
      if (const std::size_t most = size.rows / 4 + 1; rows.size() > most) rows.resize(most);
      for (const std::string& row : rows)
        lines.push_back(painted(row, colour_of(node), colours_));
    }
  }
  // Of a long table the rows around the chosen one are shown.
  const std::size_t left =
      size.rows > lines.size() + (keys ? 1 : 0) ? size.rows - lines.size() - (keys ? 1 : 0) : 0;
  if (table.size() > left && left >= 3) {
    const std::size_t shown = left - 2;  // below the head, above the line that counts the others
    const std::size_t count = table.size() - 1;
    const std::size_t first = std::min(marked >= shown ? marked - shown + 1 : 0, count - shown);
    lines.push_back(table[0]);
    for (std::size_t i = first; i < first + shown; ++i)
      lines.push_back(table[i + 1]);
    lines.push_back("… " + std::to_string(count - shown) + " more");
  } else {
    append(std::move(table));
  }
  if (keys) {
    if (lines.size() >= size.rows) lines.resize(size.rows > 0 ? size.rows - 1 : 0);
    while (lines.size() + 1 < size.rows)
      lines.emplace_back();
    lines.push_back(asks_stop_ ? painted("stop job " + text(status_, "job") + "? y: yes, any other key: no",
                                         Colour::kBad, colours_)
                    : shows_ranks_ ? "q quit  Esc back  ↑↓ choose  o output  t stacks  x stop"
                                   : "q quit  s sort: " + std::string(kOrders[order_].name) +
                                         "  ↑↓ choose  Enter ranks  o output  t stacks  x stop");
  }
  if (lines.size() > size.rows) lines.resize(size.rows);
  for (std::string& line : lines) {
    std::string cut;
    launcher::append_row(line, width, cut);
    line = std::move(cut);
  }
  return lines;
}

void TopView::move(int by) {
  const Json* const node = chosen_node();
  if (node == nullptr) return;
  const auto moved = [by](std::size_t from, std::size_t count) {
    const auto to = static_cast<std::ptrdiff_t>(from) + by;
    return static_cast<std::size_t>(
        std::clamp<std::ptrdiff_t>(to, 0, static_cast<std::ptrdiff_t>(count) - 1));
  };
  if (shows_ranks_) {
    chosen_rank_ = moved(chosen_rank_, static_cast<std::size_t>(std::max(whole(*node, "ranks"), 1)));
    return;
  }
  const std::vector<const Json*> nodes = sorted_nodes();
  const auto from = static_cast<std::size_t>(std::ranges::find(nodes, node) - nodes.begin());
  const Json& name = at(*nodes[moved(from, nodes.size())], "node");
  if (name.is_string()) chosen_ = name.get<std::string>();
}

TopView::Wish TopView::on_key(Key key, char letter) {
  if (std::exchange(asks_stop_, false))
    return key == Key::kLetter && (letter == 'y' || letter == 'Y') ? Wish::kStop : Wish::kNothing;
  switch (key) {
    case Key::kUp: move(-1); return Wish::kNothing;
    case Key::kDown: move(1); return Wish::kNothing;
    case Key::kEnter:
      if (const Json* const node = chosen_node(); node != nullptr && !shows_ranks_) {
        if (at(*node, "node").is_string()) chosen_ = at(*node, "node").get<std::string>();
        shows_ranks_ = true;
        chosen_rank_ = 0;
      }
      return Wish::kNothing;
    case Key::kEscape: shows_ranks_ = false; return Wish::kNothing;
    case Key::kLetter: break;
  }
  switch (letter) {
    case 'q': return Wish::kQuit;
    case 'k': move(-1); return Wish::kNothing;
    case 'j': move(1); return Wish::kNothing;
    case 's': order_ = (order_ + 1) % std::size(kOrders); return Wish::kNothing;
    case 'o': return Wish::kOutput;
    case 't': return Wish::kStacks;
    case 'x': asks_stop_ = true; return Wish::kNothing;
    default: return Wish::kNothing;
  }
}

std::vector<TopKey> read_keys(std::string_view bytes) {
  std::vector<TopKey> keys;
  while (!bytes.empty()) {
    const char byte = bytes.front();
    bytes.remove_prefix(1);
    if (byte == '\x1b' && !bytes.empty() && (bytes.front() == '[' || bytes.front() == 'O')) {
      // "ESC [ parameters final", or in the application mode "ESC O final".
      std::size_t end = 1;
      while (end < bytes.size() && bytes[end] >= 0x20 && bytes[end] < 0x40)
        ++end;
      const char final = end < bytes.size() ? bytes[end] : '\0';
      if (final == 'A') keys.push_back({TopView::Key::kUp});
      if (final == 'B') keys.push_back({TopView::Key::kDown});
      bytes.remove_prefix(std::min(end + 1, bytes.size()));
    } else if (byte == '\x1b') {
      keys.push_back({TopView::Key::kEscape});
    } else if (byte == '\r' || byte == '\n') {
      keys.push_back({TopView::Key::kEnter});
    } else {
      keys.push_back({TopView::Key::kLetter, byte});
    }
  }
  return keys;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kRedraw{1};
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};
// The Linux console has no second screen. There the picture is erased instead.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[2J\x1b[H\x1b[?25l";
constexpr std::string_view kLeave = "\x1b[2J\x1b[H\x1b[?25h\x1b[?1049l";

/// The terminal in the state of a full-screen program: another screen, no cursor, keys without Enter, signals
/// as events. The destructor gives all of it back. One thread.
class FullScreen {
 public:
  FullScreen() : keys_(::isatty(STDIN_FILENO) == 1) {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int number : kSignals)
      sigaddset(&wanted, number);
    wanted_ = wanted;
    signals_ = UniqueFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    enter();
  }
  ~FullScreen() { leave(); }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  bool has_keys() const { return keys_; }

  /// `picture`: on the other screen; else only the keys are taken.
  void enter(bool picture = true) {
    if (std::exchange(entered_, true)) return;
    picture_ = picture;
    ::pthread_sigmask(SIG_BLOCK, &wanted_, &mask_);
    if (keys_ && ::tcgetattr(STDIN_FILENO, &cooked_) == 0) {
      termios raw = cooked_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C and Ctrl-Z stay signals
      raw.c_cc[VMIN] = 1;
      raw.c_cc[VTIME] = 0;
      ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    if (picture_) print(kEnter);
  }

  /// Signals act as usual from here on, so the terminal is given back first.
  void leave() {
    if (!std::exchange(entered_, false)) return;
    if (picture_) print(kLeave);
    if (keys_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &cooked_);
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }

  /// Waits for keys or a signal, at most until `due`. Returns the keys' bytes. A signal that ends the process
  /// does not return. `open` becomes false when no more keys can come.
  std::string wait(Clock::time_point due, bool& open) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
    std::array<pollfd, 2> look{{{signals_.get(), POLLIN, 0}, {keys_ && open ? STDIN_FILENO : -1, POLLIN, 0}}};
    if (::poll(look.data(), look.size(), left > 0 ? static_cast<int>(left) : 0) <= 0) return {};
    if (look[0].revents != 0) take_signal();
    if (look[1].revents == 0) return {};
    std::array<char, 64> bytes{};
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    open = count > 0;
    return open ? std::string(bytes.data(), static_cast<std::size_t>(count)) : "";
  }

 private:
  void take_signal() {
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof info) != sizeof info) return;
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGWINCH) return;  // the next picture has the new size
    leave();
    // As if it had never been blocked: the shell sees which signal ended or stopped the program.
    ::raise(number == SIGTSTP ? SIGSTOP : number);
    enter(picture_);  // continued
  }

  const bool keys_;
  bool entered_ = false;
  bool picture_ = false;
  sigset_t wanted_{};
  sigset_t mask_{};
  termios cooked_{};
  UniqueFd signals_;
};

void draw(const TopView& view, bool keys) {
  std::string bytes = "\x1b[H";
  const auto rows = view.rows(launcher::terminal_size(STDOUT_FILENO), keys);
  for (std::size_t i = 0; i < rows.size(); ++i)
    bytes += rows[i] + "\x1b[K" + (i + 1 < rows.size() ? "\r\n" : "");
  print(bytes + "\x1b[J");
}

/// Shows what `show` prints on the usual screen until a key comes.
void show_aside(FullScreen& screen, const std::function<void()>& show, bool& open) {
  screen.leave();
  show();
  print("-- press a key to go back --");
  screen.enter(false);
  while (open && screen.wait(Clock::now() + kRedraw, open).empty()) {
  }
  print("\n");
  screen.leave();
  screen.enter();
}

}  // namespace

bool show_top(const TopJob& job) {
  TopView view(launcher::colours_wanted(true, std::getenv("NO_COLOR"), std::getenv("TERM")));
  FullScreen screen;
  bool open = true;
  for (auto due = Clock::now(); job.runs();) {
    if (Clock::now() >= due) {
      due = Clock::now() + kRedraw;
      Error error{};
      auto status = job.status(error);
      view.set_note(status.is_null() ? error.text : "");
      if (!status.is_null()) view.set_status(std::move(status));
    }
    draw(view, screen.has_keys());
    for (const TopKey& key : read_keys(screen.wait(due, open))) {
      switch (view.on_key(key.key, key.letter)) {
        case TopView::Wish::kNothing: break;
        case TopView::Wish::kQuit: return false;
        case TopView::Wish::kOutput:
          show_aside(
              screen, [&] { job.print_output(view.rank(), launcher::terminal_size(STDOUT_FILENO).rows); },
              open);
          break;
        case TopView::Wish::kStacks:
          show_aside(
              screen, [&] { job.print_stacks(view.rank()); }, open);
          break;
        case TopView::Wish::kStop:
          if (const auto stopped = job.stop(); !stopped) view.set_note(stopped.error().text);
          break;
      }
    }
    if (!open) return false;  // the terminal is gone
  }
  return true;
}

}  // namespace ddp
