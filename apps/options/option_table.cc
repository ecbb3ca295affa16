#include "apps/options/option_table.h"

#include <array>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <ranges>
#include <stdexcept>
#include <system_error>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "base/text.h"

namespace ddp {
namespace {

constexpr std::size_t kHelpColumn = 30;
constexpr std::size_t kBriefColumn = 37;  ///< the widest option of --help reaches it
constexpr std::size_t kHelpWidth = 100;

}  // namespace

std::string wrapped(const std::string& text, std::size_t column, std::size_t indent) {
  std::string out;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::size_t size = end - begin;
    if (column + 1 + size > kHelpWidth) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
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

namespace {

std::string option_text(const Option& option, std::size_t help_column = kHelpColumn) {
  std::string left = "  ";
  for (const char c : option.names)
    left += c == ',' ? std::string(", ") : std::string(1, c);
  if (option.takes_value()) left += ' ' + option.value;
  left += left.size() + 2 > help_column ? '\n' + std::string(help_column, ' ')
                                        : std::string(help_column - left.size(), ' ');
  std::string text = option.help;
  if (!option.needs().empty()) text += "; only with " + option.needs();
  if (!option.default_text.empty()) text += " (default: " + option.default_text + ")";
  return left + wrapped(text, help_column, help_column) + '\n';
}

}  // namespace

std::size_t Option::least_values() const {
  std::size_t count = 0;
  for (std::size_t at = 0; at < value.size(); at = std::min(value.find(' ', at), value.size() - 1) + 1)
    if (value[at] != '[') ++count;
  return count;
}

namespace {

/// "`--host` or `--hostfile`". A circumstance is code if it is typed as well.
std::string alternatives_text(std::vector<std::string> others) {
  for (std::string& other : others)
    if (other.starts_with("--") || other.starts_with("ddplaunch ")) other = '`' + other + '`';
  return join_alternatives(others);
}

}  // namespace

bool Option::excludes(const Option& other) const {
  const auto forbids = [](const Option& one, const Option& another) {
    const std::vector<std::string> names = split_names(another.names);
    return std::ranges::any_of(one.not_with, [&](const OptionRule& rule) {
      return std::ranges::find_first_of(rule.others, names) != rule.others.end();
    });
  };
  return forbids(*this, other) || forbids(other, *this);
}

std::string Option::rules_text() const {
  std::string text = rules_for.empty() ? "" : "With `" + rules_for + "`:";
  if (!only_with.others.empty())
    text += (text.empty() ? "Only with " : " only with ") + alternatives_text(only_with.others) + '.';
  std::vector<std::string> unwanted;
  for (const OptionRule& rule : not_with)
    unwanted.insert(unwanted.end(), rule.others.begin(), rule.others.end());
  if (unwanted.empty()) return text;
  if (rules_for.empty())
    return text + (text.empty() ? "Not with " : " Not with ") + alternatives_text(unwanted) + '.';
  if (text.ends_with('.')) text.replace(text.size() - 1, 1, ", and");
  return text + " not with " + alternatives_text(unwanted) + '.';
}

std::vector<std::string> split_names(const std::string& names) {
  const auto parts = names.empty() ? std::vector<std::string_view>() : split(names, ',');
  return {parts.begin(), parts.end()};
}

namespace {

constexpr double kMostMilliseconds = 3.6e9;  // 1000 hours
constexpr double kMostBytes = 0x1p50;
constexpr double kUnreachable = 1e12;  // a message does not name such a bound

struct Unit {
  std::string_view name;
  double scale;
};
constexpr std::array kTimes{Unit{"", 1e3},  Unit{"ms", 1},    Unit{"s", 1e3},
                            Unit{"m", 6e4}, Unit{"min", 6e4}, Unit{"h", 3.6e6}};
constexpr std::array kSizes{Unit{"", 1},         Unit{"b", 1},       Unit{"k", 0x1p10},   Unit{"kb", 0x1p10},
                            Unit{"kib", 0x1p10}, Unit{"m", 0x1p20},  Unit{"mb", 0x1p20},  Unit{"mib", 0x1p20},
                            Unit{"g", 0x1p30},   Unit{"gb", 0x1p30}, Unit{"gib", 0x1p30}, Unit{"t", 0x1p40},
                            Unit{"tb", 0x1p40},  Unit{"tib", 0x1p40}};

/// Reads digits, which may have a fraction, and a unit.
std::optional<double> scaled(std::string_view text, std::span<const Unit> units) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || std::isdigit(static_cast<unsigned char>(text.front())) == 0)
    return std::nullopt;
  const std::string_view name(rest, static_cast<std::size_t>(end - rest));
  for (const Unit& unit : units)
    if (name == unit.name) return value * unit.scale;
  return std::nullopt;
}

std::string bound_text(double bound) {
  return format_text("%.16g", bound);
}

std::string size_text(std::uint64_t size) {
  std::string unit;
  for (const char larger : {'K', 'M', 'G'}) {
    if (size == 0 || size % 1024 != 0) break;
    size /= 1024;
    unit = larger;
  }
  return std::to_string(size) + unit;
}

}  // namespace

std::string duration_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + 's' : std::to_string(ms) + "ms";
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const auto value = scaled(text, kTimes);
  if (!value || *value > kMostMilliseconds) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(*value));
}

std::optional<std::chrono::milliseconds> parse_moment(std::string_view text, std::chrono::milliseconds now) {
  using namespace std::chrono;
  if (const auto before = parse_duration(text)) return now - *before;
  constexpr std::string_view kForm = "dddd-dd-ddTdd:dd:dd";
  if (text.size() <= kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool fits = kForm[i] == 'd' ? is_digits(text.substr(i, 1))
                                      : std::toupper(static_cast<unsigned char>(text[i])) == kForm[i];
    if (!fits) return std::nullopt;
  }
  const auto number = [&text](std::size_t at, std::size_t size) {
    return parse_number<int>(text.substr(at, size)).value_or(-1);
  };
  const year_month_day day{year(number(0, 4)), month(static_cast<unsigned>(number(5, 2))),
                           std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  const int clock[] = {number(11, 2), number(14, 2), number(17, 2)};
  if (!day.ok() || clock[0] > 23 || clock[1] > 59 || clock[2] > 60 || number(0, 4) < 1970)
    return std::nullopt;
  milliseconds time =
      sys_days(day).time_since_epoch() + hours(clock[0]) + minutes(clock[1]) + seconds(clock[2]);
  text.remove_prefix(kForm.size());
  if (text.front() == '.') {
    const std::size_t end = std::min(text.find_first_not_of("0123456789", 1), text.size());
    if (end == 1) return std::nullopt;
    std::string fraction(text.substr(1, std::min<std::size_t>(end - 1, 3)));
    fraction.resize(3, '0');
    time += milliseconds(parse_number<int>(fraction).value_or(0));
    text.remove_prefix(end);
  }
  if (text == "Z" || text == "z") return time;
  const bool offset = text.size() == 6 && (text[0] == '+' || text[0] == '-') && text[3] == ':' &&
                      is_digits(text.substr(1, 2)) && is_digits(text.substr(4, 2));
  if (!offset || number(1, 2) > 23 || number(4, 2) > 59) return std::nullopt;
  const minutes ahead = hours(number(1, 2)) + minutes(number(4, 2));
  return text[0] == '+' ? time - ahead : time + ahead;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const auto value = scaled(lower_case(text), kSizes);
  if (!value || *value > kMostBytes) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

ReadValue any_text(std::function<void(const std::string& text)> take) {
  return [take = std::move(take)](const std::string& text) {
    take(text);
    return std::string();
  };
}

OptionField text_into(std::string& field) {
  return {any_text([&field](const std::string& text) { field = text; }), [&field] { return field; }};
}

ReadValue texts_into(std::vector<std::string>& field) {
  return any_text([&field](const std::string& text) { field.push_back(text); });
}

OptionField directory_into(std::string& field) {
  const auto take = [&field](const std::string& text) {
    field = text.substr(0, std::max<std::size_t>(text.find_last_not_of('/') + 1, 1));
  };
  return {any_text(take), [&field] { return field; }};
}

OptionField time_into(std::chrono::milliseconds& field, std::chrono::milliseconds least, bool zero_is_off) {
  const auto read = [=, &field](const std::string& text) -> std::string {
    const auto time = parse_duration(text);
    if (!time && scaled(text, kTimes))
      return " is too long; at most " +
             duration_text(std::chrono::milliseconds(static_cast<std::int64_t>(kMostMilliseconds)));
    if (!time) return ": give a time like 500ms, 15s, 2m or 1h";
    if (*time < least && !(zero_is_off && text == "0"))
      return " is too short; at least " + std::to_string(least.count()) + "ms";
    field = *time;
    return "";
  };
  return {read, [&field] { return duration_text(field); }};
}

OptionField size_into(std::size_t& field, std::size_t least) {
  const auto read = [=, &field](const std::string& text) -> std::string {
    const auto size = parse_size(text);
    if (!size || *size < least) return ": give a size like 8, 64K, 1.5M or 2G";
    field = static_cast<std::size_t>(*size);
    return "";
  };
  return {read, [&field] { return size_text(field); }};
}

ReadValue checked(bool (*is_valid)(std::string_view text), std::string advice, ReadValue read) {
  return [is_valid, advice = std::move(advice), read = std::move(read)](const std::string& text) {
    return is_valid(text) ? read(text) : advice;
  };
}

std::string number_advice(double low, double high, bool whole, std::optional<double> number) {
  std::string text = whole ? ": give a whole number" : ": give a number";
  if (high < kUnreachable) return text + " from " + bound_text(low) + " to " + bound_text(high);
  if (number && *number > high) return text + " up to " + bound_text(high);
  if (low > -kUnreachable && (number || low != 0)) return text + " of at least " + bound_text(low);
  return text;
}

std::string number_text(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

namespace {

/// Returns the first long name.
std::string name_in_messages(const Option& option) {
  const std::vector<std::string> names = split_names(option.names);
  const auto found = std::ranges::find_if(names, [](const auto& name) { return name.starts_with("--"); });
  return found == names.end() ? names.front() : *found;
}

/// Puts the option's name and the text before the answer of the reader.
ReadValue with_name(const Option& option, ReadValue read) {
  return [name = name_in_messages(option), read = std::move(read)](const std::string& text) {
    const std::string error = read(text);
    return error.empty() ? error : name + ' ' + text + error;
  };
}

}  // namespace

struct OptionTable::Impl {
  std::string usage;
  CLI::App app;
  std::vector<OptionGroup> groups;
  std::map<std::string, std::pair<std::size_t, std::size_t>, std::less<>> by_name;  ///< group, option
  struct ValueReader {
    CLI::Option* option;
    ReadValue read;  ///< returns the whole message of an error
    bool takes_all;  ///< else only the last value
  };
  std::vector<ValueReader> readers;
  std::size_t positionals = 0;
  bool shows_fields = false;
  std::map<std::string, std::function<std::string()>> texts;  ///< by Option::names

  void describe(Option& option, std::function<std::string()> text) {
    if (shows_fields && option.default_text.empty()) option.default_text = text();
    texts.emplace(option.names, std::move(text));
  }

  void remember(Option option) {
    if (!option.names.starts_with('-'))
      positionals = option.repeats ? std::numeric_limits<std::size_t>::max() : positionals + 1;
    if (groups.empty()) throw std::logic_error("internal error: an option is declared before a group");
    OptionGroup& group = groups.back();
    const auto place = std::pair{groups.size() - 1, group.options.size()};
    for (const std::string& names : {option.names, option.other_names})
      for (std::string& name : split_names(names))
        by_name.emplace(std::move(name), place);
    option.group = group.title;
    group.options.push_back(std::move(option));
  }

  // CLI11 converts no value, since it gives some texts ("{}") a meaning of their own.
  void add(Option option, ReadValue read, bool takes_all = false) {
    const int least = option.may_omit_value() ? 0 : std::max(1, static_cast<int>(option.least_values()));
    CLI::Option* added = app.add_option(option.names);
    const bool takes_many = option.takes_all_words() || (option.repeats && !option.names.starts_with('-'));
    added->allow_extra_args(takes_many);
    added->expected(least, takes_many ? CLI::detail::expected_max_vector_size : std::max(1, least));
    added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    readers.push_back({added, std::move(read), takes_all});
    remember(std::move(option));
  }
};

OptionTable::OptionTable(std::string usage, bool shows_fields) : impl_(std::make_unique<Impl>()) {
  impl_->usage = std::move(usage);
  impl_->shows_fields = shows_fields;
  impl_->app.set_help_flag();
}

OptionTable::~OptionTable() = default;

void OptionTable::group(std::string title, std::string intro, std::string example) {
  impl_->groups.push_back({std::move(title), std::move(intro), std::move(example), {}});
}

void OptionTable::flag(Option option, bool& field) {
  impl_->app.add_flag(option.names, field);
  impl_->describe(option, [&field] { return std::string(field ? "given" : ""); });
  impl_->remember(std::move(option));
}

void OptionTable::flag(Option option) {
  impl_->app.add_flag(option.names);
  impl_->remember(std::move(option));
}

void OptionTable::value(Option option, ReadValue read) {
  ReadValue whole = with_name(option, std::move(read));
  impl_->add(std::move(option), std::move(whole));
}

void OptionTable::value(Option option, OptionField field) {
  impl_->describe(option, std::move(field.text));
  value(std::move(option), std::move(field.read));
}

void OptionTable::list(Option option, ReadValue read) {
  ReadValue whole = with_name(option, std::move(read));
  option.repeats = true;
  impl_->add(std::move(option), std::move(whole), true);
}

void OptionTable::values(Option option, std::vector<std::string>& field) {
  impl_->add(std::move(option), texts_into(field), true);
}

void OptionTable::choose(Option option, std::vector<std::string> words, std::function<void(std::size_t)> set,
                         std::function<std::size_t()> chosen) {
  if (option.value.empty()) option.value = join(words, "|");
  const std::string name = name_in_messages(option);
  impl_->describe(option, [words, chosen = std::move(chosen)] {
    const std::size_t which = chosen();
    return which < words.size() ? words[which] : std::string();
  });
  ReadValue read = [name, words = std::move(words), set = std::move(set)](const std::string& text) {
    const auto found = std::ranges::find(words, text);
    if (found == words.end()) return "unknown " + name + " \"" + text + "\" (" + join(words, ", ") + ")";
    set(static_cast<std::size_t>(found - words.begin()));
    return std::string();
  };
  impl_->add(std::move(option), std::move(read));
}

const Option* OptionTable::find(std::string_view name) const {
  const auto found = impl_->by_name.find(name);
  if (found == impl_->by_name.end()) return nullptr;
  return &impl_->groups[found->second.first].options[found->second.second];
}

bool OptionTable::takes_value(std::string_view name) const {
  const Option* option = find(name);
  return option != nullptr && option->takes_value();
}

std::vector<std::string_view> OptionTable::names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, place] : impl_->by_name)
    if (name.starts_with('-')) names.emplace_back(name);
  return names;
}

std::size_t OptionTable::positionals() const {
  return impl_->positionals;
}

std::vector<std::string> OptionTable::fill(const std::vector<std::string>& words) {
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    impl_->app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    throw std::logic_error(std::string("internal error: options passed the scan, but (please report): ") +
                           error.what());
  }
  std::vector<std::string> errors;
  for (const Impl::ValueReader& reader : impl_->readers) {
    const std::vector<std::string>& texts = reader.option->results();
    for (std::size_t i = reader.takes_all || texts.empty() ? 0 : texts.size() - 1; i < texts.size(); ++i) {
      std::string error = reader.read(texts[i]);
      if (!error.empty()) errors.push_back(std::move(error));
    }
  }
  return errors;
}

std::string OptionTable::read_value(std::string_view name, const std::string& value) {
  const CLI::Option* option = impl_->app.get_option(std::string(name));
  return std::ranges::find(impl_->readers, option, &Impl::ValueReader::option)->read(value);
}

bool OptionTable::given(std::string_view name) const {
  return impl_->app.count(std::string(name)) > 0;
}

std::vector<std::string> OptionTable::broken_rules(
    const std::vector<std::string>& circumstances,
    const std::function<bool(const Option&)>& is_for_all_jobs) const {
  const auto is_used = [&](const Option& option) {
    return given(split_names(option.names).front()) && !(option.takes_empty && text(option).empty());
  };
  const auto holds = [&](const std::string& other) {
    if (!other.starts_with('-')) return std::ranges::count(circumstances, other) > 0;
    const std::size_t blank = other.find(' ');
    const Option& option = *find(other.substr(0, blank));
    return blank == std::string::npos ? is_used(option) : text(option) == other.substr(blank + 1);
  };
  std::vector<std::string> errors;
  const auto check = [&](const Option& option) {
    const auto applies = [&](const OptionRule& rule) {
      return !rule.others.empty() && !(rule.is_harmless && is_for_all_jobs && is_for_all_jobs(option));
    };
    std::string name = name_in_messages(option);
    if (!option.rules_for.empty()) {
      if (option.rules_for != text(option)) return;
      name += ' ' + option.rules_for;
    }
    for (const OptionRule& rule : option.not_with) {
      std::vector<std::string> found;
      std::ranges::copy_if(rule.others, std::back_inserter(found), holds);
      if (applies(rule) && !found.empty())
        errors.push_back(name + " cannot be used with " + join(found, " and ") + rule.advice);
    }
    const OptionRule& needed = option.only_with;
    if (!applies(needed) || std::ranges::any_of(needed.others, holds)) return;
    const bool any_value =
        needed.others.front().starts_with('-') && needed.others.front().find(' ') == std::string::npos;
    errors.push_back(name + (any_value ? " needs " : " is only for ") + join_alternatives(needed.others) +
                     needed.advice);
  };
  for (const OptionGroup& group : impl_->groups)
    std::ranges::for_each(group.options | std::views::filter(is_used), check);
  return errors;
}

std::string OptionTable::text(const Option& option) const {
  return impl_->texts.at(option.names)();
}

std::string OptionTable::help() const {
  std::string text = impl_->usage;
  for (const OptionGroup& group : impl_->groups) {
    text += "\n" + group.title + ":\n";
    for (const Option& option : group.options)
      text += option_text(option);
    if (!group.example.empty()) text += "  Example: " + group.example + '\n';
  }
  return text;
}

std::string OptionTable::help_of(const std::string& names, bool brief) const {
  std::string text;
  for (const std::string& name : split_names(names)) {
    Option option = *find(name);
    const auto& needed = option.only_with.others;
    if (brief || (!needed.empty() && !needed.front().starts_with('-')))
      option.only_with = {};  // it holds here
    if (brief) {
      option.help.resize(std::min(
          {option.help.size(), option.help.find("; "), option.help.find(" ("), option.help.find(": ")}));
      option.default_text.clear();
    }
    text += option_text(option, brief ? kBriefColumn : kHelpColumn);
  }
  return text;
}

const std::vector<OptionGroup>& OptionTable::groups() const {
  return impl_->groups;
}

WrittenOption OptionScanner::take_apart(const std::string& word) const {
  WrittenOption written;
  const bool is_long = word.starts_with("--");
  const std::size_t equals = is_long ? word.find('=') : std::string::npos;
  written.text = word.substr(0, equals);
  if (equals != std::string::npos) written.value = word.substr(equals + 1);
  const std::size_t digit = is_long ? std::string::npos : word.find_first_of("0123456789");  // -n2, -np2
  if (digit != std::string::npos && digit >= 2 && takes_value(word.substr(0, digit))) {
    written.text = word.substr(0, digit);
    written.value = word.substr(digit);
  }
  written.name = written.text;
  if (is_long) std::replace(written.name.begin(), written.name.end(), '_', '-');
  return written;
}

const CompatibilityOption* OptionScanner::find_other(std::string_view name) const {
  const auto found = std::ranges::find(others_, name, &CompatibilityOption::name);
  return found == others_.end() ? nullptr : &*found;
}

bool OptionScanner::takes_value(std::string_view name) const {
  const CompatibilityOption* other = find_other(name);
  return other != nullptr ? other->takes_value : table_.takes_value(name);
}

bool OptionScanner::scan() {
  while (next < args_.size()) {
    const std::string& word = args_[next];
    if (word == "--" || word.size() < 2 || word.front() != '-') return true;
    ++next;
    if (!read_option(word)) return false;
  }
  return true;
}

// Returns false if the words behind the option are ambiguous.
bool OptionScanner::read_option(const std::string& word) {
  WrittenOption written = take_apart(word);
  given.push_back(written.name);
  if (const Option* option = table_.find(written.name); option != nullptr) {
    if (std::ranges::count(split_names(option->names), written.name) == 0)
      given.push_back(written.name = name_in_messages(*option));
    read_ours(std::move(written));
    return true;
  }
  const CompatibilityOption* other = find_other(written.name);
  if (other == nullptr) return read_unknown(written);
  read_other(*other, std::move(written));
  return true;
}

bool OptionScanner::is_option(const std::string& word) const {
  if (word == "--") return true;
  const std::string name = take_apart(word).name;
  return word.size() > 1 && word.front() == '-' && (table_.knows(name) || find_other(name) != nullptr);
}

// If an option stands where a value is expected, the value was forgotten. Any value behind '=' is intended.
bool OptionScanner::take_value(WrittenOption& written) {
  if (written.value) return true;
  if (next < args_.size() && !is_option(args_[next])) {
    written.value = args_[next++];
    return true;
  }
  const Option* option = table_.find(written.name);
  fail(written.text + " needs a value" +
       (option == nullptr ? "" : ": " + written.text + " " + option->value));
  return false;
}

void OptionScanner::read_ours(WrittenOption written) {
  const Option& option = *table_.find(written.name);
  if (!option.takes_value()) return read_flag(std::move(written));
  if (option.least_values() > 1) return read_several(option, std::move(written));
  const bool optional = option.may_omit_value();
  const bool omitted = !written.value && (next == args_.size() || args_[next].starts_with('-'));
  if (optional && omitted) return words.push_back(written.name);
  if (!take_value(written)) return;
  if (written.value->empty() && !option.takes_empty) return fail(written.text + " has an empty value");
  if (optional) return words.push_back(written.name + '=' + *written.value);
  words.push_back(written.name);
  words.push_back(std::move(*written.value));
}

void OptionScanner::read_flag(WrittenOption written) {
  const bool off = written.value == "false";
  if (written.value && !off && *written.value != "true")
    return fail(written.text + '=' + *written.value + ": give true, false, or no value");
  std::vector<std::string>& others = off ? words : switched_off;
  if (std::ranges::count(others, written.name) > 0) return fail(written.text + " is switched on and off");
  (off ? switched_off : words).push_back(written.name);
}

void OptionScanner::read_several(const Option& option, WrittenOption written) {
  std::vector<std::string> values;
  if (written.value) values.push_back(std::move(*written.value));
  while (next < args_.size() && (option.takes_all_words() || values.size() < option.least_values()) &&
         !is_option(args_[next]))
    values.push_back(args_[next++]);
  if (values.size() < option.least_values())
    return fail(written.text + " needs " + std::to_string(option.least_values()) +
                " values: " + written.text + " " + option.value);
  words.push_back(written.name);
  words.insert(words.end(), values.begin(), values.end());
}

void OptionScanner::read_other(const CompatibilityOption& other, WrittenOption written) {
  const bool refused = other.status == SupportStatus::kRefused;
  if (other.takes_value && !take_value(written)) return;
  if (!other.takes_value && written.value) return fail(written.text + " takes no value");
  if (other.status == SupportStatus::kRenamed) {
    given.emplace_back(other.text);
    return void(words.insert(words.end(), {std::string(other.text), std::string(other.value)}));
  }
  const std::string reason = ": " + std::string(other.text);
  if (!refused) return notes.push_back(written.text + " has no effect" + reason);
  const std::size_t blank = std::min(other.value.find(' '), other.value.size());
  const bool is_accepted =
      other.takes_value && blank > 0 && lower_case(*written.value) == other.value.substr(0, blank);
  if (!is_accepted) return fail(written.text + " is not an option of " + program_ + reason);
  if (blank == other.value.size()) return;
  const std::string option(other.value.substr(blank + 1));
  words.insert(words.end(), {option.substr(0, option.find(' ')), option.substr(option.find(' ') + 1)});
}

std::string OptionScanner::suggestion(const WrittenOption& written) const {
  const std::string word =
      written.name.substr(std::min(written.name.find_first_not_of('-'), written.name.size()));
  if (word.size() < 3) return {};
  std::vector<std::string_view> names = table_.names();
  for (const CompatibilityOption& other : others_)
    if (other.status != SupportStatus::kRefused) names.push_back(other.name);
  std::erase_if(names, [](std::string_view name) { return !name.starts_with("--"); });
  for (std::string_view& name : names)
    name.remove_prefix(2);
  const std::string_view meant = nearest_word(word, names);
  return meant.empty() ? "" : concat("--", meant);
}

bool OptionScanner::read_unknown(const WrittenOption& written) {
  const std::string meant = suggestion(written);
  if (meant.empty()) {
    fail("unknown option " + written.text + "; " + hint_);
    return written.value.has_value();
  }
  fail("unknown option " + written.text + "; did you mean " + meant + "?");
  if (takes_value(meant) && !written.value && next < args_.size() && !is_option(args_[next])) ++next;
  return true;
}

std::vector<std::string> parse_arguments(const std::string& program, const std::vector<std::string>& args,
                                         OptionTable& table) {
  OptionScanner scanner(program, args, table);
  std::vector<std::string> others;
  for (bool only_others = false; only_others || scanner.scan();) {
    if (scanner.next >= args.size()) break;
    const std::string& word = args[scanner.next++];
    if (word == "--" && !only_others) {
      only_others = true;
    } else {
      others.push_back(word);
    }
  }
  std::vector<std::string> errors = scanner.errors;
  for (std::size_t at = table.positionals(); at < others.size(); ++at)
    errors.push_back("unexpected word \"" + others[at] + "\"; " + program + " --help lists all options");
  others.resize(std::min(others.size(), table.positionals()));
  std::vector<std::string> words = scanner.words;
  words.emplace_back("--");  // a word behind it may begin with a dash
  words.insert(words.end(), others.begin(), others.end());
  std::vector<std::string> of_values = table.fill(words);
  errors.insert(errors.end(), of_values.begin(), of_values.end());
  return errors.empty() ? table.broken_rules() : errors;
}

}  // namespace ddp
