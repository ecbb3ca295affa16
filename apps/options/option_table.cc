#include "apps/options/option_table.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>

#include "base/format_text.h"

namespace ddp {

namespace {

/// Returns the first long name.
std::string name_in_messages(const Option& option) {
  const std::vector<std::string> names = split_names(option.names);
  const auto is_long = [](const std::string& name) { return name.starts_with("--"); };
  const auto found = std::find_if(names.begin(), names.end(), is_long);
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
    for (std::string& name : split_names(option.names))
      by_name.emplace(std::move(name), std::pair{groups.size() - 1, group.options.size()});
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
    const auto found = std::find(words.begin(), words.end(), text);
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
  const auto found = std::find_if(impl_->readers.begin(), impl_->readers.end(),
                                  [&](const Impl::ValueReader& reader) { return reader.option == option; });
  return found->read(value);
}

bool OptionTable::given(std::string_view name) const {
  return impl_->app.count(std::string(name)) > 0;
}

std::string OptionTable::text(const Option& option) const {
  return impl_->texts.at(option.names)();
}

std::string OptionTable::help() const {
  return help_text(impl_->usage, impl_->groups);
}

const std::vector<OptionGroup>& OptionTable::groups() const {
  return impl_->groups;
}

}  // namespace ddp
