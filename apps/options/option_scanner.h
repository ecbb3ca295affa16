#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/options/option_table.h"

namespace ddp {

/// One option as written: "--master_port=80" has the text "--master_port", the name "--master-port" and a
/// value.
struct WrittenOption {
  std::string text;
  std::string name;                  ///< with dashes only
  std::optional<std::string> value;  ///< the text behind '='
};

/// Splits a command line at the options of a table: `--opt value`, `--opt=value`, `--flag=false`, '_' for
/// '-', `-b8` for `-b 8`. It collects all errors: unknown options with the nearest name, and missing values.
class OptionScanner {
 public:
  /// `program` is the name in the messages: "train bench". All arguments must outlive the scanner.
  OptionScanner(std::string program, const std::vector<std::string>& args, const OptionTable& table)
      : table_(table), program_(std::move(program)), args_(args) {}
  virtual ~OptionScanner() = default;

  /// Reads options up to the next other word, `--`, or the end. Returns false if an unknown option hides
  /// where the options end.
  bool scan();
  /// The index of the first argument that scan() has not read.
  std::size_t next() const { return next_; }
  void skip() { ++next_; }

  const std::vector<std::string>& words() const { return words_; }  ///< input of OptionTable::fill
  /// Names of the options as written, dashes only.
  const std::vector<std::string>& given() const { return given_; }
  /// Names of the flags that are given as FLAG=false.
  const std::vector<std::string>& switched_off() const { return off_; }
  const std::vector<std::string>& errors() const { return errors_; }

 protected:
  /// A program may know names that are not in its table, those of other programs. read_other() returns false
  /// if `written` is none of them. add_names() adds those that a message may suggest.
  virtual bool is_other(std::string_view) const { return false; }
  virtual bool other_takes_value(std::string_view) const { return false; }
  virtual bool read_other(WrittenOption&) { return false; }
  virtual void add_names(std::vector<std::string_view>&) const {}
  /// Ends the message about an unknown option: "; the worker's options follow the worker".
  virtual std::string unknown_hint() const { return ""; }

  /// Takes the value behind the option, unless it has one after '='. Reports an error if there is none.
  bool take_value(WrittenOption& written);
  void fail(std::string text) { errors_.push_back(std::move(text)); }

  const OptionTable& table_;
  std::vector<std::string> words_;
  std::vector<std::string> given_;

 private:
  bool read_option(const std::string& word);
  void read_ours(WrittenOption written);
  void read_flag(WrittenOption written);
  void read_several(const Option& option, WrittenOption written);
  bool read_unknown(const WrittenOption& written);
  bool is_option(const std::string& word) const;
  WrittenOption take_apart(const std::string& word) const;
  bool takes_value(const std::string& name) const;
  std::string_view suggestion(const WrittenOption& written) const;

  std::string program_;
  const std::vector<std::string>& args_;
  std::size_t next_ = 0;
  std::vector<std::string> off_;
  std::vector<std::string> errors_;
};

/// Parses a whole command line without words of another program: options, and as many other words as `table`
/// has positional ones, in any order. Returns all errors.
std::vector<std::string> parse_arguments(const std::string& program, const std::vector<std::string>& args,
                                         OptionTable& table);

}  // namespace ddp
