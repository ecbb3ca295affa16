#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.h"

namespace ddp {

/// The kind of values that a shell offers for an option.
/// kHost: a host of the --hostfile on the line. Placeholders FILE and DIR need no kind.
enum class Completion : std::uint8_t {
  kNothing,
  kFile,
  kDirectory,
  kHostfile,
  kHost,
  kJobId,
  kRank,
  kProgram
};

/// Which options cannot be used beside an option, or which of them it needs.
struct OptionRule {
  /// "--host": the option is given. "--launcher daemon": it has this value, given or not. Any other text is a
  /// circumstance that the program knows, as messages name it: "ddplaunch check".
  std::vector<std::string> others = {};
  std::string advice = "";   ///< ends the message: "; name a file"
  bool is_harmless = false;  ///< the option merely has no effect then
};

/// One option of a program, declared once. --help, the man page, the reference page and the shells'
/// completion are made from it (./dev docs).
struct Option {
  std::string names;             ///< "-t,--tee"
  std::string other_names = "";  ///< names in other programs, accepted on the command line: "--num-nodes"
  /// Placeholder of the value: "TIME". "a|b" lists words, which shells complete. "[FILE]" may be omitted.
  /// Words between blanks are several values: "SHA256 FILE". Empty: a flag.
  std::string value = "";
  std::string default_text = "";  ///< "15s"; empty: there is none, or `help` names it
  std::string help = "";          ///< one line of --help, without a full stop
  std::string details = "";       ///< further sentences for man page and reference page, as Markdown
  Completion completion = Completion::kNothing;
  std::vector<std::string> words = {};    ///< completed as well as `completion`; empty: the words in `value`
  bool takes_empty = false;               ///< an empty value is valid
  bool equal = false;                     ///< all ranks of a job need the same value
  std::vector<OptionRule> not_with = {};  ///< the option is an error with any of these
  OptionRule only_with = {};   ///< the option is an error without one of these; empty: it needs none
  std::string rules_for = "";  ///< the value that the rules are for: "auto"; empty: any
  bool repeats = false;        ///< may be given several times; OptionTable::list sets it
  std::string group = {};      ///< title of its group; OptionTable sets it

  bool takes_value() const { return !value.empty(); }
  bool may_omit_value() const { return value.starts_with('['); }
  /// The number of values that the option needs.
  std::size_t least_values() const;
  /// Returns whether all words behind the option, up to the next option, are its values.
  bool takes_all_words() const { return value.ends_with("…]"); }
  /// Returns whether the rule of one of them forbids the other, whatever their values are.
  bool excludes(const Option& other) const;
  /// Returns what the option needs with any value: "--listen or --host"; empty: nothing.
  std::string needs() const { return rules_for.empty() ? join_alternatives(only_with.others) : ""; }
  /// Returns the rules as sentences in Markdown: "Only with `--listen`. Not with `--host`."
  std::string rules_text() const;
};

/// Options with one title, in the order of --help.
struct OptionGroup {
  std::string title;
  std::string intro;    ///< sentences for man page and reference page, as Markdown; empty: none
  std::string example;  ///< a command line for --help; empty: none
  std::vector<Option> options;
};

/// Breaks `text`, which begins at `column`, at blanks into lines of the width of --help. Further lines begin
/// behind `indent` blanks.
std::string wrapped(const std::string& text, std::size_t column, std::size_t indent);

/// Returns the names of an option: "-t", "--tee".
std::vector<std::string> split_names(const std::string& names);

/// Reads the value of an option into its field. Returns why `text` is refused, as the end of a message that
/// begins with the option and the text: ": give a port from 1 to 65535". Empty: the field is set.
using ReadValue = std::function<std::string(const std::string& text)>;

/// A field of a program's options, which an option sets.
struct OptionField {
  ReadValue read;
  std::function<std::string()> text;  ///< returns the value as a user may write it; empty: no value

  std::string operator()(const std::string& value) const { return read(value); }
};

/// Returns the words of a list of words and their values.
template <class T>
std::vector<std::string> words_of(const std::vector<std::pair<std::string, T>>& list) {
  std::vector<std::string> words;
  for (const auto& [word, value] : list)
    words.push_back(word);
  return words;
}

/// Reads "500ms", "15s", "2m", "2min", "1h" or a number of seconds, also with decimals: "1.5s". Up to 1000
/// hours.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);
/// Reads a moment: "2026-11-21T03:14:39.962Z" or with an offset like "+01:00" (RFC 3339, from 1970 on), or a
/// duration before `now`. Returns the time since 1970.
std::optional<std::chrono::milliseconds> parse_moment(std::string_view text, std::chrono::milliseconds now);
/// Reads bytes: 4096, 500K, 1.5M, 2G, also KiB, MiB, GiB and KB; all units are powers of 1024, their letters
/// of either case. Up to 1 PiB.
std::optional<std::uint64_t> parse_size(std::string_view text);

/// The functions below return readers or, if a field has a text, fields. The variable must outlive them.

/// Any text, which `take` puts into its field.
ReadValue any_text(std::function<void(const std::string& text)> take);
OptionField text_into(std::string& field);
ReadValue texts_into(std::vector<std::string>& field);
/// A path without slashes at its end.
OptionField directory_into(std::string& field);
/// At least `least`. With `zero_is_off` a text "0" is accepted as well.
OptionField time_into(std::chrono::milliseconds& field, std::chrono::milliseconds least,
                      bool zero_is_off = false);
/// At least one byte, unless `least` is 0.
OptionField size_into(std::size_t& field, std::size_t least);

/// As `read`, for texts that `is_valid` accepts. `advice` ends the message about any other text: ": give a
/// name".
ReadValue checked(bool (*is_valid)(std::string_view text), std::string advice, ReadValue read);
/// A value that `parse` makes of a text. It returns nullopt for a wrong text, and `advice` ends the message.
template <class T, class Parsed>
ReadValue parsed_into(T& field, std::optional<Parsed> (*parse)(std::string_view text), std::string advice) {
  return [&field, parse, advice = std::move(advice)](const std::string& text) {
    std::optional<Parsed> value = parse(text);
    if (!value) return advice;
    field = std::move(*value);
    return std::string();
  };
}

/// Returns ": give a whole number from 1 to 8", without a bound that nobody reaches, unless `number` broke
/// it.
std::string number_advice(double low, double high, bool whole, std::optional<double> number = {});
/// Returns the shortest text that has this value.
std::string number_text(double value);
/// Returns a time as an option takes it: "15s", "1500ms".
std::string duration_text(std::chrono::milliseconds time);

/// A number from `low` to `high`.
template <class T>
requires(std::integral<T> || std::floating_point<T>) OptionField
    number_into(T& field, double low, double high) {
  const auto read = [&field, low, high](const std::string& text) -> std::string {
    const auto number = parse_number<std::conditional_t<std::integral<T>, long long, double>>(text);
    const auto value = static_cast<double>(number.value_or(0));
    if (!number || !std::isfinite(value)) return number_advice(low, high, std::integral<T>);
    if (value < low || value > high) return number_advice(low, high, std::integral<T>, value);
    field = static_cast<T>(*number);
    return "";
  };
  return {read, [&field] {
            if constexpr (std::integral<T>) return std::to_string(field);
            return number_text(field);
          }};
}

template <class T>
ReadValue number_into(std::optional<T>& field, double low, double high) {
  return [&field, low, high](const std::string& text) {
    T number{};
    std::string error = number_into(number, low, high)(text);
    if (error.empty()) field = number;
    return error;
  };
}

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
  /// Returns the option with this name, also one of the other names, or nullptr.
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

  /// Returns a message for each rule that the given options break. An option with an empty value breaks none,
  /// and one that `is_for_all_jobs` no harmless one.
  std::vector<std::string> broken_rules(const std::vector<std::string>& circumstances = {},
                                        const std::function<bool(const Option&)>& is_for_all_jobs = {}) const;

  /// Returns the text of the field that an option of this table sets; a flag has "given". Empty: no value.
  std::string text(const Option& option) const;

  /// Returns the text of --help.
  std::string help() const;
  /// Returns the lines of --help of these options. `brief`: one line each, the first clause of its help.
  std::string help_of(const std::string& names, bool brief) const;
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
    const auto found = std::ranges::find(words, field, &std::pair<std::string, T>::second);
    return static_cast<std::size_t>(found - words.begin());
  };
  choose(
      std::move(option), words_of(words), [&field, words](std::size_t which) { field = words[which].second; },
      chosen);
}

/// One option as written: "--master_port=80" has the text "--master_port", the name "--master-port" and a
/// value.
struct WrittenOption {
  std::string text;
  std::string name;                  ///< with dashes only
  std::optional<std::string> value;  ///< the text behind '='
};

/// States how a program treats an option of other programs that it does not have.
enum class SupportStatus {
  kRenamed,  ///< a flag that stands for the option `text` with `value`
  kNoted,    ///< accepted without effect; `text` says why it is not needed
  kRefused,  ///< refused, unless its value asks for nothing; `text` says why, or what to use
};

/// An option of other programs.
struct CompatibilityOption {
  std::string_view name;  ///< with dashes: "--rdzv-id", "-t"
  bool takes_value = false;
  SupportStatus status = SupportStatus::kRefused;
  std::string_view text{};
  /// Of kRefused: the accepted value, empty for none. An option that it stands for may follow: "no --env
  /// A=no".
  std::string_view value{};
};

/// Splits a command line at the options of a table: `--opt value`, `--opt=value`, `--flag=false`, '_' for
/// '-', `-b8` for `-b 8`. It collects all errors: unknown options with the nearest name, and missing values.
class OptionScanner {
 public:
  /// `program` is the name in the messages: "train bench". `hint` ends the message about an unknown option.
  /// All arguments must outlive the scanner.
  OptionScanner(std::string program, const std::vector<std::string>& args, const OptionTable& table,
                std::span<const CompatibilityOption> others = {}, std::string hint = "")
      : program_(std::move(program)),
        args_(args),
        table_(table),
        others_(others),
        hint_(hint.empty() ? program_ + " --help lists all options" : std::move(hint)) {}

  /// Reads options up to the next other word, `--`, or the end. Returns false if an unknown option hides
  /// where the options end.
  bool scan();

  // What scan() has found.
  std::size_t next = 0;            ///< index of the first argument that it has not read, and goes on with
  std::vector<std::string> words;  ///< input of OptionTable::fill
  /// Names of the options as written, dashes only; behind an other name that of this program.
  std::vector<std::string> given;
  std::vector<std::string> switched_off;  ///< names of the flags that are given as FLAG=false
  std::vector<std::string> errors;
  std::vector<std::string> notes;  ///< options of other programs that have no effect

 private:
  bool read_option(const std::string& word);
  void read_ours(WrittenOption written);
  void read_flag(WrittenOption written);
  void read_several(const Option& option, WrittenOption written);
  void read_other(const CompatibilityOption& other, WrittenOption written);
  bool read_unknown(const WrittenOption& written);
  /// Takes the value behind the option, unless it has one after '='. Reports an error if there is none.
  bool take_value(WrittenOption& written);
  bool is_option(const std::string& word) const;
  WrittenOption take_apart(const std::string& word) const;
  bool takes_value(std::string_view name) const;
  const CompatibilityOption* find_other(std::string_view name) const;
  std::string suggestion(const WrittenOption& written) const;
  void fail(std::string text) { errors.push_back(std::move(text)); }

  std::string program_;
  const std::vector<std::string>& args_;
  const OptionTable& table_;
  std::span<const CompatibilityOption> others_;
  std::string hint_;
};

/// Parses a whole command line without words of another program: options, and as many other words as `table`
/// has positional ones, in any order. Returns all errors; broken rules only if there are no others.
std::vector<std::string> parse_arguments(const std::string& program, const std::vector<std::string>& args,
                                         OptionTable& table);

}  // namespace ddp
