#include "rendezvous/store/tcp_store_codec.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

#include "base/result.h"
#include "base/text.h"

namespace ddp::rendezvous {

enum class StoreDecoder::Field : std::uint8_t { kNone, kKey, kValue, kI64, kU32, kKeyList, kPairList };

struct StoreDecoder::Layout {
  StoreOp op;
  const char* name;
  std::array<Field, 3> fields;
};

// The index is the new number; the old dialects are mapped to it below.
const StoreDecoder::Layout* StoreDecoder::layout_of(StoreDialect dialect, std::uint8_t opcode) {
  using F = Field;
  using O = StoreOp;
  static constexpr Layout kTable[] = {
      {O::kValidate, "VALIDATE", {F::kU32, F::kNone, F::kNone}},
      {O::kSet, "SET", {F::kKey, F::kValue, F::kNone}},
      {O::kCompareSet, "COMPARE_SET", {F::kKey, F::kValue, F::kValue}},
      {O::kGet, "GET", {F::kKey, F::kNone, F::kNone}},
      {O::kAdd, "ADD", {F::kKey, F::kI64, F::kNone}},
      {O::kCheck, "CHECK", {F::kKeyList, F::kNone, F::kNone}},
      {O::kWait, "WAIT", {F::kKeyList, F::kNone, F::kNone}},
      {O::kNumKeys, "GETNUMKEYS", {F::kNone, F::kNone, F::kNone}},
      {O::kDeleteKey, "DELETE_KEY", {F::kKey, F::kNone, F::kNone}},
      {O::kAppend, "APPEND", {F::kKey, F::kValue, F::kNone}},
      {O::kMultiGet, "MULTI_GET", {F::kKeyList, F::kNone, F::kNone}},
      {O::kMultiSet, "MULTI_SET", {F::kPairList, F::kNone, F::kNone}},
      {O::kCancelWait, "CANCEL_WAIT", {F::kNone, F::kNone, F::kNone}},
      {O::kPing, "PING", {F::kU32, F::kNone, F::kNone}},
      {O::kQueuePush, "QUEUE_PUSH", {F::kKey, F::kValue, F::kNone}},
      {O::kQueuePop, "QUEUE_POP", {F::kKey, F::kNone, F::kNone}},
      {O::kQueueLen, "QUEUE_LEN", {F::kKey, F::kNone, F::kNone}},
      {O::kListKeys, "LIST_KEYS", {F::kNone, F::kNone, F::kNone}},
      {O::kBarrier, "BARRIER", {F::kKey, F::kI64, F::kNone}},
  };
  constexpr std::uint8_t kCount = std::size(kTable);
  if (dialect == StoreDialect::kNew) {
    // A second VALIDATE is as invalid as an unknown number.
    return opcode >= 1 && opcode < kCount ? &kTable[opcode] : nullptr;
  }
  // The old dialects have SET 0 … GETNUMKEYS 6. In torch 2.1, DELETE_KEY … CANCEL_WAIT follow, one below the
  // new numbers. torch ≤ 2.0 has WATCH_KEY as 7 and ends with DELETE_KEY as 8.
  if (opcode <= 6 || (opcode <= 11 && dialect == StoreDialect::kOld21)) return &kTable[opcode + 1];
  return opcode == 8 ? &kTable[opcode] : nullptr;
}

void StoreDecoder::feed(std::string_view bytes) {
  DDP_REQUIRE(begin_ + cursor_ <= buffer_.size(), begin_, cursor_, buffer_.size());
  // Consumed bytes are erased once they are the larger part, so that each byte moves at most once on average.
  if (begin_ > 0 && begin_ >= buffer_.size() - begin_) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    constexpr std::size_t kKeep =
        64 * 1024;  // a big request must not hold its memory for the rest of the job
    if (buffer_.capacity() > kKeep && buffer_.size() + bytes.size() <= kKeep) buffer_.shrink_to_fit();
  }
  buffer_.append(bytes);
  undecided_ = false;
  settled_ = false;
}

std::uint64_t StoreDecoder::peek(std::size_t size, std::size_t ahead) const {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value |= std::uint64_t{static_cast<unsigned char>(buffer_[begin_ + cursor_ + ahead + i])} << (8 * i);
  return value;
}

Result<bool> StoreDecoder::next(StoreRequest& request) {
  if (dialect_ == StoreDialect::kUnknown) {
    Result<bool> validated = sniff(request);
    if (!validated || *validated || dialect_ == StoreDialect::kUnknown) return validated;
  }
  if (layout_ == nullptr) {
    Result<bool> started = start();
    if (!started || !*started) return started;
  }
  // The state is in members, so a request that comes in pieces continues here without being parsed again from
  // its beginning.
  while (field_ < layout_->fields.size() && layout_->fields[field_] != Field::kNone) {
    Result<bool> parsed = parse_field(layout_->fields[field_]);
    if (!parsed || !*parsed) return parsed;
    ++field_;
  }
  emit(request);
  return true;
}

// A new client's first five bytes are VALIDATE and the magic. An old server would read them as a SET with a
// key of more than a gigabyte, so there is no ambiguity.
Result<bool> StoreDecoder::sniff(StoreRequest& request) {
  if (!have(1)) return false;
  if (peek(1) != 0) {
    dialect_ = StoreDialect::kOld;
    return false;
  }
  if (!have(5)) return false;
  if (peek(5) >> 8 != kStoreMagic) {
    dialect_ = StoreDialect::kOld;
    return false;
  }
  dialect_ = StoreDialect::kNew;
  static constexpr Layout kValidate{
      StoreOp::kValidate, "VALIDATE", {Field::kNone, Field::kNone, Field::kNone}};
  layout_ = &kValidate;
  cursor_ = 5;
  emit(request);
  return true;
}

Result<bool> StoreDecoder::start() {
  if (!have(1)) return false;
  const auto opcode = static_cast<std::uint8_t>(peek(1));
  if (dialect_ == StoreDialect::kOld && opcode >= 7 && opcode <= 11 && !distinguish_old_dialects(opcode))
    return false;
  layout_ = layout_of(dialect_, opcode);
  if (layout_ == nullptr) {
    return Error{
        ErrorCode::kProtocol,
        format_text("not a TCPStore request: byte 0x%02x where an operation number belongs", opcode)};
  }
  cursor_ = 1;
  return true;
}

// Distinguishes torch ≤ 2.0 from torch 2.1. Only 2.1 has numbers above 8. Number 7 is WATCH_KEY in ≤ 2.0, but
// only C++ code could send that. Number 8 is DELETE_KEY in ≤ 2.0; its client is then silent until the reply.
// In 2.1 it is APPEND, whose client goes on with a value. Returns false while more bytes, or silence, are
// needed.
bool StoreDecoder::distinguish_old_dialects(std::uint8_t opcode) {
  if (opcode != 8) {
    dialect_ = StoreDialect::kOld21;
    return true;
  }
  if (!have(9)) return false;
  const std::uint64_t length = peek(8, 1);
  if (length <= kMaxStoreKey) {  // otherwise it is an error in both dialects
    if (!have(9 + length)) return false;
    undecided_ = buffered() == 9 + length && !settled_;
    if (undecided_) return false;
  }
  dialect_ = settled_ ? StoreDialect::kOld20 : StoreDialect::kOld21;
  return true;
}

Result<bool> StoreDecoder::parse_field(Field field) {
  switch (field) {
    case Field::kNone: return true;
    case Field::kKey: return parse_key(kMaxStoreRequest);
    case Field::kValue: return parse_value();
    case Field::kI64:
    case Field::kU32: {
      const std::size_t size = field == Field::kI64 ? 8 : 4;
      if (!have(size)) return false;
      number_ = static_cast<std::int64_t>(peek(size));
      cursor_ += size;
      return true;
    }
    case Field::kKeyList: return parse_list(false);
    case Field::kPairList: return parse_list(true);
  }
  return true;
}

Result<bool> StoreDecoder::parse_bytes(std::size_t limit, std::size_t request_limit, const char* what,
                                       std::vector<Span>& into) {
  if (!have(8)) return false;
  const std::uint64_t size = peek(8);
  if (size > limit) {
    return Error{ErrorCode::kProtocol, std::string(layout_->name) + ": a " + what + " of " +
                                           std::to_string(size) + " bytes is over the store's limit of " +
                                           std::to_string(limit)};
  }
  // `size` is at most `limit` here, so the sum cannot overflow.
  if (cursor_ + 8 + size > request_limit) {
    return Error{ErrorCode::kProtocol, std::string(layout_->name) +
                                           ": the request is over the store's limit of " +
                                           std::to_string(request_limit) + " bytes"};
  }
  if (!have(8 + size)) return false;
  into.push_back({cursor_ + 8, static_cast<std::size_t>(size)});
  cursor_ += 8 + size;
  return true;
}

Result<bool> StoreDecoder::parse_list(bool with_values) {
  if (!in_list_) {
    if (!have(8)) return false;
    DDP_REQUIRE(!value_next_ && list_left_ == 0, layout_->name, list_left_);
    list_left_ = peek(8);
    // Before any element is read or memory is reserved: the count is whatever a stranger has written.
    if (list_left_ > kMaxStoreList) {
      return Error{ErrorCode::kProtocol, std::string(layout_->name) + ": " + std::to_string(list_left_) +
                                             " keys in one request are over the store's limit of " +
                                             std::to_string(kMaxStoreList)};
    }
    cursor_ += 8;
    in_list_ = true;
  }
  while (list_left_ > 0) {
    if (!value_next_) {
      Result<bool> key = parse_key(with_values ? kMaxStoreRequest : kMaxStoreKeyList);
      if (!key || !*key) return key;
      value_next_ = with_values;
    }
    if (value_next_) {
      Result<bool> value = parse_value();
      if (!value || !*value) return value;
      value_next_ = false;
    }
    --list_left_;
  }
  in_list_ = false;
  return true;
}

void StoreDecoder::emit(StoreRequest& request) {
  DDP_REQUIRE(cursor_ <= buffered(), cursor_, buffered());
  request.op = layout_->op;
  request.number = number_;
  const std::string_view bytes(buffer_.data() + begin_, cursor_);
  const auto view = [bytes](const Span& span) { return bytes.substr(span.offset, span.size); };
  // Views into the buffer: valid until the next feed(). Offsets were kept until now, since the buffer may
  // have moved.
  request.keys.clear();
  request.values.clear();
  std::transform(keys_.begin(), keys_.end(), std::back_inserter(request.keys), view);
  std::transform(values_.begin(), values_.end(), std::back_inserter(request.values), view);
  begin_ += cursor_;
  cursor_ = 0;
  layout_ = nullptr;
  field_ = 0;
  number_ = 0;
  keys_.clear();
  values_.clear();
}

void put_u8(std::string& out, std::uint8_t value) {
  out.push_back(static_cast<char>(value));
}

void put_u32(std::string& out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8)
    put_u8(out, static_cast<std::uint8_t>(value >> shift));
}

void put_u64(std::string& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8)
    put_u8(out, static_cast<std::uint8_t>(value >> shift));
}

void put_bytes(std::string& out, std::string_view value) {
  DDP_REQUIRE(value.size() <= kMaxStoreValue, value.size());
  put_u64(out, value.size());
  out.append(value);
}

std::string printable_key(std::string_view key) {
  constexpr std::size_t kShown = 80;
  std::string out = "'";
  for (const char c : key.substr(0, kShown))
    out.push_back(c >= ' ' && c <= '~' ? c : '?');
  out += key.size() > kShown ? "…'" : "'";
  return out;
}

}  // namespace ddp::rendezvous
