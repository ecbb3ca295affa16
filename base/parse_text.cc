#include "base/parse_text.h"

#include <algorithm>

namespace ddp {

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
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t gap =
        candidate.size() > word.size() ? candidate.size() - word.size() : word.size() - candidate.size();
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

}  // namespace ddp
