#pragma once

#include <span>
#include <string_view>

namespace ddp {

/// How a value becomes text: as Python's str() has it ("True"), in small letters, or in capitals.
enum class Spelling { kPython, kLower, kUpper };

/// A key of deepspeed_config, and the variable of its own that Accelerate's launcher makes of it.
struct EnvKey {
  std::string_view key;
  std::string_view variable;
  Spelling spelling = Spelling::kPython;
};

/// A section whose keys become variables by a rule: prefix and the key in capitals.
struct Section {
  std::string_view name;
  std::string_view key_prefix;  ///< that a key may have and the variable's name has not
  std::string_view variables;
  Spelling spelling;
  std::string_view switched_on;  ///< set to "true" when the section counts; empty: no such variable
  std::string_view type{};       ///< the distributed_type that makes it count; empty: its keys do
};

/// What a file of `accelerate config` may hold (accelerate 1.x, commands/config/config_args.py).
std::span<const EnvKey> deepspeed_keys();
std::span<const Section> accelerate_sections();
/// The keys of the file itself besides the sections.
std::span<const std::string_view> accelerate_keys();

}  // namespace ddp
