// Decodes arbitrary bytes as protocol frames. Each frame must give a message or an error, and a decoded
// message must encode to the same bytes.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "rendezvous/protocol/codec.h"

using namespace ddp::rendezvous;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
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
      const auto message = decode_payload(**frame);
      if (!message) continue;
      std::string again;
      append_frame(*message, again);
      if (std::string_view(again).substr(kFrameHeader) != **frame) std::abort();
    }
  }
  return 0;
}
