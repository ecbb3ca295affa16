#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Whether NCCL finds an interface to use by NCCL_SOCKET_IFNAME=`value` on a node that has `interfaces`: a
/// list of prefixes, of names behind a leading "=", of what is not to be used behind a leading "^" (or "^=").
/// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
bool nccl_finds(const std::vector<rendezvous::Interface>& interfaces, std::string_view value);

/// The names of GLOO_SOCKET_IFNAME=`value`, a list of whole names, that the node lacks: "eth1, ib0".
std::string gloo_lacks(const std::vector<rendezvous::Interface>& interfaces, std::string_view value);

}  // namespace ddp::launcher
