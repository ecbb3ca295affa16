#pragma once

#include <span>
#include <string_view>

namespace ddp {

/// The way in which a value becomes text: as Python's str() prints it ("True"), in lower case, or in upper
/// case.
enum class Spelling { kPython, kLower, kUpper };

/// A key of deepspeed_config, and the variable that Accelerate's launcher sets from it.
struct EnvKey {
  std::string_view key;
  std::string_view variable;
  Spelling spelling = Spelling::kPython;
};

/// A section whose keys become variables by a rule: a prefix and the key in upper case.
struct Section {
  std::string_view name;
  std::string_view key_prefix;  ///< optional prefix of a key, removed from the variable's name
  std::string_view variables;
  Spelling spelling;
  std::string_view switched_on;  ///< set to "true" when the section applies; empty: no such variable
  std::string_view type{};       ///< the distributed_type that makes it apply; empty: it applies if it has
                                 ///< keys
};

/// The possible content of a file of `accelerate config` (accelerate 1.x, commands/config/config_args.py).
std::span<const EnvKey> deepspeed_keys();
std::span<const Section> accelerate_sections();
/// The keys of the file itself, besides the sections.
std::span<const std::string_view> accelerate_keys();

}  // namespace ddp
