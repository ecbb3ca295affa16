// Texts of values and lists; tables; words and numbers in text; and characters that are not safe to show.
#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

namespace ddp {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

}  // namespace

std::string format_text(const char* format, ...) {
  std::string text;
  va_list arguments, again;
  va_start(arguments, format);
  // The first call consumes the list.
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, arguments);
  if (size > 0) {
    text.resize(static_cast<std::size_t>(size));
    std::vsnprintf(text.data(), text.size() + 1, format, again);
  }
  va_end(again);
  va_end(arguments);
  return text;
}

std::string format_duration(std::chrono::nanoseconds time) {
  const std::int64_t ms = (time.count() + 500'000) / 1'000'000;
  if (ms < 1'000) return std::to_string(ms) + " ms";
  if (ms % 3'600'000 == 0) return std::to_string(ms / 3'600'000) + " h";
  if (ms >= 120'000 && ms % 60'000 == 0) return std::to_string(ms / 60'000) + " min";
  const std::int64_t tenths = (ms + 50) / 100;
  const std::string whole = std::to_string(tenths / 10);
  return (tenths % 10 == 0 ? whole : whole + "." + std::to_string(tenths % 10)) + " s";
}

std::string format_elapsed(std::chrono::nanoseconds time) {
  if (time < std::chrono::seconds(1)) return std::to_string(time / std::chrono::milliseconds(1)) + " ms";
  if (time < std::chrono::minutes(2))
    return format_text("%.1f s", std::chrono::duration<double>(time).count());
  const auto minutes = time / std::chrono::minutes(1);
  if (minutes < 120) return std::to_string(minutes) + " min";
  return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes == std::numeric_limits<std::uint64_t>::max()) return "unlimited";
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit)
    value /= 1024;
  return format_text(unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string format_endpoint(const std::string& address, unsigned port) {
  const bool is_ipv6 = address.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

std::optional<HostPort> split_endpoint(std::string_view text) {
  std::size_t colon = text.find(':');
  if (text.starts_with('[')) {
    colon = text.find(']') + 1;
    if (colon == 0 || (colon < text.size() && text[colon] != ':')) return std::nullopt;
    HostPort parts{std::string(text.substr(1, colon - 2)), std::nullopt};
    if (colon < text.size()) parts.port = text.substr(colon + 1);
    return parts;
  }
  if (colon == std::string_view::npos || colon != text.rfind(':'))
    return HostPort{std::string(text), std::nullopt};
  return HostPort{std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

std::string format_number_set(std::vector<int> numbers, std::size_t most) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1)
      ++last;
    if (runs.size() == most) {
      runs.emplace_back("…");
      break;
    }
    runs.push_back(std::to_string(numbers[i]));
    if (last > i) runs.back() += '-' + std::to_string(numbers[last]);
    i = last + 1;
  }
  return join(runs, ",");
}

std::string format_ranks(std::vector<int> ranks) {
  const std::string word = ranks.size() == 1 ? "rank " : "ranks ";
  return word + format_number_set(std::move(ranks), 8);
}

std::string format_number_range(int first, int count) {
  const std::string low = std::to_string(first);
  return count == 1 ? low : low + '-' + std::to_string(first + count - 1);
}

std::string format_hex(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());  // secrets are not left in a smaller buffer (random_text)
  for (const unsigned char byte : bytes) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

std::optional<std::string> parse_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto high = kHex.find(text[i]), low = kHex.find(text[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

std::string quote(std::string_view text) {
  return '"' + std::string(text) + '"';
}

std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) {
    if (&word != &words.front()) text += between;
    text += word;
  }
  return text;
}

std::string join_alternatives(const std::vector<std::string>& words) {
  if (words.size() < 2) return join(words, "");
  return join({words.begin(), words.end() - 1}, ", ") + " or " + words.back();
}

std::string join_some(const std::vector<std::string>& words, std::size_t most) {
  const auto end = words.begin() + static_cast<std::ptrdiff_t>(std::min(words.size(), most));
  const std::string text = join({words.begin(), end}, ", ");
  return words.size() > most ? text + " and " + std::to_string(words.size() - most) + " more" : text;
}

std::string painted(const std::string& words, Colour colour, bool colours) {
  static constexpr std::array kBegins{"", "\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[1m", "\x1b[7m"};
  if (!colours || colour == Colour::kNone || words.empty()) return words;
  return kBegins.at(static_cast<std::size_t>(colour)) + words + "\x1b[0m";
}

void TextTable::omit_empty_columns() {
  for (std::size_t i = rows_.empty() ? 0 : rows_[0].size(); i-- > 0;) {
    const bool used =
        std::any_of(rows_.begin() + 1, rows_.end(), [i](const auto& row) { return !row[i].text.empty(); });
    for (auto& row : rows_)
      if (!used) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::string TextTable::text(bool colours) const {
  std::vector<std::size_t> widths;  // columns of a terminal
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], count_characters(row[i].text));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string blanks;  // before the next cell that has a text
    for (std::size_t i = 0; i < row.size(); ++i) {
      const Cell& cell = row[i];
      if (!cell.text.empty()) {
        text += blanks + painted(cell.text, cell.colour, colours);
        blanks.clear();
      }
      blanks += std::string(widths[i] - count_characters(cell.text) + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

namespace {

// Longer input is no typing error, and the table below grows with the square of the length.
constexpr std::size_t kMaxWord = 128;

std::string_view unique_extension(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.size() < 3) return {};
  std::string_view found;
  for (const std::string_view candidate : candidates) {
    if (!candidate.starts_with(word)) continue;
    if (!found.empty()) return {};
    found = candidate;
  }
  return found;
}

}  // namespace

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_variable_name(std::string_view name) {
  constexpr std::string_view kWord = "0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return !name.empty() && !is_digits(name.substr(0, 1)) &&
         name.find_first_not_of(kWord) == std::string_view::npos;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::vector<std::string_view> split(std::string_view text, char between) {
  std::vector<std::string_view> parts;
  for (;;) {
    parts.push_back(text.substr(0, text.find(between)));
    if (parts.back().size() == text.size()) return parts;
    text.remove_prefix(parts.back().size() + 1);
  }
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines = split(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

std::vector<std::string_view> split_at_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string_view> words;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    if (text.empty()) return words;
    words.push_back(text.substr(0, text.find_first_of(kBlanks)));
    text.remove_prefix(words.back().size());
  }
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * width);
  for (std::size_t j = 0; j < width; ++j)
    cost[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    cost[i * width] = i;
    for (std::size_t j = 1; j < width; ++j) {
      const std::size_t replace = cost[(i - 1) * width + j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      std::size_t best = std::min({cost[(i - 1) * width + j] + 1, cost[i * width + j - 1] + 1, replace});
      // Two neighbouring letters in the wrong order are one mistake (Damerau).
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, cost[(i - 2) * width + j - 2] + 1);
      }
      cost[i * width + j] = best;
    }
  }
  return cost.back();
}

std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.empty() || word.size() > kMaxWord) return {};
  if (const std::string_view found = unique_extension(word, candidates); !found.empty()) return found;
  std::string_view best;
  // A third of the letters may be wrong. Beyond that a suggestion is a guess.
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t gap =
        candidate.size() > word.size() ? candidate.size() - word.size() : word.size() - candidate.size();
    // The distance is at least the difference of the lengths.
    if (gap >= best_distance) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::optional<unsigned long long> whole_number(std::string_view text, unsigned long long max) {
  if (text.empty()) return std::nullopt;
  unsigned long long value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    const auto digit = static_cast<unsigned long long>(c - '0');
    if (digit > max || value > max / 10 || value * 10 > max - digit) return std::nullopt;
    value = value * 10 + digit;
  }
  return value;
}

namespace {

struct CodepointRange {
  char32_t first;
  char32_t last;
};
// Control characters, and what changes or hides text without being seen: soft hyphens, zero-width and
// bidirectional marks, line separators, tags. They could make a message look like another one.
constexpr std::array<CodepointRange, 11> kUnsafe{{{0x00, 0x1f},
                                                  {0x7f, 0x9f},
                                                  {0xad, 0xad},
                                                  {0x61c, 0x61c},
                                                  {0x180e, 0x180e},
                                                  {0x200b, 0x200f},
                                                  {0x2028, 0x202e},
                                                  {0x2060, 0x2069},
                                                  {0xfeff, 0xfeff},
                                                  {0xfff9, 0xfffb},
                                                  {0xe0000, 0xe007f}}};

void append_json_escape(char32_t unit, std::string& out) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4)
    out += kHex[(unit >> shift) & 15];
}

std::string spelled(const Utf8Character& character) {
  switch (character.code) {
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break;
  }
  const bool byte = character.length == 1;
  const bool tag = character.code > 0xffff;
  std::string text = byte ? "\\x" : tag ? "\\U" : "\\u";
  for (int shift = byte ? 4 : tag ? 28 : 12; shift >= 0; shift -= 4)
    text += kHex[(character.code >> shift) & 15];
  return text;
}

}  // namespace

bool Utf8Character::unsafe() const {
  if (!valid && code >= 0xa0) return false;  // the byte 0xad alone is no soft hyphen
  return std::any_of(kUnsafe.begin(), kUnsafe.end(), [this](const CodepointRange& range) {
    return range.first <= code && code <= range.last;
  });
}

bool Utf8Character::invisible() const {
  constexpr std::array<CodepointRange, 6> kBlanks{{{0xa0, 0xa0},
                                                   {0x1680, 0x1680},
                                                   {0x2000, 0x200a},
                                                   {0x202f, 0x202f},
                                                   {0x205f, 0x205f},
                                                   {0x3000, 0x3000}}};
  return (unsafe() && code != '\t') ||
         (valid && std::any_of(kBlanks.begin(), kBlanks.end(), [this](const CodepointRange& range) {
            return range.first <= code && code <= range.last;
          }));
}

std::string Utf8Character::name() const {
  if (code < 0xa0) return "control character (byte " + std::to_string(static_cast<unsigned>(code)) + ')';
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string number;
  for (int shift = code > 0xffff ? 20 : 12; shift >= 0; shift -= 4)
    number += kHex[(code >> shift) & 15];
  const bool no_break = code == 0xa0 || code == 0x202f;
  return no_break ? "no-break space (U+" + number + ')' : "invisible character U+" + number;
}

Utf8Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1, true};
  const Utf8Character invalid{lead, 1, false};
  const std::size_t length = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 1;
  if (length == 1 || text.size() < length) return invalid;
  char32_t code = lead & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0U) != 0x80) return invalid;
    code = code << 6 | (next & 0x3fU);
  }
  // Shorter encodings exist for smaller codes (overlong, RFC 3629, section 3).
  constexpr std::array<char32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return invalid;
  return {code, length, true};
}

std::string invisible_hint(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (character.invisible() && character.code >= 0xa0) {
      const std::string name = character.name();
      return (name.starts_with('i') ? "; the text has an " : "; the text has a ") + name;
    }
    text.remove_prefix(character.length);
  }
  return {};
}

std::string replace_unsafe(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    const bool stays = !character.unsafe() || character.code == '\n' || character.code == '\t';
    if (stays)
      safe += text.substr(0, character.length);
    else
      safe += '?';
    text.remove_prefix(character.length);
  }
  return safe;
}

std::string escape_unsafe_in_json(std::string_view document) {
  std::string safe;
  safe.reserve(document.size());
  while (!document.empty()) {
    const Utf8Character character = first_character(document);
    // Below 0x7f only the line ends between elements are unsafe; JSON text has no other control characters.
    if (character.code < 0x7f || !character.unsafe()) {
      safe += document.substr(0, character.length);
    } else if (character.code < 0x10000) {
      append_json_escape(character.code, safe);
    } else {  // a UTF-16 surrogate pair
      // 0xd7c0 is 0xd800 - (0x10000 >> 10).
      append_json_escape(0xd7c0 + (character.code >> 10), safe);
      append_json_escape(0xdc00 + (character.code & 0x3ff), safe);
    }
    document.remove_prefix(character.length);
  }
  return safe;
}

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (character.unsafe())
      line += spelled(character);
    else
      line += text.substr(0, character.length);
    text.remove_prefix(character.length);
  }
  return line;
}

}  // namespace ddp
