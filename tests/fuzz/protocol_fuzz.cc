// Decodes arbitrary bytes as protocol frames. Each frame must give a message or an error, and a decoded
// message must encode to the same bytes and have no number without a name in an enum.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/protocol/codec.h"

using namespace ddp::rendezvous;

namespace {

bool has_named_enums(const Message& message) {
  using Kind = WorkerCommand::Kind;
  if (const auto* refused = std::get_if<Refused>(&message)) return refused->code <= ddp::ErrorCode::kHung;
  if (const auto* open = std::get_if<OpenStore>(&message))
    return open->mode == StoreMode::kAgent || open->mode == StoreMode::kWorker;
  if (const auto* start = std::get_if<JobStart>(&message)) return start->command.kind <= Kind::kTrain;
  if (const auto* check = std::get_if<NodeCheck>(&message)) return check->job.command.kind <= Kind::kTrain;
  return true;
}

void check(std::string_view payload) {
  const auto message = decode_payload(payload);
  if (!message) return;
  std::string again;
  append_frame(*message, again);
  if (std::string_view(again).substr(kFrameHeader) != payload || !has_named_enums(*message)) std::abort();
}

template <std::size_t... Index>
std::vector<Message> one_of_each(std::index_sequence<Index...>) {
  std::vector<Message> messages;
  (messages.emplace_back(std::in_place_index<Index>), ...);
  return messages;
}

/// Checks a valid message in which the input chooses one byte. Few inputs are valid themselves.
void check_changed(const std::uint8_t* data) {
  static const auto kMessages = one_of_each(std::make_index_sequence<std::variant_size_v<Message>>{});
  static const bool kAllDecode = std::ranges::all_of(kMessages, [](const Message& message) {
    std::string frame;
    append_frame(message, frame);
    return decode_payload(std::string_view(frame).substr(kFrameHeader)).has_value();
  });
  if (!kAllDecode) std::abort();
  std::string frame;
  append_frame(kMessages[data[0] % kMessages.size()], frame);
  const std::size_t fields = kFrameHeader + 1;
  if (frame.size() > fields) frame[fields + data[1] % (frame.size() - fields)] = static_cast<char>(data[2]);
  check(std::string_view(frame).substr(kFrameHeader));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size >= 3) check_changed(data);
  FrameReader reader;
  std::size_t position = 0;
  while (position < size) {
    const auto space = reader.space();
    const std::size_t count = std::min(space.size(), size - position);
    std::memcpy(space.data(), data + position, count);
    reader.filled(count);
    position += count;
    for (;;) {
      const auto frame = reader.next();
      if (!frame) return 0;
      if (!*frame) break;
      check(**frame);
    }
  }
  return 0;
}
