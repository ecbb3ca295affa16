#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddp::rendezvous {

/// Result of parsing the first bytes of a connection that has not proved its identity.
struct ParsedClientHello {
  enum class Kind : std::uint8_t {
    kNeedsMore,
    kOffer,     ///< a whole TLS 1.3 ClientHello that offers one key
    kHttp,      ///< a request of a browser, a scanner or a proxy
    kPlain,     ///< not TLS
    kOtherTls,  ///< TLS, but not an acceptable hello; `why` has the reason
  };
  Kind kind = Kind::kNeedsMore;
  std::string_view identity;  ///< of the key: arbitrary bytes, a view into the parsed bytes
  std::string_view why;       ///< static text: "it offers no TLS 1.3"
};

/// A ddplaunch hello has about 450 bytes. A longer one is not from ddplaunch.
constexpr std::size_t kMaxClientHello = 1024;

/// Parses all bytes so far (kMaxClientHello at most), before any memory or TLS library is spent on them
/// (sans-IO). Strict: accepts only one record with TLS 1.3, TLS_AES_128_GCM_SHA256, one pre-shared key with
/// (EC)DHE, and no early data. Bytes after that record give kOtherTls, since an honest client waits for the
/// answer. RFC 8446, 4.1.2 and 4.2.
ParsedClientHello parse_client_hello(std::string_view bytes);

}  // namespace ddp::rendezvous
