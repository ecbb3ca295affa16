#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::remote {

/// A key of the pairs behind a host: slots=8. Several may mean the same, as others' hostfiles have it.
struct HostKey {
  /// From kAddress on the values are free text, in which a '#' could be meant.
  enum class Key : std::uint8_t {
    kSlots,
    kMaxSlots,
    kPort,
    kUser,
    kJump,
    kAddress,
    kIdentity,
    kChdir,
    kGpus,
    kWrapper,
    kSetup
  };
  std::string_view name;
  Key key;
  bool shown;  ///< in suggestions; the others are spellings that Open MPI knows
};

/// Of static storage; nullptr: there is none of this name.
const HostKey* find_host_key(std::string_view name);

/// What to say then.
std::string unknown_host_key(std::string_view name);

}  // namespace ddp::remote
