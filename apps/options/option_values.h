#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddp {

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

/// Reads all of `text` into `field`: digits with an optional sign for an integer, else a finite number.
/// Returns false if it is no such number.
bool parse_number(std::string_view text, long long& field);
bool parse_number(std::string_view text, double& field);
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
    std::conditional_t<std::integral<T>, long long, double> number{};
    if (!parse_number(text, number)) return number_advice(low, high, std::integral<T>);
    const auto value = static_cast<double>(number);
    if (value < low || value > high) return number_advice(low, high, std::integral<T>, value);
    field = static_cast<T>(number);
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

}  // namespace ddp
