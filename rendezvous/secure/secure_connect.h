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

/// Who joins, and with what key.
struct JoinAs {
  LinkRole role = LinkRole::kAgent;
  std::string job;
  std::string node;  ///< link_name_of() the host's name
  Secret key;        ///< link_key() of just these
  std::string token_origin;
  std::string token_check;
};

/// A link, or why there is none.
struct JoinOutcome {
  std::unique_ptr<ByteStream> stream;
  Error error;             ///< when there is no stream: the whole text for a person
  bool try_again = false;  ///< the other side may not be there yet, or has too much to do
};

/// One attempt: connects to the first endpoint that answers, proves who we are and that the other side has
/// the same token, all before `deadline` (kTimeout after it). `where` is the other side's name for messages,
/// "gpu01:29400". kUnreachable: nobody answers, or the token, job or role differs; kAgentMismatch: another
/// version, or no ddplaunch. `as` outlives the call. The other side may still give the place to others before
/// it has read our last bytes: a stream that ends before its first byte came is a reason to try again.
Awaitable<JoinOutcome> secure_connect(std::shared_ptr<const SecureContext> context,
                                      std::vector<asio::ip::tcp::endpoint> endpoints, std::string where,
                                      const JoinAs& as, std::chrono::steady_clock::time_point deadline);

/// secure_connect again and again, with growing and random pauses, while that may help: the master of a job
/// may start after its nodes. `resolve` gives the endpoints anew each time, for a name may appear late; its
/// error counts as "not there yet"; it keeps to the deadline. The last reason is in the error of a time that
/// has run out. `resolve` outlives the call.
using Resolve = std::function<Awaitable<Result<std::vector<asio::ip::tcp::endpoint>>>(
    std::string host, std::uint16_t port, std::chrono::steady_clock::time_point deadline)>;
Awaitable<Result<std::unique_ptr<ByteStream>>> secure_join(std::shared_ptr<const SecureContext> context,
                                                           const Resolve& resolve, std::string host,
                                                           std::uint16_t port, const JoinAs& as,
                                                           std::chrono::steady_clock::time_point deadline);

/// For secure_join: `host` is an address.
Awaitable<Result<std::vector<asio::ip::tcp::endpoint>>> address_only(
    std::string host, std::uint16_t port, std::chrono::steady_clock::time_point deadline);

}  // namespace ddp::rendezvous
