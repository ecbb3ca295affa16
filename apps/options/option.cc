#include "apps/options/option.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace ddp {

namespace {

constexpr std::size_t kHelpColumn = 30;
constexpr std::size_t kHelpWidth = 100;

/// Breaks `text` into lines that begin at the help column.
std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t column = kHelpColumn;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::size_t size = end - begin;
    if (column + 1 + size > kHelpWidth) {
      out += '\n' + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (begin > 0) {
      out += ' ';
      ++column;
    }
    out += text.substr(begin, size);
    column += size;
    begin = end + 1;
  }
  return out;
}

std::string option_text(const Option& option) {
  std::string left = "  ";
  for (const char c : option.names)
    left += c == ',' ? std::string(", ") : std::string(1, c);
  if (option.takes_value()) left += ' ' + option.value;
  left += left.size() + 2 > kHelpColumn ? '\n' + std::string(kHelpColumn, ' ')
                                        : std::string(kHelpColumn - left.size(), ' ');
  const std::string standard =
      option.default_text.empty() ? std::string() : " (default: " + option.default_text + ")";
  return left + wrapped(option.help + standard) + '\n';
}

}  // namespace

std::size_t Option::least_values() const {
  std::size_t count = 0;
  for (std::size_t at = 0; at < value.size(); at = std::min(value.find(' ', at), value.size() - 1) + 1)
    if (value[at] != '[') ++count;
  return count;
}

std::vector<std::string> split_names(const std::string& names) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t end = std::min(names.find(',', at), names.size());
    parts.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

const Option& find_option(std::span<const OptionGroup> groups, std::string_view name) {
  for (const OptionGroup& group : groups) {
    for (const Option& option : group.options) {
      const std::vector<std::string> names = split_names(option.names);
      if (std::find(names.begin(), names.end(), name) != names.end()) return option;
    }
  }
  throw std::logic_error("internal error: no option " + std::string(name));
}

std::string help_text(std::string_view usage, std::span<const OptionGroup> groups) {
  std::string text(usage);
  for (const OptionGroup& group : groups) {
    text += "\n" + group.title + ":\n";
    for (const Option& option : group.options)
      text += option_text(option);
    if (!group.example.empty()) text += "  Example: " + group.example + '\n';
  }
  return text;
}

}  // namespace ddp
