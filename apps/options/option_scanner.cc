#include "apps/options/option_scanner.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/parse_text.h"

namespace ddp {

namespace {

std::string_view without_dashes(std::string_view name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

}  // namespace

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

bool OptionScanner::takes_value(const std::string& name) const {
  if (table_.knows(name)) return table_.takes_value(name);
  return is_other(name) && other_takes_value(name);
}

bool OptionScanner::scan() {
  while (next_ < args_.size()) {
    const std::string& word = args_[next_];
    if (word == "--" || word.size() < 2 || word.front() != '-') return true;
    ++next_;
    if (!read_option(word)) return false;
  }
  return true;
}

// Returns false if the words behind the option are ambiguous.
bool OptionScanner::read_option(const std::string& word) {
  WrittenOption written = take_apart(word);
  given_.push_back(written.name);
  if (table_.knows(written.name)) {
    read_ours(std::move(written));
    return true;
  }
  return read_other(written) || read_unknown(written);
}

bool OptionScanner::is_option(const std::string& word) const {
  if (word == "--") return true;
  const std::string name = take_apart(word).name;
  return word.size() > 1 && word.front() == '-' && (table_.knows(name) || is_other(name));
}

// If an option stands where a value is expected, the value was forgotten. Any value behind '=' is intended.
bool OptionScanner::take_value(WrittenOption& written) {
  if (written.value) return true;
  if (next_ < args_.size() && !is_option(args_[next_])) {
    written.value = args_[next_++];
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
  const bool omitted = !written.value && (next_ == args_.size() || args_[next_].starts_with('-'));
  if (optional && omitted) return words_.push_back(written.name);
  if (!take_value(written)) return;
  if (written.value->empty() && !option.takes_empty) return fail(written.text + " has an empty value");
  if (optional) return words_.push_back(written.name + '=' + *written.value);
  words_.push_back(written.name);
  words_.push_back(std::move(*written.value));
}

void OptionScanner::read_flag(WrittenOption written) {
  const bool off = written.value == "false";
  if (written.value && !off && *written.value != "true")
    return fail(written.text + '=' + *written.value + ": give true, false, or no value");
  std::vector<std::string>& others = off ? words_ : off_;
  if (std::find(others.begin(), others.end(), written.name) != others.end())
    return fail(written.text + " is switched on and off");
  (off ? off_ : words_).push_back(written.name);
}

void OptionScanner::read_several(const Option& option, WrittenOption written) {
  std::vector<std::string> values;
  if (written.value) values.push_back(std::move(*written.value));
  while (next_ < args_.size() && (option.takes_all_words() || values.size() < option.least_values()) &&
         !is_option(args_[next_]))
    values.push_back(args_[next_++]);
  if (values.size() < option.least_values())
    return fail(written.text + " needs " + std::to_string(option.least_values()) +
                " values: " + written.text + " " + option.value);
  words_.push_back(written.name);
  words_.insert(words_.end(), values.begin(), values.end());
}

std::string_view OptionScanner::suggestion(const WrittenOption& written) const {
  const std::string_view word = without_dashes(written.name);
  if (word.size() < 3) return {};
  std::vector<std::string_view> names = table_.names();
  add_names(names);
  std::erase_if(names, [](std::string_view name) { return !name.starts_with("--"); });
  std::vector<std::string_view> bare;
  for (const std::string_view name : names)
    bare.push_back(without_dashes(name));
  const auto found = std::find(bare.begin(), bare.end(), nearest_word(word, bare));
  return found == bare.end() ? std::string_view() : names[static_cast<std::size_t>(found - bare.begin())];
}

bool OptionScanner::read_unknown(const WrittenOption& written) {
  const std::string_view meant = suggestion(written);
  if (meant.empty()) {
    fail("unknown option " + written.text + "; " + program_ + " --help lists all options" + unknown_hint());
    return written.value.has_value();
  }
  fail("unknown option " + written.text + "; did you mean " + std::string(meant) + "?");
  const bool takes = is_other(meant) ? other_takes_value(meant) : table_.takes_value(meant);
  if (takes && !written.value && next_ < args_.size() && !is_option(args_[next_])) ++next_;
  return true;
}

std::vector<std::string> parse_arguments(const std::string& program, const std::vector<std::string>& args,
                                         OptionTable& table) {
  OptionScanner scanner(program, args, table);
  std::vector<std::string> others;
  for (bool only_others = false; only_others || scanner.scan();) {
    if (scanner.next() >= args.size()) break;
    const std::string& word = args[scanner.next()];
    scanner.skip();
    if (word == "--" && !only_others) {
      only_others = true;
    } else {
      others.push_back(word);
    }
  }
  std::vector<std::string> errors = scanner.errors();
  for (std::size_t at = table.positionals(); at < others.size(); ++at)
    errors.push_back("unexpected word \"" + others[at] + "\"; " + program + " --help lists all options");
  others.resize(std::min(others.size(), table.positionals()));
  std::vector<std::string> words = scanner.words();
  words.emplace_back("--");  // a word behind it may begin with a dash
  words.insert(words.end(), others.begin(), others.end());
  std::vector<std::string> of_values = table.fill(words);
  errors.insert(errors.end(), of_values.begin(), of_values.end());
  return errors;
}

}  // namespace ddp
