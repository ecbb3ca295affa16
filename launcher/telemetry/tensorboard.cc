#include "launcher/telemetry/tensorboard.h"

#include <array>
#include <bit>
#include <cstddef>
#include <string_view>
#include <utility>

namespace ddp::launcher {
namespace {

/// Appends the number's bytes, little-endian.
template <class Number>
void append_fixed(std::string& bytes, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i)
    bytes += static_cast<char>(static_cast<unsigned char>(number >> (8 * i)));
}

/// CRC-32C (Castagnoli, reflected), as TFRecord masks it.
std::uint32_t masked_crc(std::string_view bytes) {
  static const auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit)
        table[i] = (table[i] >> 1) ^ ((table[i] & 1) != 0 ? 0x82f63b78u : 0u);
    }
    return table;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

/// Protocol Buffers: a field is its number and wire type, then its value.
enum Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& bytes, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7)
    bytes += static_cast<char>(number | 0x80);
  bytes += static_cast<char>(number);
}

void append_tag(std::string& bytes, unsigned field, Wire wire) {
  append_varint(bytes, field << 3 | wire);
}

void append_bytes(std::string& bytes, unsigned field, std::string_view value) {
  append_tag(bytes, field, kBytes);
  append_varint(bytes, value.size());
  bytes += value;
}

/// An Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7. `what` is one of the
/// last three.
std::string record(double time, std::uint64_t step, unsigned what, std::string_view value) {
  std::string event;
  append_tag(event, 1, kFixed64);
  append_fixed(event, std::bit_cast<std::uint64_t>(time));
  append_tag(event, 2, kVarint);
  append_varint(event, step);
  append_bytes(event, what, value);
  std::string bytes;
  append_fixed(bytes, std::uint64_t{event.size()});
  append_fixed(bytes, masked_crc(bytes));
  bytes += event;
  append_fixed(bytes, masked_crc(event));
  return bytes;
}

/// Adds a Value of a Summary: tag = 1, simple_value = 2.
void add_scalar(std::string& summary, std::string_view tag, std::optional<double> number) {
  if (!number) return;
  std::string value;
  append_bytes(value, 1, tag);
  append_tag(value, 2, kFixed32);
  append_fixed(value, std::bit_cast<std::uint32_t>(static_cast<float>(*number)));
  append_bytes(summary, 1, value);
}

}  // namespace

std::string TensorBoardEvents::add(const JobProgress::Figures& figures,
                                   std::chrono::system_clock::time_point time) {
  if (!figures.step || figures.step == step_) return {};
  const double seconds = std::chrono::duration<double>(time.time_since_epoch()).count();
  std::string bytes;
  if (!step_) bytes += record(seconds, 0, 3, "brain.Event:2");
  std::string start;  // a SessionLog: status = 1, START = 1
  append_tag(start, 1, kVarint);
  append_varint(start, 1);
  if (step_ && *figures.step < *step_) bytes += record(seconds, *figures.step, 7, start);
  step_ = figures.step;
  std::string summary;
  add_scalar(summary, "train/loss", figures.loss);
  add_scalar(summary, "train/seconds_per_step", figures.step_seconds);
  add_scalar(summary, "train/goodput", figures.goodput());
  return bytes + record(seconds, *figures.step, 5, summary);
}

}  // namespace ddp::launcher
