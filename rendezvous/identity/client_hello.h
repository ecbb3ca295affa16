#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddp::rendezvous {

/// The first bytes of a connection that has not proved anything yet.
struct ParsedClientHello {
  enum class Kind : std::uint8_t {
    kNeedsMore,
    kOffer,     ///< a whole TLS 1.3 ClientHello that offers one key
    kHttp,      ///< a request of a browser, a scanner, a proxy
    kPlain,     ///< no TLS at all
    kOtherTls,  ///< TLS, and nothing that we would answer; `why` tells
  };
  Kind kind = Kind::kNeedsMore;
  std::string_view identity;  ///< of the key; lies in the bytes looked at; any bytes
  std::string_view why;       ///< static text: "it offers no TLS 1.3"
};

/// A hello of ours has about 450 bytes. One that is longer is none of ours.
constexpr std::size_t kMaxClientHello = 1024;

/// Looks at all bytes so far (kMaxClientHello at most), before any memory or TLS library is spent on them
/// (sans-IO). Strict: what passes is one record with TLS 1.3, TLS_AES_128_GCM_SHA256, one pre-shared key with
/// (EC)DHE, and no early data; bytes behind that record are kOtherTls, for an honest client waits for the
/// answer. RFC 8446, 4.1.2 and 4.2.
ParsedClientHello parse_client_hello(std::string_view bytes);

}  // namespace ddp::rendezvous
