#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/options/option.h"
#include "apps/options/option_values.h"

namespace ddp {

/// The options of one command: each is declared once, with its text and the field that gets its value. Only
/// the source file uses CLI11. One thread. The fields must outlive the table.
class OptionTable {
 public:
  /// `usage` opens --help. With `shows_fields` an option without a default_text has that of its field.
  explicit OptionTable(std::string usage, bool shows_fields = false);
  ~OptionTable();
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  /// Begins a group of --help, which the options declared next belong to.
  void group(std::string title, std::string intro = "", std::string example = "");
  void flag(Option option, bool& field);
  /// A flag that only given() knows.
  void flag(Option option);
  /// If the option is given several times, the last value counts. A name without dashes is a placeholder for
  /// a word without a name, like the operation of a benchmark.
  void value(Option option, ReadValue read);
  void value(Option option, OptionField field);
  /// If the option is given several times, `read` gets all values in their order. With a name without dashes
  /// it takes all words without a name, so it is the last such option.
  void list(Option option, ReadValue read);
  /// An option with several values, all of which go into `field`.
  void values(Option option, std::vector<std::string>& field);
  /// A value that is one of `words`, which become the placeholder unless `option` has one.
  template <class T>
  void choice(Option option, T& field, std::vector<std::pair<std::string, T>> words);

  /// Returns whether `name` ("--nnodes" or "-m", dashes only) is an option, and whether it takes a value.
  bool knows(std::string_view name) const { return find(name) != nullptr; }
  bool takes_value(std::string_view name) const;
  /// Returns the option, or nullptr.
  const Option* find(std::string_view name) const;
  /// Returns all names with dashes.
  std::vector<std::string_view> names() const;
  /// Returns how many words without a name the command takes.
  std::size_t positionals() const;

  /// Reads `words`, whose options are known, each followed by its values as separate words if it takes any.
  /// The value of an option that may omit it stands behind '='. Returns all errors of values, in the order of
  /// the declarations. Call it once.
  std::vector<std::string> fill(const std::vector<std::string>& words);
  /// Reads one value into its field, as fill() does. Returns the error, or an empty text.
  std::string read_value(std::string_view name, const std::string& value);
  /// Returns whether fill() has seen the option, by any of its names.
  bool given(std::string_view name) const;

  /// Returns the text of the field that an option of this table sets; a flag has "given". Empty: no value.
  std::string text(const Option& option) const;

  /// Returns the text of --help.
  std::string help() const;
  const std::vector<OptionGroup>& groups() const;

 private:
  void choose(Option option, std::vector<std::string> words, std::function<void(std::size_t)> set,
              std::function<std::size_t()> chosen);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

template <class T>
void OptionTable::choice(Option option, T& field, std::vector<std::pair<std::string, T>> words) {
  const auto chosen = [&field, words] {
    const auto found =
        std::find_if(words.begin(), words.end(), [&](const auto& w) { return w.second == field; });
    return static_cast<std::size_t>(found - words.begin());
  };
  choose(
      std::move(option), words_of(words), [&field, words](std::size_t which) { field = words[which].second; },
      chosen);
}

}  // namespace ddp
