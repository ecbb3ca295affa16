#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

// PyTorch's TCPStore protocol as bytes: requests in, requests and replies out. Sans-IO.
// docs/developers/store_protocol.md describes it; the facts come from PyTorch's public source
// (torch/csrc/distributed/c10d/TCPStore*.cpp) and from observing its clients. All numbers are little-endian:
// a u8 opcode, then arguments; a string is a u64 length and its bytes.
namespace ddp::rendezvous {

/// The numbering of requests on a connection. Its first bytes distinguish the new dialect from the old ones.
/// The two old ones are distinguished by the first request whose number means something else in the other.
enum class StoreDialect : std::uint8_t {
  kUnknown,  ///< nothing decisive has arrived
  kOld,      ///< no VALIDATE, SET is 0: torch ≤ 2.1, exact version unknown
  kOld20,    ///< torch ≤ 2.0: WATCH_KEY 7 (reached from C++ only, not served), DELETE_KEY 8
  kOld21,    ///< torch 2.1: DELETE_KEY 7, APPEND 8, MULTI_GET 9, MULTI_SET 10, CANCEL_WAIT 11
  kNew,      ///< torch ≥ 2.2: VALIDATE (0) and a magic number come first, SET is 1
};

/// Requests by their new number.
enum class StoreOp : std::uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};

/// If a connection is silent for this time, a request that could continue counts as complete. Needed for the
/// first deletion or cancelled wait on a connection of torch ≤ 2.1: its clients send a request in one piece
/// and then await the reply.
inline constexpr std::chrono::milliseconds kStoreSettle{20};

inline constexpr std::uint32_t kStoreMagic = 0x3C85F7CE;
inline constexpr std::uint8_t kStopWaiting = 0;   // reply to WAIT and BARRIER
inline constexpr std::uint8_t kWaitCanceled = 1;  // reply to CANCEL_WAIT
inline constexpr std::uint8_t kCheckReady = 0;
inline constexpr std::uint8_t kCheckNotReady = 1;

/// Limits, checked before any allocation; afterwards memory grows only with bytes that have arrived.
inline constexpr std::size_t kMaxStoreKey = 64 * 1024;
inline constexpr std::size_t kMaxStoreValue = 256 * 1024 * 1024;
inline constexpr std::size_t kMaxStoreList = 128 * 1024;  ///< keys of one WAIT, CHECK, MULTI_GET, MULTI_SET
inline constexpr std::size_t kMaxStoreKeyList = 16 * 1024 * 1024;  ///< bytes of one WAIT, CHECK or MULTI_GET
inline constexpr std::size_t kMaxStoreRequest = kMaxStoreValue + 1024 * 1024;

/// One request. The views point into the decoder and are valid until its next call.
struct StoreRequest {
  StoreOp op = StoreOp::kValidate;
  std::vector<std::string_view> keys;    ///< one key, or all keys of a list
  std::vector<std::string_view> values;  ///< SET, APPEND, QUEUE_PUSH: one; COMPARE_SET: expected, desired;
                                         ///< MULTI_SET: one per key
  std::int64_t number = 0;               ///< ADD: amount; BARRIER: world size; PING: nonce
};

/// Splits one connection's bytes into requests. Resumable at any byte: each byte is parsed once, however it
/// arrives.
class StoreDecoder {
 public:
  /// Appends a copy of the received bytes. Invalidates earlier views.
  void feed(std::string_view bytes);

  /// True: `request` holds the next request. False: more bytes are needed. Error: kProtocol, the peer does
  /// not speak the protocol or exceeded a limit. Then close the connection and do not use the decoder again.
  Result<bool> next(StoreRequest& request);

  /// After next() returned false: the bytes are a whole request of one old dialect or the start of a longer
  /// one of the other. Only silence can decide: if nothing arrives for kStoreSettle, call decide() and next()
  /// again.
  bool undecided() const { return undecided_; }
  void decide() { settled_ = undecided_; }

  StoreDialect dialect() const { return dialect_; }
  /// Returns the number of bytes held for an incomplete request.
  std::size_t buffered() const { return buffer_.size() - begin_; }

 private:
  enum class Field : std::uint8_t;
  struct Layout;
  struct Span {
    std::size_t offset;  // from the start of the request
    std::size_t size;
  };

  static const Layout* layout_of(StoreDialect dialect, std::uint8_t opcode);
  Result<bool> sniff(StoreRequest& request);
  Result<bool> start();
  bool distinguish_old_dialects(std::uint8_t opcode);
  Result<bool> parse_field(Field field);
  Result<bool> parse_key(std::size_t request_limit) {
    return parse_bytes(kMaxStoreKey, request_limit, "key", keys_);
  }
  Result<bool> parse_value() { return parse_bytes(kMaxStoreValue, kMaxStoreRequest, "value", values_); }
  Result<bool> parse_bytes(std::size_t limit, std::size_t request_limit, const char* what,
                           std::vector<Span>& into);
  Result<bool> parse_list(bool with_values);
  bool have(std::size_t size) const { return buffered() - cursor_ >= size; }
  std::uint64_t peek(std::size_t size, std::size_t ahead = 0) const;
  void emit(StoreRequest& request);

  std::string buffer_;
  std::size_t begin_ = 0;   // start of the request in buffer_
  std::size_t cursor_ = 0;  // parsed bytes, from begin_
  StoreDialect dialect_ = StoreDialect::kUnknown;
  bool undecided_ = false;
  bool settled_ = false;
  const Layout* layout_ = nullptr;  // of the current request; null between requests
  std::size_t field_ = 0;           // next field of layout_
  std::uint64_t list_left_ = 0;     // remaining items of the current list
  bool in_list_ = false;
  bool value_next_ = false;  // in a MULTI_SET: the key has been parsed, its value has not
  std::int64_t number_ = 0;
  std::vector<Span> keys_;
  std::vector<Span> values_;
};

/// Write parts of requests and replies; each function appends to `out`.
void put_u8(std::string& out, std::uint8_t value);
void put_u32(std::string& out, std::uint32_t value);
void put_u64(std::string& out, std::uint64_t value);
void put_bytes(std::string& out, std::string_view value);

/// Returns a key for an error message: quoted, cut after 80 bytes, with '?' for unprintable bytes.
std::string printable_key(std::string_view key);

}  // namespace ddp::rendezvous
