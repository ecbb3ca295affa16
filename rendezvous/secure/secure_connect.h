#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/identity/link_identity.h"
#include "rendezvous/identity/link_refusal.h"
#include "rendezvous/secure/secure_stream_context.h"

namespace ddp::rendezvous {

/// Identity and key of the joining end.
struct JoinAs {
  LinkRole role = LinkRole::kAgent;
  std::string job;
  std::string node;  ///< link_name_of() the host's name
  Secret key;        ///< link_key() of role, job and node
  std::string token_origin;
  std::string token_check;
};

/// A link, or the reason why there is none.
struct JoinOutcome {
  std::unique_ptr<ByteStream> stream;
  Error error;             ///< when there is no stream: the whole text for the user
  bool try_again = false;  ///< the other side may not have started yet, or is overloaded
};

/// Makes one attempt: connects to the first endpoint that answers, proves the identity of this end, and
/// checks that the other side has the same token. kTimeout after `deadline`. `where` names the other side in
/// messages: "gpu01:29400". kUnreachable: nobody answers, or the token, job or role differs; kAgentMismatch:
/// another version, or no ddplaunch. `as` must outlive the call. The other side may still evict this
/// connection before it has read the last bytes. Therefore retry if a stream ends before its first byte
/// arrives.
Awaitable<JoinOutcome> secure_connect(std::shared_ptr<const SecureContext> context,
                                      std::vector<asio::ip::tcp::endpoint> endpoints, std::string where,
                                      const JoinAs& as, std::chrono::steady_clock::time_point deadline);

/// Repeats secure_connect with growing and random pauses while that may help: the master of a job may start
/// after its nodes. `resolve` returns the endpoints again each time, since a name may appear late. Its error
/// counts as "not started yet", and it must keep to the deadline. The error after the deadline includes the
/// last reason. `resolve` must outlive the call.
using Resolve = std::function<Awaitable<Result<std::vector<asio::ip::tcp::endpoint>>>(
    std::string host, std::uint16_t port, std::chrono::steady_clock::time_point deadline)>;
Awaitable<Result<std::unique_ptr<ByteStream>>> secure_join(std::shared_ptr<const SecureContext> context,
                                                           const Resolve& resolve, std::string host,
                                                           std::uint16_t port, const JoinAs& as,
                                                           std::chrono::steady_clock::time_point deadline);

/// A `resolve` for secure_join whose `host` must be an address.
Awaitable<Result<std::vector<asio::ip::tcp::endpoint>>> address_only(
    std::string host, std::uint16_t port, std::chrono::steady_clock::time_point deadline);

}  // namespace ddp::rendezvous
