#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// One option of a program, declared once. --help, the man page, the reference page and the shells'
/// completion are made from it (./dev docs).
struct Option {
  std::string names;  ///< "-t,--tee"
  /// Placeholder of the value: "TIME". "a|b" lists words, which shells complete. "[FILE]" may be omitted.
  /// Words between blanks are several values: "SHA256 FILE". Empty: a flag.
  std::string value = "";
  std::string default_text = "";  ///< "15s"; empty: there is none, or `help` names it
  std::string help = "";          ///< one line of --help, without a full stop
  std::string details = "";       ///< further sentences for man page and reference page, as Markdown
  Completion completion = Completion::kNothing;
  std::vector<std::string> words = {};  ///< completed as well as `completion`; empty: the words in `value`
  bool takes_empty = false;             ///< an empty value is valid
  bool equal = false;                   ///< all ranks of a job need the same value
  bool repeats = false;                 ///< may be given several times; OptionTable::list sets it

  bool takes_value() const { return !value.empty(); }
  bool may_omit_value() const { return value.starts_with('['); }
  /// The number of values that the option needs.
  std::size_t least_values() const;
  /// Returns whether all words behind the option, up to the next option, are its values.
  bool takes_all_words() const { return value.ends_with("…]"); }
};

/// Options with one title, in the order of --help.
struct OptionGroup {
  std::string title;
  std::string intro;    ///< sentences for man page and reference page, as Markdown; empty: none
  std::string example;  ///< a command line for --help; empty: none
  std::vector<Option> options;
};

/// Returns the option with this name ("--listen"). There must be one.
const Option& find_option(std::span<const OptionGroup> groups, std::string_view name);

/// Returns the names of an option: "-t", "--tee".
std::vector<std::string> split_names(const std::string& names);

/// Returns the text of --help: `usage`, then all groups.
std::string help_text(std::string_view usage, std::span<const OptionGroup> groups);

}  // namespace ddp
