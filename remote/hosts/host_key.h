#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::remote {

/// A key of the pairs behind a host: slots=8. Several names may mean the same key, as in other launchers'
/// hostfiles.
struct HostKey {
  /// From kAddress on, values are free text, in which a '#' could be part of the value.
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
  bool shown;  ///< suggested in messages; the others are Open MPI's spellings
};

/// Returns the key with this name, in static storage, or nullptr.
const HostKey* find_host_key(std::string_view name);

/// Returns the message for a name that find_host_key() does not find.
std::string unknown_host_key(std::string_view name);

}  // namespace ddp::remote
